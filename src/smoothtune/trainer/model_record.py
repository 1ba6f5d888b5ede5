"""What a regularized trainer leaves beside its model: a record of the training, and its card."""

import json
import warnings
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCard
from transformers import Trainer
from transformers.modelcard import TASK_MAPPING

from smoothtune.core.objective import Objective
from smoothtune.device import device_name
from smoothtune.files import RESULT, versions, write_json
from smoothtune.nn.architecture import unwrap
from smoothtune.nn.model_facts import declaring
from smoothtune.report.page import render
from smoothtune.trainer.binding import Binding
from smoothtune.trainer.run_record import describe_run

HEADING = "## Regularization"
TIMES = ("_runtime", "_per_second")  # what the Trainer measures of an evaluation itself


def write_record(binding: Binding, folder: Path) -> None:
    """Write ``result.json``, with the keys that `smoothtune train` gives it.

    The task is not known here, and null; steps and seconds are those after the checkpoint that a
    run was resumed from. ``arguments`` and ``run`` come on top. Another's file of this name stays
    as it is, with a warning.
    """
    path = folder / RESULT
    if path.exists() and b'"method_versions"' not in path.read_bytes():
        warnings.warn(
            f"{path} is not smoothtune's and stays: the record of the methods is not "
            "written; save the model to another folder to have it",
            stacklevel=2,
        )
        return
    trainer, objective = binding.trainer, binding.objective
    methods, model = objective.regularizers, getattr(trainer.model, "config", None)
    log = trainer.state.log_history
    seconds = [entry["train_runtime"] for entry in log if "train_runtime" in entry]
    source = getattr(model, "_name_or_path", "") or None
    content = {
        "task": None,
        "task_type": _task_type(trainer),
        "model": source,
        "methods": {name: method.settings() for name, method in methods.items()},
        "method_versions": {name: method.traits.version for name, method in methods.items()},
        "seed": trainer.args.seed,
        "metrics": last_scores(trainer),
        "applied": {name: x._asdict() for name, x in objective.strengths.applied().items()},
        "cost": {
            "train_seconds": sum(seconds),
            "steps": trainer.state.global_step,
            "epochs": trainer.state.epoch,
            "resumed_from_step": binding.began_at,
            "device": device_name(trainer.args.device),
        },
        "data": {"train": _rows(trainer.train_dataset), "validation": _rows(trainer.eval_dataset)},
        "fingerprints": {
            "data": getattr(trainer.train_dataset, "_fingerprint", None),
            "base_commit": getattr(model, "_commit_hash", None),
        },
        "log_history": log,
        "versions": versions(),
        "config": {"task": None, "model": source, "seed": trainer.args.seed},
        "arguments": trainer.args.to_sanitized_dict(),
        "run": describe_run(trainer, objective),
    }
    finite = json.loads(json.dumps(content, default=str), parse_constant=lambda _: None)
    write_json(path, finite)


def last_scores(trainer: Trainer) -> dict[str, float]:
    """Scores of the last evaluation of the weights that the model has, without ``eval_``.

    Evaluations in the training are of other weights, but for that after the update whose weights
    were kept. Several validation sets have an entry in the log each. Empty if there was none.
    """
    ended, step, scores = False, None, dict[str, Any]()
    log: list[dict[str, Any]] = trainer.state.log_history
    for entry in reversed(log):
        ended |= "train_runtime" in entry
        own = {
            name.removeprefix("eval_"): value
            for name, value in entry.items()
            if name.startswith("eval_") and not name.endswith(TIMES)
        }
        if not own or (ended and entry["step"] != kept_step(trainer)):
            continue
        if scores and entry["step"] != step:
            break
        step, scores = entry["step"], own | scores
    return scores


def kept_step(trainer: Trainer) -> int:
    """The update whose weights the model has after a training."""
    best = trainer.state.best_model_checkpoint if trainer.args.load_best_model_at_end else None
    return int(Path(best).name.rpartition("-")[2]) if best else trainer.state.global_step


def extend_card(trainer: Trainer, objective: Objective, path: Path) -> None:
    """Add methods, scores and the tag smoothtune to a model card; once."""
    card = ModelCard.load(path)
    tags = card.data.get("tags") or []
    tags = [tags] if isinstance(tags, str) else list(tags)
    card.data["tags"] = list(dict.fromkeys([*tags, "smoothtune"]))
    if not card.data.eval_results:
        card.data.eval_results = _scores(trainer)
        card.data.model_name = Path(str(trainer.args.output_dir)).name
    if HEADING not in card.text:
        methods = {
            name: {
                field: list(value) if isinstance(value, tuple) else value
                for field, value in method.settings().items()
            }
            for name, method in objective.regularizers.items()
        }
        section = render(
            "regularization.md.jinja",
            {"heading": HEADING, "methods": methods, "versions": versions()},
        )
        card.text = f"{card.text.rstrip()}\n\n{section}"
    card.save(path)


def _scores(trainer: Trainer) -> list[EvalResult] | None:
    """As the hub reads them; of data that the Trainer has no name for."""
    task, scores = _task_type(trainer), last_scores(trainer)
    if task is None or not scores:
        return None
    return [
        EvalResult(
            task_type=task,
            dataset_type="unknown",
            dataset_name="unknown",
            dataset_split="validation",
            metric_type=name,
            metric_value=value,
        )
        for name, value in scores.items()
    ]


def _task_type(trainer: Trainer) -> str | None:
    """The hub's name of what the model is for, from its class."""
    assert trainer.model is not None
    name = type(declaring(unwrap(trainer.model))).__name__
    mappings: dict[str, Any] = dict(TASK_MAPPING)
    for task, mapping in mappings.items():
        for classes in mapping.values():
            if name in ([classes] if isinstance(classes, str) else classes):
                return task
    return None


def _rows(dataset: Any) -> Any:
    """Number of rows; None where it is not known."""
    if isinstance(dataset, dict):  # several, by name
        return {name: _rows(each) for name, each in dataset.items()}
    return len(dataset) if hasattr(dataset, "__len__") else None
