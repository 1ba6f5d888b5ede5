"""The method that ``auto`` stands for: what a study has shown, or nothing."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

AUTO = "auto"
NONE_YET = (
    "none yet: no study of this project has shown a method that beats plain fine-tuning on all of "
    "its tasks; name one, see `smoothtune methods`"
)


def recommended() -> dict[str, Any]:
    """What ``recommended.json`` holds.

    Returns:
        ``methods``: fields by method, or None; ``evidence``: the numbers behind it, or None.
    """
    text = (files("smoothtune") / "recommended.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)
    return found
