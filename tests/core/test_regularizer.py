"""The bases of all methods: fields, their limits, and what they declare."""

from dataclasses import replace

import pytest

from smoothtune import Objective
from smoothtune.core.regularizer import LossTerm, Penalty, Regularizer, TaskLoss, method
from smoothtune.core.traits import Between, Traits
from smoothtune.errors import ConfigError


@method("edits")
class Edits(Regularizer):
    size: float = 2.0


@method("term", Traits(points=(1,), small_difference=True))
class Term(Penalty):
    count: int = 3

    def loss(self, clean):
        return None


@method("curved", Traits(searched={"count": Between(1, 3)}))
class Curved(Term):
    twice: bool = True

    @property
    def traits(self):
        return replace(super().traits, derivative_order=2 if self.twice else 1)


@method("released")
class Released(Term):
    share: float | None = 0.3
    weight: float | None = None
    compat: str | None = None


@method("instead", Traits(needs_labels=True))
class Instead(TaskLoss):
    def loss(self, clean):
        return None


@pytest.mark.parametrize("cls", [Edits, Instead])
@pytest.mark.parametrize("field", ["weight", "share", "max_share", "every", "rows", "batches"])
def test_fields_of_a_penalty_belong_to_penalties_alone(cls, field):
    with pytest.raises(ConfigError, match=field):
        cls(**{field: 1})
    with pytest.raises(ConfigError, match="ramp_start"):
        cls(ramp_start=1)


def test_a_side_belongs_to_methods_with_a_loss():
    assert Instead(side="decoder").side == Term(side="decoder").side == "decoder"
    with pytest.raises(ConfigError, match="side"):
        Edits(side="decoder")


def test_a_loss_says_what_it_is_for():
    with pytest.raises(TypeError, match="make it a Penalty or a TaskLoss"):

        @method("unclear")
        class Unclear(Regularizer):
            def loss(self, clean):
                return None


@method("empty")
class Empty(Penalty):
    pass


def test_a_penalty_has_a_loss():
    with pytest.raises(TypeError, match="abstract method '?loss"):
        Empty()


@pytest.mark.parametrize("fields", [{"weight": -1}, {"every": 0}, {"batches": "none"}, {"sise": 1}])
def test_values_out_of_range_are_refused(fields):
    with pytest.raises(ConfigError):
        Term(**fields)


def test_a_wrong_field_is_named_with_what_to_write():
    """As a run file would have it, in the place of pydantic's text."""
    with pytest.raises(ConfigError) as told:
        Term(coumt=3, share=-1)
    assert str(told.value).split("\n") == [
        "Term: share: must be greater than 0, not -1",
        "Term: coumt: unknown field 'coumt'; did you mean 'count'? Known: batches, count, every, "
        "max_share, ramp_start, ramp_steps, rows, share, side, weight",
    ]
    with pytest.raises(ConfigError, match="3 is given without a name"):
        Term(3)


def test_settings_are_all_fields():
    assert Edits().settings() == {"size": 2.0}
    of_every_penalty = {"weight": 1.0, "every": 1, "rows": 1.0, "batches": "both"}
    of_every_penalty |= {"side": "encoder", "max_share": None, "ramp_start": 0, "ramp_steps": 0}
    assert Term().settings() == of_every_penalty | {"count": 3}
    assert Term(count=5).settings() == of_every_penalty | {"count": 5}


def test_what_a_method_declares():
    assert (Edits.name, Edits.declared, Edits().points()) == ("edits", Traits(), ())
    assert (Term().points(), Term().traits.needs_float32) == ((1,), True)
    assert Curved().traits.derivative_order == 2
    assert Curved().traits.needs_float32
    assert not Curved(twice=False).traits.needs_float32
    assert (Curved.search_space(), Edits.search_space()) == ({"count": Between(1, 3)}, {})
    assert list(Term.search_space()) == ["share"]
    assert Term().state_dict() == {}
    assert Term().refuses(None) is None
    first, second = Term(), Term()
    first.diagnostics["x"] = 1
    assert second.diagnostics == {}


def test_when_a_loss_acts():
    assert Instead().acts(0, labeled=True)
    assert not Instead().acts(0, labeled=False)
    assert not Instead().acts_without_labels
    seldom = Term(every=3, batches="unlabeled", ramp_start=3)
    assert [step for step in range(8) if seldom.acts(step, labeled=False)] == [3, 6]
    assert not any(seldom.acts(step, labeled=True) for step in range(8))
    assert issubclass(Penalty, LossTerm)


def test_only_what_is_on_is_a_part_of_an_objective():
    objective = Objective(Term(weight=0.0), Edits(), Instead())
    assert list(objective.regularizers) == ["edits", "instead"]
    with pytest.raises(ValueError, match="instead and instead each replace the task loss"):
        Objective(Instead(), Instead())


def test_released_code_has_a_weight_of_one_unless_it_is_given():
    def strength(**fields):
        term = Released(**fields)
        return term.weight, term.share

    assert strength() == (None, 0.3)
    assert strength(compat="theirs") == (1.0, None)
    assert strength(compat="theirs", weight=2.0) == (2.0, None)
    assert strength(compat="theirs", share=0.2) == (None, 0.2)


@pytest.mark.parametrize(("duration", "updates"), [(0.0, 0), (0.25, 5), (0.5, 10), (1, 1), (7, 7)])
def test_a_duration_below_one_is_a_fraction_of_the_run(duration, updates):
    term = Term()
    term.num_training_steps = 20
    assert term.updates(duration) == updates
