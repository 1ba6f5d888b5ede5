"""Run a study: finished cells are kept, missing ones are run, failures are reported."""

import shutil
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from textwrap import shorten
from typing import Any

from rich.console import Console

from smoothtune.console import Bar, say, tracked
from smoothtune.device import SLOW_BFLOAT16, slow_at_bfloat16
from smoothtune.errors import OutputError, Stopped, counted, printable
from smoothtune.files import check_owned, owned, refuse_other_files
from smoothtune.run.callbacks import Signals
from smoothtune.run.output import CHECKPOINTS
from smoothtune.study.config import Study
from smoothtune.study.description import write_description
from smoothtune.study.plan import SELECTION, Plan
from smoothtune.study.pool import Ended, Pool, default_jobs
from smoothtune.study.records import (
    CELLS,
    FOLDERS,
    NOT_SUPPORTED,
    RESULTS,
    STUDY,
    Cell,
    Records,
    forget,
)
from smoothtune.study.worker import MODELS, WORK

ATTEMPTS = 2
SEARCH = "search.json"
"""What the folder of `smoothtune tune` holds, which has cells, too."""
BESIDE_TITLE = 30
"""Columns of a terminal that a bar with its count and time needs."""
TRIED_AGAIN = ("killed", "out of memory")
"""May be the machine's fault; any other failure would be repeated."""


class Progress(Bar):
    """A bar in a terminal, and a line for every cell that ended."""

    def __init__(self, console: Console, unit: str, records: Records | None = None) -> None:
        super().__init__(console, unit)
        self.records = records

    def working(self, cells: Iterable[Cell]) -> None:
        """Show in a terminal which cells run now: a long run moves the bar seldom."""
        first, *others = (cell.title for cell in cells)
        more = f" and {len(others)} more" if others else ""
        room = max(self.console.width - BESIDE_TITLE, 1)
        text = shorten(f"{self.title}: {printable(first)}{more}", room, placeholder="…")
        self.bar.update(self.row, description=text)

    def ended(self, ended: Ended, *, again: bool) -> None:
        """A cell has ended, and may be tried again."""
        if not again:
            self.advance()
        outcome = f"{ended.status}: {ended.message}" + "; tried again" * again
        if ended.status == "done":
            row = self.records.row(ended.cell.id) if self.records else None
            if row is None or row.score is None:
                return
            outcome = f"{row.score:.4f}"
        say(self.console, f"{self.done}/{self.total} {ended.cell.title}: {outcome}")


def run_study(
    study: Study,
    output_dir: str | Path,
    *,
    jobs: int | None = None,
    console: Console | None = None,
    command: Sequence[str] = (),
) -> dict[str, Any]:
    """Run what is missing in a study's folder and write its report.

    Args:
        study: the study.
        output_dir: its folder. Cells that it holds already are kept; those that are not in the
            study, because the file has changed, are left alone.
        jobs: cells that run at once; None: as cores and memory allow.
        console: where to print.
        command: how the study was started.

    Returns:
        The content of ``results.json``.

    Raises:
        ConfigError, DataError, ModelError: before the first cell, if a run cannot work.
        OutputError: the folder holds something else, or is in use.
        Stopped: SIGINT or SIGTERM came; the same command goes on.
    """
    from smoothtune.study.report.page import write_study_report

    console = console or Console()
    claim = claimed(Path(output_dir), (STUDY, CELLS), "study", (WORK, SELECTION))
    with claim as folder, Signals() as signals:
        if (folder / SEARCH).exists():
            raise OutputError(f"{folder} holds a search of smoothtune; choose another output_dir")
        plan, records = Plan(study, folder), Records(folder)
        say(console, f"{study.name}: reading data and weights")
        pool: Pool | None = None
        try:
            for stage in ("selection", "final"):
                choices = plan.choices(records) if stage == "final" else {}
                cells = plan.final(choices) if stage == "final" else plan.selection_cells()
                cells = list({cell.id: cell for cell in cells}.values())
                missing = _missing(cells, records, console)
                write_description(plan, folder, cells, choices, command)
                if stage == "final":
                    _tell_ignored(console, records, plan, cells)
                    if study.config.keep_models:
                        _tell_without_model(console, records, cells)
                if not missing:
                    continue
                if any(cell.config.bf16 for cell in missing) and slow_at_bfloat16():
                    say(console, SLOW_BFLOAT16)
                if pool is None:
                    size = jobs or default_jobs(plan.weight_bytes())
                    pool = Pool(folder, size, keep_models=study.config.keep_models)
                with Progress(console, "runs", records) as progress:
                    progress.start(study.name, len(cells))
                    if kept := len(cells) - len(missing):
                        say(console, f"{kept} of {len(cells)} runs are done already")
                        progress.skip(kept)
                    execute(missing, pool, progress, signals)
        finally:
            if pool is not None:
                pool.stop()
        return write_study_report(study, plan, folder, console)


def _missing(cells: Sequence[Cell], records: Records, console: Console) -> list[Cell]:
    """Cells without a record; the others need their checkpoints no more."""
    missing = []
    with tracked(cells, "reading records", console) as shown:
        for cell in shown:
            if records.row(cell.id) is None:
                missing.append(cell)
            else:  # killed, perhaps, when its record was written
                forget(cell, "done", records.folder / CHECKPOINTS)
    return missing


def failed_runs(content: Mapping[str, Any]) -> str:
    """How many runs of a study left no result, in words; empty if all did. NaN is a result.

    A run that is not supported counts if its method has no run at all.
    """
    ran = {run["method"] for run in content["rows"] if run["status"] in RESULTS}
    no_failure = (*RESULTS, NOT_SUPPORTED)
    status = [run["status"] for run in content["failures"] if run["status"] not in no_failure]
    left_out = [run for run in content["rows"] if run["status"] == NOT_SUPPORTED]
    status += [NOT_SUPPORTED for run in left_out if run["method"] not in ran]
    kinds = ", ".join(f"{count} {kind}" for kind, count in Counter(status).items())
    return f"{counted(len(status), 'run')} failed ({kinds})" * bool(status)


def execute(missing: Sequence[Cell], pool: Pool, progress: Progress, signals: Signals) -> None:
    """Run cells until all have ended.

    Raises:
        OutputError: the folder was moved or replaced meanwhile.
        Stopped: a signal came; unfinished cells have written nothing.
    """
    waiting, attempts = deque(missing), Counter[str]()
    running: dict[str, Cell] = {}
    while waiting or running:
        while waiting and len(running) < pool.size and not signals.received:
            cell = waiting.popleft()
            attempts[cell.id] += 1
            pool.start(cell)
            running[cell.id] = cell
        if signals.received:
            pool.stop()
            done = f"{progress.done} of {progress.total} {progress.unit} done"
            raise Stopped(f"stopped by a signal with {done}; the same command goes on")
        progress.working(running.values())
        all_ended = pool.ended(0.5, lambda: signals.received is not None)
        for ended in all_ended:
            running.pop(ended.cell.id, None)
            again = ended.status in TRIED_AGAIN and attempts[ended.cell.id] < ATTEMPTS
            progress.ended(ended, again=again)
            if again:
                waiting.append(ended.cell)
        if all_ended:
            check_owned(pool.folder)


def _tell_ignored(console: Console, records: Records, plan: Plan, cells: list[Cell]) -> None:
    """Say how many finished cells the study no longer asks for."""
    planned = {cell.id for cell in [*cells, *plan.selection_cells()]}
    others = [path for path in records.folder.glob(f"{CELLS}/*.json") if path.stem not in planned]
    if others:
        are = "is" if len(others) == 1 else "are"
        left_alone = f"{are} not among those asked for: left alone, and not in the report"
        say(console, f"{counted(len(others), 'finished run')} {left_alone}")


def _tell_without_model(console: Console, records: Records, cells: list[Cell]) -> None:
    """Say which finished runs have no model, as they were made without `keep_models`."""
    rows = [row for cell in cells if (row := records.row(cell.id)) and row.status == "done"]
    lost = [row.cell for row in rows if not (records.folder / MODELS / row.cell).is_dir()]
    if lost:
        has = "has" if len(lost) == 1 else "have"
        say(
            console,
            f"{counted(len(lost), 'finished run')} {has} no model in {records.folder / MODELS}: "
            f"without a record in {records.folder / CELLS} a run is made again, and keeps it",
        )


@contextmanager
def claimed(
    folder: Path, records: Sequence[str], kind: str, others: Sequence[str]
) -> Iterator[Path]:
    """Own a folder of cells, which holds one of the records, or nothing but `others`.

    Raises:
        OutputError: it holds something else, or is in use.
    """
    with owned(folder, *FOLDERS):
        if not any((folder / name).exists() for name in records):
            refuse_other_files(folder, kind, others)
        shutil.rmtree(folder / WORK, ignore_errors=True)  # of a killed process
        try:
            yield folder
        finally:
            shutil.rmtree(folder / WORK, ignore_errors=True)
