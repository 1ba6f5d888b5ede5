"""What ``--status`` shows, also from another terminal while the study runs."""

from pathlib import Path

from rich.console import Console

from smoothtune.console import say, tracked
from smoothtune.files import is_owned
from smoothtune.study.records import NOT_SUPPORTED, Records, read_study


def show_status(folder: Path, console: Console) -> dict[str, int]:
    """Say how many cells of the study in a folder are done, running, left out, failed and open.

    Without importing torch.

    Raises:
        OutputError: there is no study.
    """
    study, records = read_study(folder), Records(folder)
    last = {line["cell"]: line["event"] for line in records.log()}
    names = ("done", "running", NOT_SUPPORTED, "failed", "open")
    states: dict[str, list[str]] = {name: [] for name in names}
    at_work = is_owned(folder)
    with tracked(study.cells, "reading records", console) as shown:
        for cell in shown:
            if records.row(cell.id):
                states["done"].append(cell.title)
            elif at_work and last.get(cell.id) == "start":
                states["running"].append(cell.title)
            elif failure := records.failure(cell.id):
                status, message = failure["status"], failure["message"]
                if status == NOT_SUPPORTED:
                    states[NOT_SUPPORTED].append(f"{cell.title}: {message}")
                else:
                    states["failed"].append(f"{cell.title}: {status}: {message}")
            else:
                states["open"].append(cell.title)
    counts = {name.replace(" ", "_"): len(titles) for name, titles in states.items()}
    total = len(study.cells)
    say(console, f"{study.name}: {counts['done']} of {total} runs done")
    for name in ("running", NOT_SUPPORTED, "failed"):
        for title in states[name]:
            say(console, f"{name}: {title}")
    if not at_work and counts["done"] + counts["not_supported"] < total:
        say(console, "no process is running it; the same command continues it")
    return counts
