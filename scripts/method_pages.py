"""docs/methods/: a page and a picture for every method, and an index, from the methods' files."""

import re
from collections.abc import Iterator
from pathlib import Path

import measured
import schematic
from tables import escaped, table

from smoothtune.catalog import FieldDescription, MethodDescription
from smoothtune.core.quantities import QUANTITIES
from smoothtune.core.regularizer import Penalty
from smoothtune.core.support import problems
from smoothtune.methods import METHODS
from smoothtune.methods.describe import describe, fields_of
from smoothtune.methods.equation import MATH
from smoothtune.nn.environments import ENVIRONMENTS

FOLDER = Path(__file__).parent.parent / "docs" / "methods"
CHOOSING = FOLDER.parent / "choosing.md"
NOTE = "<!-- Written by `make docs` from the method's file: change that, not this page. -->"
INDEX = """\
# Methods

<!-- Written by `make docs` from the methods' own files: change those, not this page. -->

One page for each: what it perturbs, its equation, fields, cost and evidence. `smoothtune methods
NAME` shows equation and fields in a terminal. Which of them to try:
[Choosing a method](../choosing.md). Measured: in how many of the committed studies with today's
defaults its score, NLL or Brier score differs from plain's over all conditions (p below 0.05 after
Holm's correction over the study's methods).

x is the input, f(x) the prediction, L the task loss, y the label. RECONSTRUCTED marks what paper
and code leave open and we filled in.

{overview}
## Fields of every penalty

A penalty is a method that adds a term to the task loss:

{shared}
Of these, methods whose loss takes the place of the task loss have `side` alone, and others none.
Where a method has a default of its own, the field is listed again.

## What methods are about

Less of these is what the papers claim. [A study](../study.md#does-it-do-what-it-says)
compares them with plain fine-tuning:

{quantities}"""
PAGE = """\
# {name}

{note}

**{title}.** {summary}

{picture}

## Equation

{equation}

x is the input, f(x) the prediction, L the task loss, y the label.

## When to use it

{use}

```python
from smoothtune import {cls}, regularize
{before}
trainer = regularize(existing_trainer, {cls}())
```

On the command line: `--method {name}`, with fields `--method {name}:FIELD=VALUE`.

## Fields

{fields}

{shared}

## Cost

{cost}

## Evidence

{evidence}

## Departures

{departures}

## Reference

{reference}
"""


def pages() -> dict[Path, str]:
    """Every file of docs/methods/."""
    found = {FOLDER / "README.md": index()}
    for name in METHODS:
        found[FOLDER / f"{name}.md"] = page(name)
        if name in schematic.FACTS:
            found[FOLDER / f"{name}.svg"] = schematic.draw(name)
    return found


def index() -> str:
    """All methods in one table, the fields of all, and what they are about."""
    methods = [describe(name) for name in METHODS]
    return INDEX.format(
        overview=table(
            ["name", "method", "in one sentence", "measured against plain"],
            [
                [
                    f"[`{m.name}`]({m.name}.md)",
                    *map(escaped, (m.title, m.summary)),
                    measured.evidence_line(m.name),
                ]
                for m in methods
            ],
        ),
        shared=_fields(fields_of(Penalty)),
        quantities=table(
            ["quantity", "what is measured", "methods"],
            [[name, escaped(text), _about(name)] for name, text in QUANTITIES.items()],
        ),
    )


def _about(quantity: str) -> str:
    names = (name for name, cls in METHODS.items() if quantity in cls.declared.lowers)
    return ", ".join(f"`{name}`" for name in names)


def _picture(name: str) -> str:
    """The picture with its words; nothing for a method that has none."""
    return f"![{schematic.described(name)}]({name}.svg)" if name in schematic.FACTS else ""


def page(name: str) -> str:
    """The page of one method."""
    method, of_penalties = describe(name), fields_of(Penalty)
    own = [field for field in method.fields if field not in of_penalties]
    shared = [f"`{field.name}`" for field in of_penalties if field.name in _field_names(method)]
    link = "[Fields of every penalty](README.md#fields-of-every-penalty)"
    clips = METHODS[name].declared.clips_gradients
    return PAGE.format(
        name=name,
        note=NOTE,
        cls=METHODS[name].__name__,
        before="\nexisting_trainer.args.max_grad_norm = 0" if clips else "",
        title=escaped(method.title),
        summary=escaped(method.summary),
        picture=_picture(name),
        equation=_equation(method),
        use="\n".join(f"- {line}" for line in _use(method)),
        shared=f"{link}: {', '.join(shared)}." if shared else "It has no field of a penalty.",
        fields=_fields(own).rstrip() if own else "None of its own.",
        cost=measured.cost(name),
        evidence=measured.evidence(name),
        departures=_list(method.departures),
        reference=re.sub(
            r"arXiv (\d{4}\.\d{4,5})",
            r"[arXiv \1](https://arxiv.org/abs/\1)",
            escaped(method.reference),
        ),
    )


def _equation(method: MethodDescription) -> str:
    """Text with formulas in it; what is set on lines of its own in blocks that GitHub typesets."""
    parts, end = [], 0
    for found in MATH.finditer(method.latex):
        parts.append(escaped(method.latex[end : found.start()]))
        block = found[1] == "$$"
        parts.append(f"\n\n```math\n{found[2]}\n```\n\n" if block else f"$`{found[2]}`$")
        end = found.end()
    text = "".join([*parts, escaped(method.latex[end:])])
    return re.sub(r"\n\s*\n\s*", "\n\n", text).strip()


def _use(method: MethodDescription) -> Iterator[str]:
    """What docs/choosing.md says of a method, what it is to lower, and where it is refused."""
    name = f"`{method.name}`"
    text = CHOOSING.read_text("utf-8")
    rows = [[cell.strip() for cell in line.split(" | ")] for line in text.splitlines()]
    for row in rows:
        if len(row) == 3 and name in row[1]:
            seen, why = row[0].removeprefix("| "), row[2].removesuffix(" |")
            yield _moved(f"You see: {seen}. Try {row[1]}: {why}.")
    for row in rows:
        if len(row) == 4 and name in row[0]:
            yield f"Per step: {row[1]}. Memory beyond plain: {row[2].replace('–', 'none')}."
            fields = re.findall(r"`(\w+)`", row[3])
            own = [f"`{field}`" for field in fields if field in _field_names(method)]
            yield f"To search first: {', '.join(own)}."
    about = [f"{claim} ({QUANTITIES[claim]})" for claim in method.lowers]
    yield escaped(f"Is to lower: {'; '.join(about) or 'nothing that is measured'}.")
    for item in re.findall(
        r"^- (.+?)(?=^- |^\n)", text.partition("## What goes with")[2], re.M | re.S
    ):
        if name in item.partition(":")[0] + item.split(". ")[0]:
            yield _moved(" ".join(item.split()))
    regularizer = METHODS[method.name]()
    no = [e for e in ENVIRONMENTS if problems(method.name, regularizer, {e})]
    works = f"Refused, with its default fields, in: {', '.join(no)}" if no else "Works everywhere"
    yield f"{works}; see [What works where](../support.md)."


def _field_names(method: MethodDescription) -> set[str]:
    return {field.name for field in method.fields}


def _moved(text: str) -> str:
    """The text with its links as seen from docs/methods/."""
    return re.sub(r"\]\((?!http|#)", "](../", text)


def _fields(fields: list[FieldDescription]) -> str:
    return table(
        ["field", "type", "default", "meaning"],
        [
            [f"`{f.name}`", f"`{f.type}`", f"`{f.default!r}`", escaped(f.description)]
            for f in fields
        ],
    )


def _list(text: str) -> str:
    text = re.sub(r"\s+\* ", "\n\n* ", " " + escaped(text), count=1).strip()
    return text[0].upper() + text[1:]
