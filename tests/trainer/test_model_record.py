"""What a regularized trainer leaves beside its model."""

import json
from importlib.metadata import version

import pytest
import torch
from huggingface_hub import ModelCard
from transformers import AutoModelForSequenceClassification, AutoTokenizer, Trainer

from helpers.tiny_folder import tiny_bert
from helpers.training import Rows, arguments
from smoothtune import L2SP, LNSR, SmoothTrainer, regularize
from smoothtune.config.evaluation import Settings
from smoothtune.config.run import RunConfig
from smoothtune.device import device_name
from smoothtune.errors import ConfigError, ModelError, OutputError
from smoothtune.evaluation import load_predictor
from smoothtune.evaluation.settings import resolve, training_record
from smoothtune.models.load import load_base
from smoothtune.run.output import finished_result, refuse_folder
from smoothtune.tasks.presets import TASKS
from smoothtune.testing import tiny_model


@pytest.mark.parametrize("own", [False, True])
def test_record_and_card_name_the_methods(tmp_path, own: bool) -> None:
    settings = {
        "model": tiny_model("bert", num_labels=3, dtype=torch.float32),
        "args": arguments(tmp_path),
        "train_dataset": Rows(),
        "eval_dataset": Rows(16),
    }
    methods = [LNSR(weight=0.25), L2SP()]
    if own:
        trainer = SmoothTrainer(**settings, regularizers=methods)
    else:
        trainer = regularize(Trainer(**settings), *methods)
    trainer.train()
    loss = trainer.evaluate()["eval_loss"]
    trainer.save_model(str(tmp_path / "model"))
    record = json.loads((tmp_path / "model" / "result.json").read_text())
    assert record["methods"]["lnsr"]["weight"] == 0.25
    assert set(record["methods"]["l2_sp"]) == set(L2SP().settings())
    assert record["cost"]["steps"] == 1
    assert record["cost"]["train_seconds"] > 0
    assert record["cost"]["device"] == device_name(torch.device("cpu"))
    assert record["metrics"] == {"loss": loss}
    assert record["data"] == {"train": len(Rows()), "validation": 16}
    assert record["arguments"]["learning_rate"] == trainer.args.learning_rate
    assert record["versions"]["torch"] == version("torch")
    assert (tmp_path / "model" / "model.safetensors").exists()
    for _ in range(2):
        trainer.create_model_card(language="de")
        card = ModelCard.load(tmp_path / "README.md")
        assert "smoothtune" in card.data.tags
        (score,) = card.data.eval_results
        assert (score.metric_type, score.task_type) == ("loss", "text-classification")
        assert score.metric_value == pytest.approx(loss)
        assert "generated_from_trainer" in card.data.tags
        assert card.text.count("| lnsr | weight | 0.25 |") == 1
    trainer.save_model()
    assert training_record(str(tmp_path))["methods"] == record["methods"]


def test_the_record_has_what_was_applied_of_a_bounded_term(tmp_path) -> None:
    """As that of a run has; the log may have had no line of it."""
    trainer = SmoothTrainer(
        model=tiny_model("bert"),
        args=arguments(tmp_path, max_steps=3, logging_steps=9),
        train_dataset=Rows(),
        regularizers=[LNSR(), L2SP()],
    )
    trainer.train()
    trainer.save_model()
    applied = json.loads((tmp_path / "result.json").read_text())["applied"]
    assert applied == {"lnsr": trainer.objective.strengths.applied()["lnsr"]._asdict()}
    assert applied["lnsr"]["share"] > 0


def test_a_result_of_the_users_own_is_not_overwritten(tmp_path) -> None:
    """And numbers that are not finite, or no data, stop no save."""
    trainer = SmoothTrainer(
        model=tiny_model("bert", dtype=torch.float32),
        args=arguments(tmp_path),
        train_dataset=Rows(),
        regularizers=LNSR(weight=0.25),
    )
    trainer.train()
    trainer.log({"mine": float("nan"), "tensor": torch.ones(2)})
    (tmp_path / "result.json").write_text('{"accuracy": 1}')
    with pytest.warns(UserWarning, match="is not smoothtune's and stays"):
        trainer.save_model()
    assert (tmp_path / "result.json").read_text() == '{"accuracy": 1}'
    for _ in range(2):
        trainer.save_model(str(tmp_path / "other"))
    record = json.loads((tmp_path / "other" / "result.json").read_text())
    assert record["log_history"][-1]["mine"] is None


def test_rows_and_scores_of_several_validation_sets_are_told_by_name(tmp_path) -> None:
    trainer = SmoothTrainer(
        model=tiny_model("bert", dtype=torch.float32),
        args=arguments(tmp_path),
        train_dataset=Rows(),
        eval_dataset={"near": Rows(8), "far": Rows(16)},
        regularizers=LNSR(weight=0.25),
    )
    trainer.train()
    scores = trainer.evaluate()
    trainer.save_model()
    record = json.loads((tmp_path / "result.json").read_text())
    assert record["data"] == {"train": len(Rows()), "validation": {"near": 8, "far": 16}}
    losses = {f"{name}_loss": scores[f"eval_{name}_loss"] for name in ("near", "far")}
    assert record["metrics"] == losses


def test_a_folder_of_a_trainer_is_no_finished_run(tmp_path) -> None:
    """And asks an evaluation for the task."""
    trainer = SmoothTrainer(
        model=tiny_model("bert", dtype=torch.float32),
        args=arguments(tmp_path),
        train_dataset=Rows(),
        regularizers=LNSR(weight=0.25),
    )
    trainer.train()
    trainer.save_model()
    config = RunConfig(task="sst2", output_dir=str(tmp_path), methods={"lnsr": {"weight": 0.25}})
    assert finished_result(config) is None
    with pytest.raises(OutputError, match="holds a different run"):
        refuse_folder(tmp_path, config)
    with pytest.raises(ConfigError, match="--task: name the task the model was trained for"):
        resolve(
            Settings(model=str(tmp_path), output_dir=str(tmp_path / "out")),
            training_record(str(tmp_path)),
        )


def adapted(folder):
    """A classifier with adapters, on a base model with its tokenizer."""
    peft = pytest.importorskip("peft")
    torch.manual_seed(0)
    model = AutoModelForSequenceClassification.from_pretrained(folder, num_labels=2)
    adapters = peft.LoraConfig(task_type="SEQ_CLS", r=2, init_lora_weights="gaussian")
    return peft.get_peft_model(model, adapters)


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")
def test_saved_adapters_are_read_again(tmp_path):
    base = tiny_bert(tmp_path / "base")
    model = adapted(base)
    trainer = Trainer(
        model=model,
        args=arguments(tmp_path, max_steps=2),
        train_dataset=Few(8),
        processing_class=AutoTokenizer.from_pretrained(base),
    )
    regularize(trainer, L2SP()).train()
    trainer.save_model(str(tmp_path / "adapter"))
    batch = {"input_ids": torch.tensor([[3, 4, 5]]), "attention_mask": torch.ones(1, 3)}
    found = load_predictor(load_base(str(tmp_path / "adapter")), TASKS["rte"]).model(**batch).logits
    torch.testing.assert_close(found, model.eval()(**batch).logits, rtol=1e-4, atol=1e-6)
    record = json.loads((tmp_path / "adapter" / "result.json").read_text())
    assert record["task_type"] == "text-classification"  # that of the model below the adapters


class Few(Rows):
    """Of two classes, in the vocabulary of the tiny tokenizer."""

    def __getitem__(self, i):
        row = super().__getitem__(i)
        return row | {"input_ids": row["input_ids"] % 10, "labels": row["labels"] % 2}


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")
def test_adapters_without_a_config_say_what_is_missing(tmp_path):
    adapted(tiny_bert(tmp_path / "base")).save_pretrained(tmp_path / "adapter")
    with pytest.raises(ModelError, match=r"an adapter without the config.json.*save it there"):
        load_base(str(tmp_path / "adapter"))
