"""A row of padding alone, as a collator that fills up batches makes it."""

import pytest
import torch

from helpers.heads import question_answering, regression, token_classification
from smoothtune import METHODS, Objective
from smoothtune.testing import tiny_batch, tiny_model, with_weight

FIELDS = {
    "smart": [{"compat": "mt-dnn"}, {"norm": "l2"}],
    "alice": [{"compat": "vat-pytorch"}],
    "sift": [{"compat": "deberta"}],
    "neftune": [{"compat": "transformers"}],
    "r3f": [{"compat": "fairseq"}],
    "freelb": [{"norm": "linf"}, {"units": "absolute"}],
    "pgd": [{"norm": "linf"}],
    "lnsr": [
        {"noise": "in_manifold", "k": 5},
        {"rescale_over": "sequence", "reduction": "sum"},
        {"tokens": "pooled"},
    ],
    "jachess": [
        {"c": 0.1, "estimator": "projected"},
        {"c": 0.1, "factors": "logits", "reduction": "token_mean"},
    ],
    "jacobian": [{"num_probes": -1}],
    "cross_holder": [{"norm": "op"}],
    "uegr": [{"attack": "pgd", "random_start": True}],
}
CASES = [(name, fields) for name in METHODS for fields in [{}, *FIELDS.get(name, [])]]


def finite_after_an_update(method, model, batch):
    batch["attention_mask"][1] = 0
    model = model.float()
    batch = {key: v.float() if v.is_floating_point() else v for key, v in batch.items()}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    objective = Objective(method).bind(model, optimizer)
    objective(model, batch).backward()
    gradients = [weight.grad for weight in model.parameters() if weight.grad is not None]
    assert all(gradient.isfinite().all() for gradient in gradients)
    assert all(term.isfinite() for term in objective.terms.values())
    optimizer.step()
    assert all(weight.isfinite().all() for weight in model.parameters())


@pytest.mark.parametrize("architecture", ["bert", pytest.param("llama", marks=pytest.mark.slow)])
@pytest.mark.parametrize(("name", "fields"), CASES, ids=str)
def test_leaves_every_method_finite(name, fields, architecture):
    model, batch = tiny_model(architecture, dropout=0.1), tiny_batch()
    finite_after_an_update(with_weight(METHODS[name](**fields)), model, batch)


def methods_and_tasks():
    """Every method on one task, in turn; the rest are slow tests."""
    makes = [regression, question_answering, token_classification]
    for i, name in enumerate(METHODS):
        for j, make in enumerate(makes):
            marks = () if i % len(makes) == j else pytest.mark.slow
            yield pytest.param(name, make, marks=marks)


@pytest.mark.parametrize(("name", "make"), list(methods_and_tasks()))
def test_leaves_every_method_finite_on_other_tasks(name, make):
    if name == "label_smoothing" and make is regression:
        return  # refused
    finite_after_an_update(with_weight(METHODS[name]()), *make(0.1))
