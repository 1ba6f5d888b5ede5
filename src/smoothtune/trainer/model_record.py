"""What a regularized trainer leaves beside its model: a record of the methods, and their card."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from huggingface_hub import ModelCard
from transformers import Trainer

from smoothtune.core.objective import Objective
from smoothtune.files import versions, write_json
from smoothtune.report.page import render
from smoothtune.trainer.run_record import describe_run

RECORD = "smoothtune.json"
HEADING = "## Regularization"


def write_record(trainer: Trainer, objective: Objective, folder: Path) -> None:
    """Write ``smoothtune.json``: every field of every method, step, versions, and the run.

    Args:
        trainer: the trainer.
        objective: its methods.
        folder: that of the model.
    """
    methods = objective.regularizers
    content = {
        "methods": {name: _fields(method) for name, method in methods.items()},
        "method_versions": {name: method.results_version for name, method in methods.items()},
        "steps": trainer.state.global_step,
        "epochs": trainer.state.epoch,
        "run": describe_run(trainer, objective),
        "versions": versions(),
    }
    write_json(folder / RECORD, content)


def extend_card(objective: Objective, card: Path) -> None:
    """Add the methods, and the tag smoothtune, to a model card; once."""
    found = ModelCard.load(card)
    tags = found.data.get("tags") or []
    tags = [tags] if isinstance(tags, str) else list(tags)
    found.data["tags"] = list(dict.fromkeys([*tags, "smoothtune"]))
    if HEADING not in found.text:
        methods = {name: _fields(method) for name, method in objective.regularizers.items()}
        section = render(
            "regularization.md.jinja",
            {"heading": HEADING, "methods": methods, "versions": versions()},
        )
        found.text = f"{found.text.rstrip()}\n\n{section}"
    found.save(card)


def _fields(method: Any) -> dict[str, Any]:
    """Fields of a method as JSON has them."""
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in method.settings().items()
    }
