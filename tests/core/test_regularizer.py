"""The base of all methods: fields, their limits, and what is said about them."""

from typing import ClassVar

import pytest
from pydantic import ValidationError
from pydantic.dataclasses import dataclass

from smoothtune.core.regularizer import STRICT, Regularizer


@dataclass(config=STRICT, kw_only=True)
class Edits(Regularizer):
    name: ClassVar[str] = "edits"
    renamed: ClassVar[dict[str, str]] = {"amount": "size"}

    size: float = 2.0


@dataclass(config=STRICT, kw_only=True)
class Term(Edits):
    name: ClassVar[str] = "term"
    renamed: ClassVar[dict[str, str]] = {"k": "count"}

    count: int = 3

    def loss(self, clean):
        return None


class Curved(Term):
    derivative_order = 2


@pytest.mark.parametrize("fields", [{"weight": 0.5}, {"weight": 2}, {"every": 2}])
def test_without_a_loss_term_a_method_is_on_or_off(fields):
    with pytest.raises(ValidationError, match="edits has no loss term"):
        Edits(**fields)
    method = Term(**fields)
    assert method.settings() == method.settings() | fields
    assert [Edits(weight=weight).weight for weight in (0, 1)] == [0, 1]


@pytest.mark.parametrize("fields", [{"weight": -1}, {"every": 0}, {"batches": "none"}, {"sise": 1}])
def test_values_out_of_range_are_refused(fields):
    with pytest.raises(ValidationError):
        Term(**fields)


def test_settings_are_all_fields():
    of_every_method = {"weight": 1.0, "every": 1, "rows": 1.0, "batches": "both"}
    of_every_method |= {"side": "encoder", "max_share": None}
    expected = of_every_method | {"ramp_start": 0, "ramp_steps": 0, "size": 2.0, "count": 3}
    assert Term().settings() == expected
    assert Term(size=5.0).settings() == expected | {"size": 5.0}


def test_what_a_method_does_by_default():
    assert not Edits().has_loss
    assert Term().has_loss
    assert (Term().derivative_order, Term().second_order) == (1, False)
    assert Curved().second_order
    assert Term().points() == ()
    assert (Term().needs_float32, Term().needs_whole_weights, Term().changes_dropout) == (
        False,
        False,
        False,
    )
    assert Term().state_dict() == {}
    assert Term().refuses(None) is None
    first, second = Term(), Term()
    first.diagnostics["x"] = 1
    assert second.diagnostics == {}


def test_former_names_of_a_class_and_its_bases():
    assert Term.former_names() == {"k": "count", "amount": "size", "on": "batches"}
    assert Edits.former_names() == {"amount": "size", "on": "batches"}
    with pytest.raises(ValidationError, match="field 'k' is called 'count' now; field 'amount' is"):
        Term(amount=1, k=2)
