"""The form of a paper's tables and figures, as study files describe it.

Rows and columns of a table each say which runs and which number they are about; a cell is about
what its row, its column and the table say together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from smoothtune.config.fields import Count, Fields

Statistic = Literal["mean", "sd", "max"]
Value = Literal["score", "train", "gap", "brier", "nll", "ece", "p"]
Dimension = Literal["task", "model", "method", "size", "series"]


class About(Fields):
    """Which runs, and which number of theirs."""

    method: str | None = None
    """Label of an entry."""
    best_of: list[str] | None = None
    """Labels of several entries, whose runs are put together."""
    task: str | None = None
    model: str | None = None
    """The paper's; where the study has another one, that stands in for it."""
    size: Count | None = None
    """Number of training rows."""
    metric: str | list[str] | None = None
    """A metric of the task, or several, whose mean is taken; unset: the main one."""
    value: Value | None = None
    """score; train: the same metric on the training rows; gap: train minus score; brier, nll, ece;
    p: of the study's test against the row that is the baseline."""
    data: str | None = None
    """Name of another data set, of `ood`, that the number is about."""
    share: float | None = None
    """After further training on this share of it."""
    curve: str | None = None
    """PART/CURVE of an evaluation, from which the number is read."""
    series: str | None = None
    """The line of the curve; unset: its first."""
    at: float | None = None
    """Where on the line; unset: its last point."""

    def merged(self, other: About) -> About:
        """What both say; the other wins."""
        both = (item for about in (self, other) for item in about)
        return About(**{k: v for k, v in both if k in About.model_fields and v is not None})


class Line(About):
    """A row or a column."""

    name: str
    """As printed."""
    group: str = ""
    """Heading that neighboring columns, or rows, share."""
    average_of: Literal["tasks"] | list[str] | None = None
    """Names of the columns whose mean this one is, for each seed; or tasks: the mean of all tasks
    of the study that have the number."""
    not_run: str = ""
    """Why this tool does not run it; the printed numbers stand alone."""
    statistics: list[Statistic] | None = None
    """Where other numbers are printed than in the rest of the table."""


class TableLayout(Fields):
    """One printed table."""

    table: str
    """Its number and title."""
    rows: Annotated[list[Line], Field(min_length=1)]
    columns: Annotated[list[Line], Field(min_length=1)]
    about: About = About()
    """What all cells are about."""
    statistics: Annotated[list[Statistic], Field(min_length=1)] = ["mean"]
    """The numbers of a cell, in their order."""
    percent: bool = True
    """Scores are printed times 100."""
    digits: Annotated[int, Field(ge=0, le=8)] = 2
    baseline: str | None = None
    """Name of the row that the others are to improve on."""
    printed: dict[str, dict[str, list[float | None]]] = {}
    """The paper's numbers by row and column; null: not printed."""
    printed_seeds: Count | None = None
    """Runs behind each of them."""
    note: str = ""

    @model_validator(mode="after")
    def _fits(self) -> TableLayout:
        rows, columns = ([line.name for line in lines] for lines in (self.rows, self.columns))
        for what, names in (("row", rows), ("column", columns)):
            if len(set(names)) < len(names):
                raise ValueError(f"two {what}s have the same name")
        known = {line.name: line for line in (*self.rows, *self.columns)}
        if self.baseline is not None and self.baseline not in rows:
            raise ValueError(f"the baseline {self.baseline!r} is no row")
        for line in self.columns:
            for name in line.average_of if isinstance(line.average_of, list) else ():
                if name not in columns or name == line.name:
                    raise ValueError(f"{line.name!r} is the mean of {name!r}, which is no column")
        for row, cells in self.printed.items():
            for column, numbers in cells.items():
                if row not in rows or column not in columns:
                    raise ValueError(f"there is no cell {row!r}, {column!r} for a printed number")
                if len(numbers) != len(known[column].statistics or self.statistics):
                    raise ValueError(f"{row!r}, {column!r}: prints another count of numbers")
        return self


class FigureLayout(Fields):
    """One printed figure."""

    figure: str
    """Its number and title."""
    kind: Literal["curve", "training", "settings", "sizes", "box", "reliability"]
    """curve: of an evaluation; training: a quantity by step; settings: score against a setting;
    sizes: score against the number of training rows; box: scores of all seeds."""
    about: About = About()
    curve: str | None = None
    """PART/CURVE, for the kind curve."""
    series: list[str] | None = None
    """Lines of the curve that are shown; unset: all."""
    quantity: str | None = None
    """Of training: loss, or a metric of the task, on the validation rows."""
    x: dict[str, float] | None = None
    """Of settings: the value by label of an entry."""
    x_label: str | None = None
    y_label: str | None = None
    panels: list[Dimension] = ["task", "model"]
    """What has a panel of its own."""
    methods: list[str] | None = None
    """Labels that are shown; unset: all."""
    mark_score: bool = False
    """Write the mean score of its runs above each panel."""
    names: dict[str, str] = {}
    """How the figure calls tasks, models and methods."""
    x_range: Annotated[list[float], Field(min_length=2, max_length=2)] | None = None
    log_y: bool | None = None
    note: str = ""
    """What is known about the printed figure, and what is not."""

    @model_validator(mode="after")
    def _complete(self) -> FigureLayout:
        needed = {"curve": "curve", "training": "quantity", "settings": "x"}.get(self.kind)
        if needed and getattr(self, needed) is None:
            raise ValueError(f"a figure of the kind {self.kind} needs {needed}")
        return self


def _kind(value: Any) -> str | None:
    if isinstance(value, TableLayout | FigureLayout):
        return "table" if isinstance(value, TableLayout) else "figure"
    if not isinstance(value, Mapping):
        return None
    return next((kind for kind in ("table", "figure") if kind in value), None)


Layout = Annotated[
    Annotated[TableLayout, Tag("table")] | Annotated[FigureLayout, Tag("figure")],
    Discriminator(
        _kind,
        custom_error_type="layout",
        custom_error_message="must begin with table: TITLE or figure: TITLE",
    ),
]
"""A table or a figure."""


def paper_models(layouts: Sequence[Any]) -> list[str]:
    """The models that layouts name, in their order."""
    named: list[About] = []
    for layout in layouts:
        lines = [*layout.rows, *layout.columns] if isinstance(layout, TableLayout) else []
        named += [layout.about, *(line for line in lines if not line.not_run)]
    return list(dict.fromkeys(about.model for about in named if about.model is not None))
