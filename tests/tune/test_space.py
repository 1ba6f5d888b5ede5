"""What is searched."""

import optuna
import pytest

from smoothtune.core.regularizer import Between
from smoothtune.methods import METHODS
from smoothtune.tune.space import Space

RATES = (1e-5, 1e-3)


@pytest.mark.parametrize("name", sorted(set(METHODS) - {"plain"}))
def test_every_method_says_what_is_worth_searching(name: str) -> None:
    space = METHODS[name].search_space()
    assert space, f"{name} has nothing to search: declare `searched`"
    for field, to in space.items():
        assert to.low < to.high
        default = getattr(METHODS[name](), field)
        if default is not None:
            assert to.low <= default <= to.high
        for value in (to.low, to.high):
            METHODS[name](**{field: value})


def test_a_method_with_a_term_of_its_own_searches_its_share() -> None:
    assert METHODS["lnsr"].search_space() == {"share": Between(0.09, 1.0, log=True)}
    assert METHODS["jacobian"].search_space() == {"share": Between(0.009, 0.1, log=True)}
    assert METHODS["plain"].search_space() == {}


def test_every_method_begins_in_the_middle() -> None:
    space = Space({"lnsr": {}, "reinit": {}, "mixout": {}}, RATES, (2.0, 4.0, 8.0))
    starts = space.starts()
    assert [start["method"] for start in starts] == ["lnsr", "reinit", "mixout"]
    assert starts[0]["lnsr.share"] == pytest.approx(0.3)
    assert starts[1]["reinit.layers"] == 2
    assert starts[2]["mixout.p"] == pytest.approx(0.475)
    assert all(start["learning_rate"] == pytest.approx(1e-4) for start in starts)
    assert {start["epochs"] for start in starts} == {4.0}


def test_fields_that_are_set_are_not_searched() -> None:
    space = Space({"lnsr": {"weight": 2.0}, "mixout": {"p": 0.3}}, RATES, (2.0,))
    assert space.searched == {"lnsr": {}, "mixout": {}}
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    found = [space.suggest(study.ask()) for _ in range(10)]
    fields = {"lnsr": {"weight": 2.0}, "mixout": {"p": 0.3}}
    assert all(setting.fields == fields[setting.method] for setting in found)


def test_suggestions_stay_within_the_ranges_and_are_what_is_shown() -> None:
    space = Space({"lnsr": {}, "reinit": {}}, (3e-5, 3e-5), (1.0, 2.5))
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    for _ in range(30):
        setting = space.suggest(study.ask())
        assert setting.learning_rate == 3e-5
        assert setting.epochs in (1.0, 2.5)
        if setting.method == "lnsr":
            share = setting.fields["share"]
            assert 0.09 <= share <= 1.0
            assert f"share {share}" in setting.describe()
        else:
            assert setting.fields["layers"] in (1, 2, 3)
            assert isinstance(setting.fields["layers"], int)


def test_the_description_of_a_setting() -> None:
    space = Space({"lnsr": {"tokens": "pooled"}}, (3e-5,), (1.0,))
    study = optuna.create_study()
    study.enqueue_trial({"lnsr.share": 0.41236})
    told = space.suggest(study.ask()).describe()
    assert told == "lnsr with tokens pooled, share 0.412, learning rate 3e-05, 1 epoch"


def test_between_is_even_on_its_scale() -> None:
    assert Between(0.01, 1.0, log=True).log
    assert not Between(0.0, 1.0).log
