"""Every method of METHODS on every task, in the Trainer, composed, and from a run file."""

import pytest
import torch
import yaml
from transformers import BertForQuestionAnswering, BertForTokenClassification

from helpers.training import Rows, arguments
from smoothtune import L2SP, LNSR, METHODS, Objective, SmoothTrainer
from smoothtune.config.run import load_config
from smoothtune.testing import ARCHITECTURES, tiny_batch, tiny_model

NO_REGRESSION = {"label_smoothing"}


def question_answering():
    config = ARCHITECTURES["bert"]()
    torch.manual_seed(0)
    model = BertForQuestionAnswering(config).double().train()
    batch = {key: value for key, value in tiny_batch().items() if key != "labels"}
    spans = {
        "start_positions": torch.tensor([1, 0, 2, 1]),
        "end_positions": torch.tensor([3, 2, 4, 2]),
    }
    return model, batch | spans


def token_classification():
    config = ARCHITECTURES["bert"]()
    config.num_labels = 3
    torch.manual_seed(0)
    model = BertForTokenClassification(config).double().train()
    batch = tiny_batch()
    labels = batch["input_ids"] % 3
    labels[:, 0] = -100
    return model, batch | {"labels": labels.masked_fill(batch["attention_mask"] == 0, -100)}


def regression():
    return tiny_model("bert", num_labels=1, dropout=0.1), tiny_batch(num_labels=1)


def trains(name, model, batch):
    """One update: finite terms, and the weights move."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    objective = Objective(METHODS[name]()).bind(model, optimizer)
    before = [(p, p.detach().clone()) for p in model.parameters()]
    objective(model, batch).backward()
    optimizer.step()
    terms = dict(objective.terms)
    objective.detach()
    assert all(torch.isfinite(value).all() for value in terms.values())
    assert any(not torch.equal(p, start) for p, start in before)
    return terms


@pytest.mark.parametrize("name", METHODS)
def test_regression(name):
    model, batch = regression()
    if name in NO_REGRESSION:
        with pytest.raises(ValueError, match="regression"):
            trains(name, model, batch)
        return
    terms = trains(name, model, batch)
    if f"loss/{name}" in terms:
        assert terms[f"loss/{name}"] > 0  # released codes are identically 0 here


@pytest.mark.parametrize("make", [question_answering, token_classification])
@pytest.mark.parametrize("name", METHODS)
def test_spans_and_tokens(name, make):
    terms = trains(name, *make())
    if f"loss/{name}" in terms:
        assert terms[f"loss/{name}"] > 0


@pytest.mark.parametrize("name", sorted(METHODS))
def test_in_the_trainer_composed_with_others(name, tmp_path):
    regularizers = (
        [METHODS[name](), L2SP(), LNSR()]
        if name not in ("l2_sp", "lnsr")
        else [METHODS[name](), METHODS["r3f"]()]
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
    settings = METHODS[name]().settings()
    run = {"task": "rte", "output_dir": "out", "methods": {name: settings}}
    file = tmp_path / "run.yaml"
    file.write_text(yaml.safe_dump(run))
    (regularizer,) = load_config(file).regularizers()
    assert type(regularizer) is METHODS[name]
    assert regularizer.settings() == settings
    assert load_config(file, methods=[f"{name}:weight=0"]).regularizers()[0].weight == 0
