"""Every method of METHODS, and its variants, on every architecture."""

import pytest

from smoothtune import METHODS
from smoothtune.testing import ARCHITECTURES, CLAUSES

VARIANTS = {
    "lnsr": [{"noise": "in_manifold", "k": 5}, {"layer": 1, "reduce": "token_sum"}],
    "noise": [{"noise": "in_manifold", "k": 5}],
    "r3f": [{"noise": "normal", "sigma": 0.1}],
    "mixout": [{"mask": "element", "head": True}],
    "cwgnc": [{"max_norm": 0.01}],
}
CASES = [(name, fields) for name in METHODS for fields in [{}, *VARIANTS.get(name, [])]]


def _label(value):
    if isinstance(value, tuple):
        return "-".join([value[0], *(f"{k}={v}" for k, v in value[1].items())])
    return getattr(value, "__name__", value)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("case", CASES, ids=_label)
@pytest.mark.parametrize("clause", CLAUSES, ids=_label)
def test_contract(clause, case, architecture):
    name, fields = case
    clause(lambda: METHODS[name](**fields), architecture)
