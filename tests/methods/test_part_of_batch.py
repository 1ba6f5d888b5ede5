"""The contract of every method that takes its term on a part of the batch, for rows=0.5."""

from functools import partial
from itertools import product

import pytest
import torch

from smoothtune import METHODS
from smoothtune.core import row_subset
from smoothtune.core.regularizer import Penalty
from smoothtune.testing import ARCHITECTURES, contract

# is_mean_over_examples does not hold: two halves have other rows than the whole
CLAUSES = [
    contract.reaches_parameters,
    contract.leaves_ambient_draws,
    contract.ignores_padding,
    contract.has_right_gradient,
    contract.leaves_no_trace,
    contract.resumes,
    contract.survives_checkpointing,
]
PENALTIES = {name: cls for name, cls in METHODS.items() if issubclass(cls, Penalty)}
TAKEN = [name for name, cls in PENALTIES.items() if cls.why_all_rows() is None]


def products():
    """Every clause of every method on one architecture in turn, a seventh of them fast."""
    names = list(ARCHITECTURES)
    for (i, clause), (j, name) in product(enumerate(CLAUSES), enumerate(TAKEN)):
        marks = () if (i + 2 * j) % 7 == 0 else pytest.mark.slow
        yield pytest.param(clause, name, names[(i + j) % len(names)], marks=marks)


@pytest.mark.parametrize(("clause", "name", "architecture"), list(products()))
def test_contract_on_half_the_batch(clause, name, architecture, monkeypatch):
    if clause is contract.has_right_gradient:  # of one function, so on the same rows
        monkeypatch.setattr(row_subset, "draw_rows", lambda *_: torch.tensor([1, 3]))
    if clause is contract.survives_checkpointing:  # which has a clean pass of the rows' own
        monkeypatch.setattr(row_subset, "_has_masks_by_row", lambda *_: False)
    fields = {"weight": 1.0} if PENALTIES[name]().share else {}
    clause(partial(METHODS[name], rows=0.5, **fields), architecture)


def test_these_methods_take_their_term_on_a_part():
    terms = {"alum", "cross_holder", "jachess", "jacobian", "lnsr", "r3f", "r4f", "sift", "smart"}
    assert set(TAKEN) == terms | {"vat"}
    for name in PENALTIES.keys() - TAKEN:
        with pytest.raises(ValueError, match="so rows is 1"):
            METHODS[name](rows=0.5)
