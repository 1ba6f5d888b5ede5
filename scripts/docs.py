"""Write what is taken from the code: pages of docs/, tables of docs/support.md, catalog.json.

Run by `make docs`.
"""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import claims
import measured
import method_pages
import settings_page
import theory_page
from tables import escaped, table

from smoothtune.catalog import CATALOG
from smoothtune.core.support import KINDS, REFUSED
from smoothtune.methods import METHODS
from smoothtune.methods.describe import catalog_of_methods
from smoothtune.nn.environments import ENVIRONMENTS
from smoothtune.tasks.base import Task
from smoothtune.tasks.presets import TASK_CLASSES, TASKS

DOCS = Path(__file__).parent.parent / "docs"
TABLE = re.compile(r"(?<=<!-- table -->\n\n).*?(?=\n<!-- end of table -->)", re.S)
SWEEP = re.compile(r"(?<=<!-- sweep -->\n\n).*?(?=\n<!-- end of sweep -->)", re.S)
ADVICE = re.compile(r": use |: give the batch|, so its hidden states|\. Give |: turn that off")
SWEEP_RESULTS = DOCS.parent / "benchmarks" / "results" / "sweep.json"
MODEL_CHECKS = ("task loss", "weight 0", "halves", "causality", "perturbation", "hidden states")


def pages() -> dict[Path, str]:
    """Every page that holds text from the code, as the code now has it."""
    support = DOCS / "support.md"
    table, sweep = supporttable(), sweep_tables()
    text = TABLE.sub(lambda _: table, support.read_text("utf-8"))
    return {
        **method_pages.pages(),
        settings_page.PAGE: settings_page.page(),
        claims.PAGE: claims.page(),
        theory_page.PAGE: theory_page.page(),
        support: SWEEP.sub(lambda _: sweep, text),
        DOCS.parent / "src" / "smoothtune" / CATALOG: catalog(),
    }


def catalog() -> str:
    """What the command line knows of methods and tasks without importing them."""
    content = {
        "methods": {
            name: each | {"measured": measured.evidence_line(name)}
            for name, each in catalog_of_methods().items()
        },
        "tasks": {name: task.task_type for name, task in TASKS.items()},
        "task_types": {name: _declared(cls) for name, cls in TASK_CLASSES.items()},
    }
    methods = ",\n".join(_line(name, each) for name, each in content.pop("methods").items())
    others = ",\n".join(_line(name, each) for name, each in content.items())
    return f'{{"methods": {{\n{methods}\n}},\n{others}\n}}\n'


def _declared(cls: type[Task]) -> dict[str, object]:
    """What a type of task declares, as `TaskTypeDescription` takes it."""
    common = {field.name for field in fields(Task)}
    return {
        "fields": [field.name for field in fields(cls) if field.name not in common],
        "label_types": cls.label_types,
        "max_seq_length": cls.default_max_seq_length,
        "one_sequence": cls.one_sequence,
        "problem_type": cls.head_class.problem_type,
        "similar_lengths": cls.similar_lengths,
        "text_columns": cls.text_columns,
    }


def _line(name: str, content: object) -> str:
    return f"{json.dumps(name)}: {json.dumps(content, ensure_ascii=False)}"


def supporttable() -> str:
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


def sweep_tables() -> str:
    """What `benchmarks/sweep.py` has found, by head, and what is refused, by reason."""
    content = json.loads(SWEEP_RESULTS.read_text("utf-8"))
    by_head: dict[str, list[dict]] = defaultdict(list)
    for row in content["classes"]:
        by_head[row["head"]].append(row)
    counts = {head: _counts(rows, content["outcomes"]) for head, rows in by_head.items()}
    total = sum(counts.values(), Counter())
    seen = [head for head in counts if counts[head]["checked"]]
    others = sum((counts[head] for head in counts if head not in seen), Counter())
    titles = ["classes", "checked", "loss right", "loss refused"]
    titles += ["gradients right", "refused", "not measured", "wrong"]
    rows = [
        (head.lower().replace("_", " "), counts[head])
        for head in sorted(seen, key=lambda head: -counts[head]["checked"])
    ]
    rows += [(f"{len(counts) - len(seen)} others", others), ("all", total)]
    left_out = Counter(
        row["left out"].split(":")[0] for row in content["classes"] if "left out" in row
    )
    new = sorted(set(METHODS).difference(*map(_methods_of, content["classes"])))
    tried = set(METHODS) - set(new)
    every = sum(_methods_of(row) >= tried for row in content["classes"])
    but = f"; {', '.join(new)}: on none yet, run benchmarks/sweep.py" if new else ""
    reasons = ", ".join(f"{reason} {count}" for reason, count in left_out.most_common())
    return (
        table(
            ["head", *titles],
            [[name, *(str(count[title]) for title in titles)] for name, count in rows],
        )
        + f"\nLeft out: {reasons}. All {len(tried)} methods were tried on {every} "
        f"classes{but}.\n\n"
        + table(["refused because", "methods", "model types"], list(_refusals(content)))
    )


def _counts(rows: list[dict], outcomes: list[str]) -> Counter:
    found = Counter(classes=len(rows))
    for row in rows:
        found["checked"] += "results" in row
        for number, checks in row.get("results", {}).items():
            kind = outcomes[int(number)].split(":")[0].removesuffix(" to rounding")
            found["wrong"] += len(checks) if kind == "wrong" else 0
            if "task loss" in checks:
                found[f"loss {kind}"] += 1
            methods = [check for check in checks if check not in MODEL_CHECKS]
            if kind != "wrong":
                found["gradients right" if kind == "right" else kind] += len(methods)
    return found


def _methods_of(row: dict) -> set[str]:
    return {check for checks in row.get("results", {}).values() for check in checks}


def _refusals(content: dict) -> Iterator[list[str]]:
    """Reason, methods and model types, for every reason for which something is refused."""
    methods: dict[str, set[str]] = defaultdict(set)
    types: dict[str, set[str]] = defaultdict(set)
    for row in content["classes"]:
        for number, checks in row.get("results", {}).items():
            kind, _, reason = content["outcomes"][int(number)].partition(": ")
            names = {check for check in checks if check not in MODEL_CHECKS}
            if kind != "refused" or not names:
                continue
            for part in reason.removeprefix("not supported: - ").split(" - "):
                cause = ADVICE.split(part)[0]
                for name in names:
                    cause = re.sub(rf"^{name} with", "with", cause)
                cause = re.sub(r"\b\d+\b", "N", cause)
                methods[cause] |= names
                types[cause].add(row["model_type"])
    for reason in sorted(methods, key=lambda r: -len(types[r])):
        listed = sorted(types[reason])
        more = f" and {len(listed) - 12} more" if len(listed) > 12 else ""
        yield [
            escaped(reason),
            ", ".join(sorted(methods[reason])),
            ", ".join(listed[:12]) + more,
        ]


if __name__ == "__main__":
    for page, text in pages().items():
        page.parent.mkdir(exist_ok=True)
        page.write_text(text, "utf-8")
        print(page.relative_to(DOCS.parent))
