"""What a regularized trainer leaves beside its model."""

import json

import pytest
import torch
from huggingface_hub import ModelCard
from transformers import Trainer

from helpers.training import Rows, arguments
from smoothtune import L2SP, LNSR, SmoothTrainer, regularize
from smoothtune.testing import tiny_model


@pytest.mark.parametrize("own", [False, True])
def test_record_and_card_name_the_methods(tmp_path, own: bool) -> None:
    settings = {
        "model": tiny_model("bert", num_labels=3, dtype=torch.float32),
        "args": arguments(tmp_path),
        "train_dataset": Rows(),
    }
    methods = [LNSR(weight=0.25), L2SP()]
    if own:
        trainer = SmoothTrainer(**settings, regularizers=methods)
    else:
        trainer = regularize(Trainer(**settings), *methods)
    trainer.train()
    trainer.save_model(str(tmp_path / "model"))
    record = json.loads((tmp_path / "model" / "smoothtune.json").read_text())
    assert record["methods"]["lnsr"]["weight"] == 0.25
    assert set(record["methods"]["l2_sp"]) == set(L2SP().settings())
    assert record["steps"] == 1
    assert record["versions"]["torch"] == torch.__version__
    assert (tmp_path / "model" / "model.safetensors").exists()
    for _ in range(2):
        trainer.create_model_card(language="de")
        card = ModelCard.load(tmp_path / "README.md")
        assert "smoothtune" in card.data.tags
        assert "generated_from_trainer" in card.data.tags
        assert card.text.count("| lnsr | weight | 0.25 |") == 1
    trainer.save_model()
    assert (tmp_path / "smoothtune.json").exists()
