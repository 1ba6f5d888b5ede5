"""AdamW without bias correction, and models with random weights."""

from pathlib import Path

import pytest
import torch
from rich.console import Console
from transformers import AutoModelForSequenceClassification

from helpers.tiny_folder import tiny_bert, tiny_data
from smoothtune.config.run import load_config
from smoothtune.errors import ConfigError
from smoothtune.run.optimizer import UncorrectedAdamW
from smoothtune.run.train import fit

QUIET = Console(quiet=True)


def test_moments_are_not_corrected():
    """Three steps by hand, of one weight; the corrected optimizer begins with a step of lr."""
    lr, decay, gradients = 0.1, 0.2, [0.5, -1.0, 2.0]
    weight = torch.tensor([3.0], dtype=torch.float64, requires_grad=True)
    optimizer = UncorrectedAdamW([weight], lr=lr, betas=(0.9, 0.99), eps=1e-8, weight_decay=decay)
    w, m, v = 3.0, 0.0, 0.0
    for g in gradients:
        weight.grad = torch.tensor([g], dtype=torch.float64)
        optimizer.step()
        m, v = 0.9 * m + 0.1 * g, 0.99 * v + 0.01 * g * g
        w = w - lr * decay * w - lr * m / (v**0.5 + 1e-8)
        assert weight.item() == pytest.approx(w, rel=1e-12)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("inputs")
    tiny_bert(folder / "model")
    tiny_data(folder / "data")
    return folder


def trained(inputs: Path, folder: Path, **fields):
    """A model after some updates."""
    options = {
        "task": "quality",
        "text_columns": ["text"],
        "data": str(inputs / "data"),
        "model": str(inputs / "model"),
        "max_steps": 1,
        "learning_rate": 1e-3,
        "per_device_train_batch_size": 8,
        "eval_strategy": "no",
        "cost_steps": 0,
        "output_dir": "unset",
        **fields,
    }
    folder.mkdir()
    return fit(load_config(options=options), folder, resumable=False, console=QUIET).model


def test_the_first_update_of_a_run_is_longer(inputs: Path, tmp_path: Path):
    """(1 - 0.9) / sqrt(1 - 0.999) = 3.16 times, without clipping."""
    torch.manual_seed(0)
    fields = {"max_grad_norm": 0.0, "lr_scheduler_type": "constant"}
    before = trained(inputs, tmp_path / "before", learning_rate=1e-12, **fields)
    moved = {}
    for corrected in (True, False):
        model = trained(inputs, tmp_path / str(corrected), bias_correction=corrected, **fields)
        moved[corrected] = (model.classifier.weight - before.classifier.weight).norm().item()
    assert moved[False] / moved[True] == pytest.approx(0.1 / 0.001**0.5, rel=1e-3)


def test_a_model_from_scratch_has_random_weights_of_its_seed(inputs: Path, tmp_path: Path):
    fields = {"from_scratch": True, "learning_rate": 1e-12, "max_grad_norm": 0.0}
    models = [
        trained(inputs, tmp_path / str(number), seed=seed, **fields)
        for number, seed in enumerate((1, 1, 2))
    ]
    base = AutoModelForSequenceClassification.from_pretrained(inputs / "model", num_labels=2)
    name = "bert.encoder.layer.0.output.dense.weight"
    weights = [dict(model.named_parameters())[name] for model in (base, *models)]
    assert torch.equal(weights[1], weights[2])
    assert not torch.allclose(weights[1], weights[3], atol=1e-3)
    assert not torch.allclose(weights[0], weights[1], atol=1e-3)
    assert weights[1].std().item() == pytest.approx(base.config.initializer_range, rel=0.2)


def test_adapters_need_weights():
    with pytest.raises(ConfigError, match="--from-scratch: trains all weights"):
        load_config(options={"task": "rte", "from_scratch": True, "lora": {}, "output_dir": "x"})
