"""The README.md of a trained model: how it was trained, from its result."""

from __future__ import annotations

import html
import json
import re
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from smoothtune.methods.describe import describe
from smoothtune.tasks.presets import KINDS


def model_card(result: dict[str, Any]) -> str:
    """Markdown with the hub's YAML header.

    Args:
        result: the content of ``result.json``.

    Returns:
        The card; every string from outside is escaped, so that it cannot become markup.
    """
    environment = Environment(
        loader=PackageLoader("smoothtune"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,  # `text` and `json` below escape for Markdown and YAML
    )
    environment.filters |= {"text": _text, "json": _json, "value": _value}
    config = result["config"]
    content = {
        "adapter": config.get("lora") is not None and not config.get("merge_adapter"),
        "methods": [describe(name) for name in result["methods"]],
        "auto_model": KINDS[result["task_type"]].auto_model.__name__,
    }
    return environment.get_template("model_card.md.jinja").render(result | content)


def _text(value: object) -> str:
    """One line of text without any meaning to Markdown or HTML."""
    line = html.escape(" ".join(str(value).split()), quote=False)
    return re.sub(r"([\\`*_{}\[\]|#!~$])", r"\\\1", line)


def _json(value: object) -> str:
    """A JSON literal, which is a YAML scalar too."""
    return json.dumps(value)


def _value(value: object) -> str:
    return f"{value:.4f}" if isinstance(value, float) else _text(value)
