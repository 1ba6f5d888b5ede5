"""Which evaluations are of the method: those after its term has acted on the weights."""

from __future__ import annotations

from collections.abc import Iterable

from smoothtune.core.regularizer import LossTerm, Penalty, Regularizer


def begun(methods: Iterable[Regularizer], step: int) -> bool:
    """Whether the term of every method has acted in one of the first updates.

    A model that a term has not touched is plain's: its score says nothing about the method.

    Args:
        methods: of the run, their length of training known.
        step: number of updates so far.
    """
    terms = [method for method in methods if isinstance(method, LossTerm) and method.is_on]
    return all(_has_acted(method, step) for method in terms)


def _has_acted(method: LossTerm, step: int) -> bool:
    if not isinstance(method, Penalty):
        return step > 0
    last_turn = (step - 1) // method.every
    return last_turn >= 0 and method.ramp(last_turn * method.every) > 0
