"""Every method of METHODS on every task, in the Trainer, composed, and from a run file."""

from contextlib import nullcontext
from itertools import product

import pytest
import torch
import yaml

from helpers.heads import multi_label, question_answering, regression, token_classification
from helpers.training import Rows, arguments
from smoothtune import L2SP, LNSR, METHODS, Objective, SmoothTrainer
from smoothtune.config.run import load_config
from smoothtune.core.regularizer import Penalty
from smoothtune.testing import tiny_batch, tiny_model, with_weight

NO_REGRESSION = {"label_smoothing"}
SEEN = {"cwgnc": {"max_norm": 0.01}}  # fields without which a tiny model shows no effect


DROPOUT = 0.1  # of the models, on which R-Drop acts


def two_updates(make, regularizers, dropout):
    """Weights by name after two updates, and the terms of the second."""
    model, batch = make(dropout)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    objective = Objective(*regularizers).bind(model, optimizer)
    torch.manual_seed(2)
    for _ in range(2):
        objective(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()
    objective.detach()
    return model.state_dict(), objective.terms


def acts(name, make):
    """The terms of a method that is seen to move the weights elsewhere than the task loss alone."""
    method = with_weight(METHODS[name](**SEEN.get(name, {})))
    # what draws in every forward must differ by more than by other dropout masks
    dropout = 0.0 if method.traits.random_weights else DROPOUT
    weights, terms = two_updates(make, [method], dropout)
    plain, _ = two_updates(make, [], dropout)
    assert all(value.isfinite().all() for value in [*weights.values(), *terms.values()])
    moved = [not torch.equal(weight, plain[key]) for key, weight in weights.items()]
    assert any(moved) == (name != "plain")
    return terms


def on_tasks():
    """Every method on one task of four, in turn; the rest are slow tests."""
    makes = [regression, question_answering, token_classification, multi_label]
    for (i, name), (j, make) in product(enumerate(METHODS), enumerate(makes)):
        fast = (i + j) % 4 == 0
        yield pytest.param(name, make, marks=() if fast else pytest.mark.slow)


@pytest.mark.parametrize(("name", "make"), list(on_tasks()))
def test_acts_on_every_task(name, make):
    if name in NO_REGRESSION and make is regression:
        with pytest.raises(ValueError, match="regression"):
            acts(name, make)
        return
    terms = acts(name, make)
    if f"loss/{name}" in terms:
        assert terms[f"loss/{name}"] > 0  # for regression released codes are identically 0 here


@pytest.mark.parametrize("name", sorted(METHODS))
def test_in_the_trainer_composed_with_others(name, tmp_path):
    regularizers = (
        [with_weight(METHODS[name]()), L2SP(), LNSR(weight=1.0)]
        if name not in ("l2_sp", "lnsr")
        else [with_weight(METHODS[name]()), with_weight(METHODS["r3f"]())]
    )
    trainer = SmoothTrainer(
        model=tiny_model("bert", dropout=0.1),
        args=arguments(
            tmp_path,
            max_steps=2,
            per_device_train_batch_size=4,
            optim="adamw_torch",
            learning_rate=1e-3,
        ),
        train_dataset=Rows(8),
        regularizers=regularizers,
    )
    trainer.train()
    logs = trainer.state.log_history[0]
    parts = [value for key, value in logs.items() if key.startswith("loss/")]
    assert logs["loss"] == pytest.approx(sum(parts), rel=1e-3)
    assert trainer.objective.step == 2


@pytest.mark.parametrize("name", METHODS)
def test_from_a_run_file_with_every_field_written_out(name, tmp_path):
    settings = with_weight(METHODS[name]()).settings()
    run = {"task": "rte", "output_dir": "out", "methods": {name: settings}}
    file = tmp_path / "run.yaml"
    file.write_text(yaml.safe_dump(run))
    (regularizer,) = load_config(file).regularizers()
    assert type(regularizer) is METHODS[name]
    assert regularizer.settings() == settings
    if issubclass(METHODS[name], Penalty):
        assert load_config(file, methods=[f"{name}:weight=0"]).regularizers()[0].weight == 0


@pytest.mark.parametrize("name", METHODS)
def test_without_gradients_it_has_a_value_or_says_that_it_needs_them(name):
    objective = Objective(with_weight(METHODS[name]()))
    model = tiny_model("bert")
    objective.bind(model, torch.optim.SGD(model.parameters(), lr=0.1), 10)
    searches = METHODS[name].declared.group in ("worst case", "adversarial", "sharpness")
    told = pytest.raises(RuntimeError, match="follows gradients, and they are off.*validation")
    with torch.no_grad(), told if searches or name == "uegr" else nullcontext():
        assert objective(model, tiny_batch()).isfinite()
    objective.detach()


@pytest.mark.parametrize("name", METHODS)
def test_it_says_whether_it_acts_without_labels(name):
    method = with_weight(METHODS[name]())
    objective = Objective(method).attach(tiny_model("bert"))
    objective(objective.model, batch := tiny_batch())  # says that examples have one label
    del batch["labels"]
    if method.acts_without_labels:
        assert objective(objective.model, batch).requires_grad
        assert f"loss/{name}" in objective.terms
    else:
        with pytest.raises(ValueError, match="no method gives a loss without them"):
            objective(objective.model, batch)
    objective.detach()
