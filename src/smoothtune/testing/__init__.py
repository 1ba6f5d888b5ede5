"""Tests of what holds for every method on every architecture, for methods of your own, too.

::

    @pytest.mark.parametrize("architecture", ARCHITECTURES)
    @pytest.mark.parametrize("clause", CLAUSES)
    def test_contract(architecture, clause):
        clause(lambda: MyMethod(), architecture)

Models are tiny, random and in float64. Draws are made reproducible with `fixed_draws`, so that a
batch can be compared with its halves and with a longer padded version of itself.
"""

from smoothtune.testing.contract import CLAUSES as CLAUSES
from smoothtune.testing.contract import Models as Models
from smoothtune.testing.contract import has_right_gradient as has_right_gradient
from smoothtune.testing.contract import ignores_padding as ignores_padding
from smoothtune.testing.contract import is_mean_over_examples as is_mean_over_examples
from smoothtune.testing.contract import leaves_ambient_draws as leaves_ambient_draws
from smoothtune.testing.contract import leaves_no_trace as leaves_no_trace
from smoothtune.testing.contract import off_at_weight_zero as off_at_weight_zero
from smoothtune.testing.contract import reaches_parameters as reaches_parameters
from smoothtune.testing.contract import resumes as resumes
from smoothtune.testing.contract import survives_checkpointing as survives_checkpointing
from smoothtune.testing.contract import with_weight as with_weight
from smoothtune.testing.fixed import all_in_float64 as all_in_float64
from smoothtune.testing.fixed import fixed_draws as fixed_draws
from smoothtune.testing.fixed import frozen_perturbations as frozen_perturbations
from smoothtune.testing.tiny import ARCHITECTURES as ARCHITECTURES
from smoothtune.testing.tiny import LEFT_PADDED as LEFT_PADDED
from smoothtune.testing.tiny import PAD as PAD
from smoothtune.testing.tiny import VOCABULARY as VOCABULARY
from smoothtune.testing.tiny import tiny_batch as tiny_batch
from smoothtune.testing.tiny import tiny_model as tiny_model
