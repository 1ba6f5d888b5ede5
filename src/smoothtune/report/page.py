"""Pages as lists of sections, each written as Markdown and as HTML; other texts from templates."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from smoothtune.errors import printable
from smoothtune.files import write_atomic


@dataclass(frozen=True)
class Table:
    """Rows of text under their head."""

    head: list[str]
    rows: list[list[str]]
    bold: frozenset[tuple[int, int]] = frozenset()
    """Cells that stand out, by row and column."""
    wraps: bool = False
    """Whether its cells are texts, whose lines may be broken."""
    scrolls: bool = False
    """Whether it may be long, and scrolls on the page."""


@dataclass(frozen=True)
class Plot:
    """A plot with what is needed to read it without seeing it."""

    name: str
    """Of its files, without ending."""
    title: str
    caption: str
    files: Mapping[str, bytes]
    """The drawing of `smoothtune.report.plots`, by ending; always as svg."""
    csv: str = ""
    """Its numbers; empty where another file holds them."""
    numbers: Table | None = None
    """The same for the page, if they are few."""

    def write(self, folder: Path) -> None:
        """Write all its files."""
        for ending, content in self.files.items():
            write_atomic(folder / f"{self.name}.{ending}", content)
        if self.csv:
            write_atomic(folder / f"{self.name}.csv", self.csv)

    @property
    def inline(self) -> Markup:
        """The drawing as a part of an HTML page; matplotlib has escaped all names.

        Ids are made unlike those of other plots, and colors follow the page's, light or dark.
        """
        svg = self.files["svg"].decode()
        prefix = re.sub(r"\W", "_", self.name)
        svg = re.sub(r'( id="|href="#|url\(#)', rf"\g<1>{prefix}-", svg)
        for color, role in PAGE_COLORS.items():
            svg = svg.replace(color, role)
        label = escape(printable(self.title))
        _, _, drawing = svg.partition("<svg")
        return Markup(f'<svg role="img" aria-label="{label}"{drawing}')


PAGE_COLORS = {"#000000": "currentColor", "#ffffff": "transparent", "#dddddd": "var(--line)"}
"""What black, white and the grid become within a page."""
Verdict = Literal["good", "fragile", "cost", "note"]


class Sentence(NamedTuple):
    """A finding."""

    verdict: Verdict
    text: str


@dataclass(frozen=True)
class Findings:
    """Sentences, one below the other."""

    sentences: Sequence[Sentence]


@dataclass(frozen=True)
class Heading:
    """A heading within a section."""

    text: str


@dataclass(frozen=True)
class Figures:
    """Plots beside one another."""

    plots: Sequence[Plot]
    panels: bool = False
    """Whether each is as wide as it was drawn, and scrolls where that is too wide."""
    titled: bool = True
    """Whether their titles are shown."""


@dataclass(frozen=True)
class Folded:
    """What HTML shows on a click, and Markdown below its title."""

    title: str
    blocks: Sequence[Block]


Block = str | Sentence | Findings | Heading | Table | Figures | Folded
"""A part of a section; a text is a paragraph, a sentence what is said before all else."""


class Section(NamedTuple):
    """A part of a page with a heading of its own."""

    title: str
    blocks: Sequence[Block]


def write_page(folder: Path, name: str, title: str, sections: Sequence[Section]) -> None:
    """Write a page as Markdown and as HTML."""
    for ending in ("md", "html"):
        write_atomic(folder / f"{name}.{ending}", page_text(ending, title, sections))


def page_text(ending: str, title: str, sections: Sequence[Section]) -> str:
    """A page as Markdown ("md") or as HTML ("html"), without sections that have no blocks.

    All texts are escaped.
    """
    shown = [section for section in sections if section.blocks]
    page = render(f"sections.{ending}.jinja", {"title": title, "sections": shown})
    return page.rstrip("\n") + "\n"


DASH = "–"
"""Stands where there is no number."""


def number(value: float | None, spec: str = ".4f") -> str:
    """A number in a table, formatted by `spec`."""
    return DASH if value is None else format(value, spec)


def as_text(value: object, nothing: str = DASH) -> str:
    """A setting in a table or a sentence."""
    if value is None:
        return nothing
    return f"{value:g}" if isinstance(value, float) else str(value)


def with_interval(
    value: float, interval: tuple[float | None, float | None] | None, spec: str = ".4f"
) -> str:
    """A number with its interval, if it has one: ``0.91 [0.89, 0.93]``."""
    if interval is None or None in interval:
        return number(value, spec)
    return f"{number(value, spec)} [{', '.join(number(bound, spec) for bound in interval)}]"


def render(template: str, content: dict[str, Any]) -> str:
    """A page from a template of this package; what is put into HTML is escaped."""
    environment = _environment(escapes=template.endswith(".html.jinja"))
    return environment.get_template(template).render(content)


@cache
def _environment(*, escapes: bool) -> Environment:
    """Where templates are; they are compiled once."""
    environment = Environment(
        loader=PackageLoader("smoothtune"),
        undefined=StrictUndefined,
        autoescape=escapes,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    # one place for all that a page shows; what is escaped beyond it depends on the format
    environment.finalize = lambda value: printable(value) if type(value) is str else value
    environment.filters |= {
        "text": markdown_text,
        "value": lambda value: number(value) if isinstance(value, float) else markdown_text(value),
        "json": _json_text,
        "kind": lambda block: type(block).__name__.lower(),
    }
    return environment


def markdown_text(value: object) -> str:
    """One line of text without any meaning to Markdown or HTML."""
    line = html.escape(" ".join(printable(str(value)).split()), quote=False)
    line = re.sub(r"([\\`*_{}\[\]|#!~$@])", r"\\\1", line)
    line = re.sub(r"^([-+=])", r"\\\1", line)  # a list or a heading
    return re.sub(r"(?i)(?<=:)//|(?<=\bwww)\.", lambda match: "\\" + match[0], line)  # no links


def _json_text(value: object) -> str:
    """JSON for the YAML header of a card, where it is no markup either."""
    text = json.dumps(value)
    return text.replace("&", r"\u0026").replace("<", r"\u003c").replace(">", r"\u003e")
