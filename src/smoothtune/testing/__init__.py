"""The contract every method keeps on every architecture, for our methods and for those of others.

::

    @pytest.mark.parametrize("architecture", ARCHITECTURES)
    @pytest.mark.parametrize("clause", CLAUSES)
    def test_contract(architecture, clause):
        clause(lambda: MyMethod(), architecture)

Models are tiny, random and in float64. Draws are made reproducible with `fixed_draws`, so that a
batch can be compared with its halves and with a longer padded version of itself.
"""

from smoothtune.testing.contract import (
    CLAUSES,
    has_right_gradient,
    ignores_padding,
    is_mean_over_examples,
    leaves_ambient_draws,
    leaves_no_trace,
    off_at_weight_zero,
    reaches_parameters,
    resumes,
    survives_checkpointing,
)
from smoothtune.testing.fixed import all_in_float64, fixed_draws, frozen_perturbations
from smoothtune.testing.tiny import (
    ARCHITECTURES,
    LEFT_PADDED,
    PAD,
    VOCABULARY,
    tiny_batch,
    tiny_model,
)

__all__ = [
    "CLAUSES",
    "reaches_parameters",
    "off_at_weight_zero",
    "leaves_ambient_draws",
    "ignores_padding",
    "is_mean_over_examples",
    "has_right_gradient",
    "leaves_no_trace",
    "resumes",
    "survives_checkpointing",
    "all_in_float64",
    "fixed_draws",
    "frozen_perturbations",
    "ARCHITECTURES",
    "LEFT_PADDED",
    "PAD",
    "VOCABULARY",
    "tiny_batch",
    "tiny_model",
]
