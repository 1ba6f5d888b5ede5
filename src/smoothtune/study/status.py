"""What ``--status`` shows, also from another terminal while the study runs."""

from __future__ import annotations

import re
from pathlib import Path

from rich.console import Console

from smoothtune.console import say, tracked
from smoothtune.errors import OutputError
from smoothtune.files import is_owned, read_json
from smoothtune.study.records import STUDY, Records

CELL_ID = re.compile(r"[0-9a-f]{16}")
"""An id becomes part of a path."""


def show_status(folder: Path, console: Console) -> dict[str, int]:
    """Say how far the study in a folder is, without importing torch.

    Returns:
        Number of cells that are done, running, failed and open; running ones only if a study is
        at work on the folder now.

    Raises:
        OutputError: there is no study.
    """
    study = read_json(folder / STUDY)
    if study is None:
        raise OutputError(f"{folder} holds no study")
    cells = study.get("cells")
    if not isinstance(cells, list) or not all(_is_named(cell) for cell in cells):
        raise OutputError(f"{folder / STUDY} lists no runs: run the study's command again")
    records = Records(folder)
    last = {line["cell"]: line["event"] for line in records.log()}
    states: dict[str, list[str]] = {"done": [], "running": [], "failed": [], "open": []}
    at_work = is_owned(folder)
    with tracked(cells, "reading records", console) as shown:
        for cell in shown:
            if records.row(cell["id"]):
                states["done"].append(cell["title"])
            elif at_work and last.get(cell["id"]) == "start":
                states["running"].append(cell["title"])
            elif failure := records.failure(cell["id"]):
                how = f"{failure['status']}: {failure['message']}"
                states["failed"].append(f"{cell['title']}: {how}")
            else:
                states["open"].append(cell["title"])
    counts = {name: len(titles) for name, titles in states.items()}
    total = len(cells)
    say(console, f"{study.get('name')}: {counts['done']} of {total} runs done")
    for name in ("running", "failed"):
        for title in states[name]:
            say(console, f"{name}: {title}")
    if not at_work and counts["done"] < total:
        say(console, "no process is running it; the same command continues it")
    return counts


def _is_named(cell: object) -> bool:
    if not isinstance(cell, dict):
        return False
    return isinstance(cell.get("title"), str) and bool(CELL_ID.fullmatch(str(cell.get("id"))))
