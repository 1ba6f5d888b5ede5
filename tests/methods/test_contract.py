"""Every method of METHODS, and its variants, on every architecture."""

from itertools import product

import pytest

from smoothtune import METHODS
from smoothtune.testing import ARCHITECTURES, CLAUSES

VARIANTS = {
    "smart": [{"norm": "l2", "per": "token", "num_steps": 2, "mu": 0}, {"compat": "mt-dnn"}],
    "alum": [{"detach_targets": True, "units": "absolute", "epsilon": 0.1}],
    "sift": [{"norm": "l2", "num_steps": 2}, {"place": "output"}],
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


def _label(case):
    return "-".join([case[0], *(f"{k}={v}" for k, v in case[1].items())])


def products():
    """Fast: defaults for every clause on one architecture in turn, of which every other one is
    BERT; variants on BERT for every tenth clause in turn.
    """
    others = [name for name in ARCHITECTURES if name != "bert"]
    for (i, clause), (j, case) in product(enumerate(CLAUSES), enumerate(CASES)):
        for architecture in ARCHITECTURES:
            default, turn = not case[1], i + j
            chosen = others[turn // 2 % len(others)] if turn % 2 else "bert"
            fast = architecture == (chosen if default else "bert")
            fast = fast and (default or turn % 10 == 0)
            label = f"{clause.__name__}-{_label(case)}-{architecture}"
            marks = () if fast else pytest.mark.slow
            yield pytest.param(clause, case, architecture, id=label, marks=marks)


@pytest.mark.parametrize(("clause", "case", "architecture"), list(products()))
def test_contract(clause, case, architecture):
    name, fields = case
    clause(lambda: METHODS[name](**fields), architecture)
