"""Rows that are longer than a model has positions for."""

import csv
from copy import deepcopy
from pathlib import Path

import pytest
import torch
from rich.console import Console
from transformers import (
    AutoModelForSequenceClassification,
    BartConfig,
    DistilBertConfig,
    MraConfig,
    NystromformerConfig,
    T5Config,
    YosoConfig,
)

from helpers.tiny_folder import tiny_bert
from smoothtune.cli.cost import price_list
from smoothtune.config.evaluation import Prediction, Settings
from smoothtune.config.run import RunConfig
from smoothtune.errors import ConfigError
from smoothtune.evaluation.predict import predict
from smoothtune.evaluation.run import evaluate
from smoothtune.models.positions import num_positions
from smoothtune.run.train import train
from smoothtune.testing import ARCHITECTURES, tiny_model

SILENT = Console(quiet=True)
MESSAGE = r"^max_seq_length: row 1 of the .*data has 42 tokens, and the model 32 positions: set it"
SMALL = {"vocab_size": 40, "d_model": 8, "d_ff": 8, "num_layers": 1, "num_heads": 2, "d_kv": 4}
NYSTROM = {"vocab_size": 40, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
NYSTROM |= {"intermediate_size": 8, "num_landmarks": 1, "segment_means_seq_len": 1}
OTHERS = {
    "bart": lambda: BartConfig(
        vocab_size=40,
        d_model=8,
        max_position_embeddings=32,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
    ),
    "distilbert": lambda: DistilBertConfig(
        vocab_size=40, dim=8, n_layers=1, n_heads=2, hidden_dim=8, max_position_embeddings=32
    ),
    "nystromformer": lambda: NystromformerConfig(**NYSTROM, max_position_embeddings=32),
    "yoso": lambda: YosoConfig(**NYSTROM, max_position_embeddings=32, use_expectation=True),
    "t5": lambda: T5Config(**SMALL, decoder_start_token_id=0),
}
WITH_32 = "bert", "deberta", "gpt2", "opt", "bart", "distilbert", "nystromformer", "yoso"
LIMITS = dict.fromkeys(WITH_32, 32)
LIMITS |= {"roberta": 30} | dict.fromkeys(["modernbert", "llama", "t5"])


@pytest.mark.parametrize("name", [*ARCHITECTURES, *OTHERS])
def test_the_model_takes_so_many_tokens_and_not_one_more(name: str) -> None:
    if name in ARCHITECTURES:
        model = tiny_model(name).eval()
    else:
        model = AutoModelForSequenceClassification.from_config(OTHERS[name]()).eval()
    limit = num_positions(model)
    assert limit == LIMITS[name]
    assert num_positions(deepcopy(model).to("meta")) == limit  # as a check before a run has it

    def run(length: int) -> None:
        ids = torch.full((1, length), 5)
        if model.config.is_encoder_decoder:
            ids[0, -1] = model.config.eos_token_id  # where they take the prediction
        with torch.no_grad():
            model(input_ids=ids, attention_mask=torch.ones_like(ids))

    run(limit or 100)
    if limit is not None:
        with pytest.raises((RuntimeError, IndexError)):
            run(limit + 1)


def test_mra_whose_attention_needs_a_gpu_counts_its_positions_from_2() -> None:
    config = MraConfig(**NYSTROM, max_position_embeddings=32)
    assert num_positions(AutoModelForSequenceClassification.from_config(config)) == 32


def test_positions_of_an_image_are_none_of_a_text() -> None:
    """Gemma 3 classifies texts with a model that has a part for images, too."""
    inside = torch.nn.ModuleDict({"position_embedding": torch.nn.Embedding(16, 2)})
    assert num_positions(torch.nn.ModuleDict({"text": inside})) == 16
    assert num_positions(torch.nn.ModuleDict({"vision_tower": inside})) is None


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with 32 positions, trained, and rows of which one has 42 tokens."""
    folder = tmp_path_factory.mktemp("positions")
    tiny_bert(folder / "base")
    write(folder / "short", 5)
    write(folder / "long", 40)
    train(run_of(folder, "short", folder / "model"), console=SILENT)
    return folder


def write(folder: Path, words: int) -> None:
    folder.mkdir()
    for name in ("train", "validation"):
        with (folder / f"{name}.csv").open("w", newline="") as file:
            rows = [("good film", "fine"), ("bad " * words, "poor"), ("good", "fine")]
            csv.writer(file).writerows([("text", "label"), *rows])


def run_of(folder: Path, data: str, to: Path, **changes) -> RunConfig:
    return RunConfig(
        task="quality",
        data=str(folder / data),
        text_columns=["text"],
        model=str(folder / "base"),
        output_dir=str(to),
        max_steps=1,
        **changes,
    )


def test_train_says_so_before_the_first_step(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=MESSAGE):
        train(run_of(folder, "long", tmp_path / "out"), console=SILENT)
    train(run_of(folder, "long", tmp_path / "out", max_seq_length=32), console=SILENT)


def test_evaluate(folder: Path, tmp_path: Path) -> None:
    names = {"model": str(folder / "model"), "output_dir": str(tmp_path / "out")}
    with pytest.raises(ConfigError, match=MESSAGE):
        evaluate(Settings(data=str(folder / "long"), **names), console=SILENT)


def test_predict(folder: Path, tmp_path: Path) -> None:
    names = {"model": str(folder / "model"), "to": str(tmp_path / "out.csv")}
    data = str(folder / "long" / "validation.csv")
    with pytest.raises(ConfigError, match=MESSAGE):
        predict(Prediction(data=data, **names), console=SILENT)
    assert predict(Prediction(data=data, max_seq_length=32, **names), console=SILENT) == 3


def test_cost(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"^--length: the model has 32 positions: set it to 32"):
        price_list(["lnsr"], str(folder / "base"), None, 2, 33, 1)
