"""The model card (README.md) of a trained model, from its ``result.json``."""

from __future__ import annotations

from typing import Any

from smoothtune.methods.describe import describe
from smoothtune.report.page import render
from smoothtune.tasks.presets import TASK_CLASSES


def model_card(result: dict[str, Any]) -> str:
    """Markdown with the hub's YAML header.

    Args:
        result: the content of ``result.json``.

    Returns:
        The card; names and messages from data and files are escaped, so that they are no markup.
    """
    config = result["config"]
    content = {
        "adapter": config.get("lora") is not None and not config.get("merge_adapter"),
        "methods": [describe(name) for name in result["methods"]],
        "auto_model": TASK_CLASSES[result["task_type"]].auto_model.__name__,
    }
    return render("model_card.md.jinja", result | content)
