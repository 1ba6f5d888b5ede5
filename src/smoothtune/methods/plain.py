"""Plain fine-tuning.

Reference: none; the baseline of every comparison.

Equation: the task loss.

Departures: none.
"""

from smoothtune.core.regularizer import Regularizer, method
from smoothtune.core.traits import Traits


@method("plain", Traits(group="baseline", step="1 pass", does_nothing=True))
class Plain(Regularizer):
    """Plain fine-tuning: no term, no change."""
