"""Write what the documentation takes from the code: docs/methods.md, the table of docs/support.md.

Run by `make docs`.
"""

import re
from pathlib import Path

from smoothtune.core.support import ENVIRONMENTS, KINDS, REFUSED
from smoothtune.methods import METHODS
from smoothtune.methods.describe import FieldDescription, MethodDescription, describe

DOCS = Path(__file__).parent.parent / "docs"
METHODS_PAGE = """\
# Methods

Written by `make docs` from the methods' own files: change those, not this page. `smoothtune methods
NAME` shows the same in a terminal. Which of them to try: [Choosing a method](choosing.md).

x is the input, f(x) the prediction, L the task loss, y the label. RECONSTRUCTED marks what paper
and code leave open and we filled in.

{overview}
## Fields of every method

{shared}
A method without a loss term takes 1 and 0 for `weight`, on and off. Where a method has a default of
its own, the field is listed again.

{sections}"""
TABLE = re.compile(r"(?<=<!-- table -->\n\n).*?(?=\n<!-- end of table -->)", re.S)


def pages() -> dict[Path, str]:
    """Every page that holds text from the code, as the code now has it."""
    support = DOCS / "support.md"
    table = support_table()
    return {
        DOCS / "methods.md": methods_page(),
        support: TABLE.sub(lambda _: table, support.read_text("utf-8")),
    }


def methods_page() -> str:
    """docs/methods.md: all methods in one table, then one section each."""
    found = [describe(name) for name in METHODS]
    shared = describe("plain").fields
    return METHODS_PAGE.format(
        overview=_table(
            ["name", "method", "in one sentence"],
            [[f"[`{m.name}`](#{m.name})", _plain(m.title), _plain(m.summary)] for m in found],
        ),
        shared=_fields(shared),
        sections="\n".join(_section(method, shared) for method in found),
    )


def _section(method: MethodDescription, shared: list[FieldDescription]) -> str:
    own = [field for field in method.fields if field not in shared]
    arxiv = r"[arXiv \1](https://arxiv.org/abs/\1)"
    parts = [
        f"## {method.name}",
        f"**{_plain(method.title)}.** {_plain(method.summary)}",
        "Reference: " + re.sub(r"arXiv (\d{4}\.\d{4,5})", arxiv, _plain(method.reference)),
        f"```text\n{method.equation}\n```",
        _fields(own).rstrip() if own else "No fields of its own.",
        re.sub(r"\s+\* ", "\n\n* ", f"Departures: {_plain(method.departures)}", count=1),
    ]
    return "\n\n".join(parts) + "\n"


def _fields(fields: list[FieldDescription]) -> str:
    return _table(
        ["field", "type", "default", "meaning"],
        [[f"`{f.name}`", f"`{f.type}`", f"`{f.default!r}`", _plain(f.description)] for f in fields],
    )


def _table(titles: list[str], rows: list[list[str]]) -> str:
    lines = [titles, ["---"] * len(titles)]
    lines += [[cell.replace("|", r"\|") for cell in row] for row in rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _plain(text: str) -> str:
    """The text with what Markdown would eat escaped; code in backticks and bullets stay."""
    parts = re.split(r"(`[^`]*`)", text)
    parts[::2] = [re.sub(r"(?<!^)(?<!\n)[*]|[~<\[\]]|\b_|_\b", r"\\\g<0>", p) for p in parts[::2]]
    return "".join(parts)


def support_table() -> str:
    """The table as Markdown: "yes", or the number of the reason below it."""
    reasons = list(dict.fromkeys(r for row in REFUSED.values() for r in row.values()))
    lines = ["| | " + " | ".join(ENVIRONMENTS) + " |", "|---" * (len(ENVIRONMENTS) + 1) + "|"]
    for kind in KINDS:
        cells = [
            f"no ({reasons.index(REFUSED[kind][e]) + 1})" if e in REFUSED[kind] else "yes"
            for e in ENVIRONMENTS
        ]
        lines.append(f"| {kind} | " + " | ".join(cells) + " |")
    notes = [f"{i}. {reason}." for i, reason in enumerate(reasons, start=1)]
    return "\n".join([*lines, "", *notes]) + "\n"


if __name__ == "__main__":
    for page, text in pages().items():
        page.write_text(text, "utf-8")
        print(f"docs/{page.name}")
