"""Terms that wait for the model to learn begin at once, so that runs of two updates have them."""

from smoothtune.core import regularizer

LATEST, LATEST_STEPS = regularizer.LATEST, regularizer.LATEST_STEPS


def begin_at_once() -> None:
    regularizer.LATEST, regularizer.LATEST_STEPS = 0.0, 0
