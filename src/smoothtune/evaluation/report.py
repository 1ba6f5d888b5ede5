"""One page about one or several evaluations: HTML to read and send, or Markdown to paste."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

from rich.console import Console

from smoothtune.config.evaluation import OOD
from smoothtune.console import Bar
from smoothtune.errors import OutputError
from smoothtune.evaluation.calibration import error_of
from smoothtune.evaluation.compare import Run, comparison, load_runs, paired_differences
from smoothtune.evaluation.examples import example_tables
from smoothtune.evaluation.figures import SECTIONS, figures, value_text
from smoothtune.evaluation.findings import sentences
from smoothtune.evaluation.output import EVALUATION, MARKDOWN, PAGE
from smoothtune.files import make_folder, write_atomic
from smoothtune.report.page import (
    DASH,
    Block,
    Figures,
    Findings,
    Heading,
    Plot,
    Section,
    Sentence,
    Table,
    number,
    page_text,
    with_interval,
)

DAMAGE = (
    *(TypeError, ValueError, LookupError, AttributeError, ArithmeticError),
    *(StopIteration, RuntimeError),
)
"""The last two: a point that is not there; a generator turns the first of them into the second."""
LABELED = "ece by label: "
"""What follows is a label of the user's."""
SCORES = (
    "In brackets: 95 % bootstrap interval over the evaluated examples. Brier runs from 0 to 2 "
    "(several labels of a row: to 1), nll is in nats."
)
EXAMPLES = (
    "Of the rows drawn for the diagnostics, those that change most: first where the class changes, "
    "then by the probability of the first class. Before and after: predicted class with its "
    "probability, or score."
)


def write_report(
    folders: Sequence[Path],
    to: Path,
    *,
    names: Mapping[Path, str] | None = None,
    overwrite: bool = False,
    bar: Bar | None = None,
) -> str:
    """Write a report.

    Args:
        folders: output folders of `evaluate`, about one task; the first is what the others are
            compared with.
        names: by folder, of runs that are not to have their folder's name.
        to: a file that ends in .html, one page without scripts or links to other files, or .md.
        overwrite: replace the file.
        bar: shows which part is drawn.

    Returns:
        Why the HTML has no plots; empty if it has them, or needs none.

    Raises:
        OutputError: a folder holds no evaluation, the tasks differ, or the file exists or has
            another ending.
    """
    if to.suffix not in (".html", ".md"):
        raise OutputError(f"{to} must end in .html or .md")
    if to.exists() and not overwrite:
        raise OutputError(f"{to} exists; choose another name or replace it with --overwrite")
    runs = load_runs(folders, names)
    with _only_damage(runs):
        bar = bar or Bar(Console(quiet=True))
        drawn, no_plots = figures(runs, bar) if to.suffix == ".html" else ({}, "")
        page = _page(runs, to.suffix, drawn, no_plots)
    make_folder(to.parent)
    write_atomic(to, page)
    return no_plots


def write_pages(folder: Path, bar: Bar) -> str:
    """Write the pages of one evaluation into its folder, and their figures as files, too.

    Args:
        folder: of the evaluation.
        bar: shows which part is drawn.

    Returns:
        Why there are no figures; empty if there are, or it has no curve.
    """
    runs = load_runs([folder])
    with _only_damage(runs):
        drawn, no_plots = figures(runs, bar)
        pages = {to: _page(runs, Path(to).suffix, drawn, no_plots) for to in (PAGE, MARKDOWN)}
    for plot in chain.from_iterable(drawn.values()):
        plot.write(folder)
    for to, page in pages.items():
        write_atomic(folder / to, page)
    return no_plots


def _page(runs: Sequence[Run], suffix: str, drawn: Mapping[str, list[Plot]], no_plots: str) -> str:
    """The text of a page; Markdown has neither figures nor examples."""
    title = f"{runs[0].content['task']}: {', '.join(run.name for run in runs)}"
    if suffix == ".md":
        return page_text("md", title, [*_sections(runs, {}, "", [])])
    sections = _sections(runs, drawn, no_plots, example_tables(runs))
    return page_text("html", title, [*sections])


def headline_rows(folder: Path) -> tuple[list[list[str]], Sentence]:
    """The numbers of an evaluation that are looked at first, and what to do.

    Returns:
        Rows of a title and a number, with its 95 % interval where it has one; the verdict.
    """
    (run,) = runs = load_runs([folder])
    with _only_damage(runs):
        rows = [list(row) for row in score_table(runs).rows]
        if numbers := run.numbers("calibration"):
            rows += _calibration_rows(numbers)
        for curve in run.disturbances.values():
            area, clean = (number(curve.numbers.get(name)) for name in ("area", "clean"))
            rows.append([f"{curve.title}, area under the curve", f"{area}; without: {clean}"])
        return rows, sentences(run)[0]


def _calibration_rows(numbers: dict[str, Any]) -> Iterator[list[str]]:
    """The error that is judged, with that of a calibrated model; coverage and size of sets."""
    calibrated = number(numbers["ece_by_chance"]["high"])
    title = "ece, mean of labels" if "mean_ece_of_labels" in numbers else "ece"
    yield [title, f"{number(error_of(numbers))}; of a calibrated model up to {calibrated}"]
    for coverage, sets in numbers.get("prediction_sets", {}).items():
        measured = with_interval(sets["coverage"], (sets["low"], sets["high"]))
        size = f"{sets['mean_size']:.2f} classes"
        yield [f"coverage of sets for {coverage}", f"{measured}, {size}"]


@contextmanager
def _only_damage(runs: Sequence[Run]) -> Iterator[None]:
    """Turn what comes from numbers that are missing or of another kind into `OutputError`."""
    try:
        yield
    except OutputError:
        raise
    except DAMAGE as error:
        records = ", ".join(str(run.folder / EVALUATION) for run in runs)
        raise OutputError(
            f"{records}: a part lacks a number that is shown, or has another in its place "
            f"({type(error).__name__}: {error}); make it again with smoothtune evaluate"
        ) from error


def _sections(
    runs: Sequence[Run],
    drawn: Mapping[str, list[Plot]],
    no_plots: str,
    examples: Sequence[tuple[str, Table]],
) -> Iterator[Section]:
    yield Section("In short", [*_in_short(runs)])
    left_out = [f"Figures were left out: {no_plots}"] if no_plots else []
    yield Section("Scores", [SCORES, score_table(runs), *left_out])
    if examples:
        tables = [block for title, table in examples for block in (Heading(title), table)]
        yield Section("Examples", [EXAMPLES, *tables])
    for part, title in SECTIONS.items():
        yield Section(title, [*_of_part(runs, part, drawn.get(part, []))])
    yield Section("How it was made", [provenance_table(runs)])


def _in_short(runs: Sequence[Run]) -> Iterator[Block]:
    first, *others = runs
    for run in runs:
        to_do, *rest = sentences(run)
        yield from (Heading(run.name), to_do, Findings(rest))
    for run in others:
        yield comparison(first, run, paired_differences(first, run))


def _of_part(runs: Sequence[Run], part: str, drawn: Sequence[Plot]) -> Iterator[Block]:
    for run in runs:
        if why := run.content["parts"].get(part, {}).get("skipped"):
            yield f"Left out for {run.name}: {why}."
    if drawn:
        yield Figures(drawn)
    if (summary := summary_table(runs, part)).rows:
        yield summary


def score_table(runs: Sequence[Run]) -> Table:
    """Metrics with intervals, the training score, the gap, and the scores on other data."""
    numbers, main = [run.numbers("metrics") for run in runs], runs[0].main_metric
    train = [(each["train_metrics"] or {}).get(main) for each in numbers]
    rows = [
        *_score_rows([each["metrics"] for each in numbers], list(numbers[0]["metrics"])),
        [f"{main} on training rows", *map(number, train)],
        ["generalization gap", *(number(each["generalization_gap"]) for each in numbers)],
        ["best constant answer", *(number(run.baseline) for run in runs)],
    ]
    parts = dict.fromkeys(name for run in runs for name in run.content["parts"])
    for part in filter(lambda name: name.startswith(OOD), parts):
        scores = [run.numbers(part).get("metrics", {}) for run in runs]
        names = list(dict.fromkeys(name for each in scores for name in each))
        rows += _score_rows(scores, names, f" on {part.removeprefix(OOD)}")
    return _table(runs, rows)


def _score_rows(
    scores: Sequence[dict[str, Any]], names: Sequence[str], where: str = ""
) -> list[list[str]]:
    """A row for each metric: its name, and its value with the interval in every run."""
    rows = []
    for name in names:
        metrics = [each.get(name) for each in scores]
        cells = [with_interval(m["value"], (m["low"], m["high"])) if m else DASH for m in metrics]
        rows.append([name + where, *cells])
    return rows


def _table(runs: Sequence[Run], rows: list[list[str]], *, wraps: bool = False) -> Table:
    """Rows that have a title, and a cell for every run."""
    return Table(["", *(run.name for run in runs)], rows, wraps=wraps)


def summary_table(runs: Sequence[Run], part: str) -> Table:
    """The single numbers of a part, those of its curves among them."""
    columns = []
    for run in runs:
        numbers = _flat(run.numbers(part))
        for curve in run.curves(part).values():
            numbers |= {f"{curve.title}: {name}": value for name, value in curve.numbers.items()}
        columns.append(numbers)
    names = dict.fromkeys(name for numbers in columns for name in numbers)
    rows = [[name, *(value_text(numbers.get(name)) for numbers in columns)] for name in names]
    return _table(runs, rows)


def _flat(numbers: dict[str, Any], within: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in numbers.items():
        title = within + (name if within == LABELED else name.replace("_", " "))
        flat |= _flat(value, f"{title}: ") if isinstance(value, dict) else {title: value}
    return flat


def provenance_table(runs: Sequence[Run]) -> Table:
    """What was evaluated, how, and with which versions."""
    rows = [
        ["model", *(str(run.content["model"]) for run in runs)],
        ["data", *(str(run.content["settings"]["data"] or run.content["task"]) for run in runs)],
        ["methods", *(_of_training(run, "methods") for run in runs)],
        ["seed of the training", *(_of_training(run, "seed") for run in runs)],
        ["seed of the evaluation", *(str(run.content["settings"]["seed"]) for run in runs)],
        ["rows", *(str(run.numbers("metrics")["rows"]) for run in runs)],
    ]
    for title, group in (("sha256 of", "fingerprints"), ("version of", "versions")):
        rows += [
            [f"{title} {name}", *(str(run.content[group].get(name)) for run in runs)]
            for name in runs[0].content[group]
        ]
    return _table(runs, rows, wraps=True)


def _of_training(run: Run, name: str) -> str:
    value = (run.content["training"] or {}).get(name)
    return str(value) if isinstance(value, int) else " + ".join(value or ()) or "not known"
