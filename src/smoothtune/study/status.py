"""What ``--status`` shows, also from another terminal while the study runs."""

from pathlib import Path

from rich.console import Console

from smoothtune.console import say, tracked
from smoothtune.files import is_owned
from smoothtune.study.records import Records, read_study


def show_status(folder: Path, console: Console) -> dict[str, int]:
    """Say how many cells of the study in a folder are done, running, failed and open.

    Without importing torch.

    Raises:
        OutputError: there is no study.
    """
    study, records = read_study(folder), Records(folder)
    last = {line["cell"]: line["event"] for line in records.log()}
    states: dict[str, list[str]] = {"done": [], "running": [], "failed": [], "open": []}
    at_work = is_owned(folder)
    with tracked(study.cells, "reading records", console) as shown:
        for cell in shown:
            if records.row(cell.id):
                states["done"].append(cell.title)
            elif at_work and last.get(cell.id) == "start":
                states["running"].append(cell.title)
            elif failure := records.failure(cell.id):
                how = f"{failure['status']}: {failure['message']}"
                states["failed"].append(f"{cell.title}: {how}")
            else:
                states["open"].append(cell.title)
    counts = {name: len(titles) for name, titles in states.items()}
    total = len(study.cells)
    say(console, f"{study.name}: {counts['done']} of {total} runs done")
    for name in ("running", "failed"):
        for title in states[name]:
            say(console, f"{name}: {title}")
    if not at_work and counts["done"] < total:
        say(console, "no process is running it; the same command continues it")
    return counts
