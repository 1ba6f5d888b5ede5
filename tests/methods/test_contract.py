"""Every method of METHODS, and its variants, on every architecture."""

import pytest

from smoothtune import METHODS
from smoothtune.testing import ARCHITECTURES, CLAUSES

VARIANTS = {
    "smart": [{"norm": "l2", "per": "token", "num_steps": 2, "mu": 0}, {"compat": "mt-dnn"}],
    "alum": [{"detach_targets": True, "units": "absolute", "epsilon": 0.1}],
    "sift": [{"norm": "l2", "num_steps": 2}],
    "freelb": [{"norm": "linf", "num_steps": 2}],
    "pgd": [{"norm": "linf"}],
    "lnsr": [{"noise": "in_manifold", "k": 5}, {"layer": 1, "reduction": "token_sum"}],
    "noise": [{"noise": "in_manifold", "k": 5}],
    "r3f": [{"noise": "normal", "sigma": 0.1}],
    "jachess": [
        {"c": 0.1},
        {"c": 0.1, "estimator": "projected", "factors": "softmax"},
        {"c": 0.1, "factors": "logits", "reduction": "token_mean", "difference": "symmetric"},
    ],
    "jacobian": [{"weight": 1.0}, {"weight": 1.0, "num_probes": -1}],
    "cross_holder": [{"weight": 1.0, "estimator": "projected"}, {"pairs": "sampled"}],
    "double_backprop": [{"weight": 1.0}],
    "mixout": [{"mask": "element", "head": True}],
    "cwgnc": [{"max_norm": 0.01}],
    "uegr": [
        {"combination": "model", "attack": "pgd", "beta": 1.0, "layer": 0, "passes": 1},
        {"attack": "none", "adaptive": "divergence", "mask": "bernoulli", "mask_every": 2},
        {"attack": "pgd", "random_start": True, "apply_to": "gradient", "scope": "global"},
    ],
    "child_tuning": [{"freeze": True}, {"mode": "D", "fisher_steps": 1}],
    "hype": [{"noise": "uniform", "sigma": 0.1}],
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
