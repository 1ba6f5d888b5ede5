"""Which evaluations are of the method: those after its term has acted on the weights."""

from __future__ import annotations

from collections.abc import Iterable

from smoothtune.core.regularizer import Regularizer


def begun(methods: Iterable[Regularizer], step: int) -> bool:
    """Whether the term of every method has acted in one of the first updates.

    A model that a term has not touched is plain's: its score says nothing about the method.

    Args:
        methods: of the run, their length of training known.
        step: number of updates so far.
    """
    return all(_has_acted(method, step) for method in methods if method.is_on and method.has_loss)


def _has_acted(method: Regularizer, step: int) -> bool:
    last_turn = (step - 1) // method.every
    return last_turn >= 0 and method.ramp(last_turn * method.every) > 0
