"""docs/settings.md: every field of run files, studies, evaluations, predictions and searches."""

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

from pydantic import BaseModel, TypeAdapter
from pydantic.fields import FieldInfo
from tables import escaped, table

from smoothtune.config.evaluation import OtherData, Prediction, Settings
from smoothtune.config.fields import Panel
from smoothtune.config.run_fields import RunFields
from smoothtune.config.tuning import TuneSettings
from smoothtune.methods.describe import values_of
from smoothtune.models.lora import LoraSettings
from smoothtune.study.config import StudyConfig

PAGE = Path(__file__).parent.parent / "docs" / "settings.md"
INTRODUCTION = """\
# Run files and settings

<!-- Written by `make docs` from the code: change the fields there, not this page. -->

Every field, with the values it takes and its default. In a run file a field is a key. On the
command line it is a flag with dashes, `learning_rate` as `--learning-rate`, or
`--set learning_rate=1e-4`; a flag wins over `--set`, and both over the file. Names that
transformers' `TrainingArguments` has mean the same here. Unknown fields are errors, and
`smoothtune validate FILE` finds all that is wrong.

A run file whose methods have fields:

```yaml
task: sst2
data: data/sst2
model: minilm
methods:
  lnsr: {share: 0.3}
  mixout: {p: 0.5}
num_train_epochs: 3
output_dir: out/sst2
```
"""
PARTS: list[tuple[str, str, Any]] = [
    ("Runs", "Run files and `smoothtune train`: [Command line](command-line.md).", RunFields),
    (
        "LoRA",
        "The mapping `lora` of a run, or `--lora 'r=8,target_modules=[q_proj,v_proj]'`: lists in "
        "brackets, and the whole in quotes, as shells read brackets too.",
        LoraSettings,
    ),
    ("Studies", "In a [study](study.md)'s file, beside the fields of runs.", StudyConfig),
    ("Evaluations", "`smoothtune evaluate`: [Evaluation](evaluation.md).", Settings),
    ("Other data sets", "`--ood NAME=SOURCE` and `--ood-set NAME.FIELD=VALUE`.", OtherData),
    ("Predictions", "`smoothtune predict`: [Evaluation](evaluation.md).", Prediction),
    ("Searches", "`smoothtune tune`, beside those of runs: [Tuning](tuning.md).", TuneSettings),
]


def page() -> str:
    """The page as the code now has it."""
    parts = [INTRODUCTION]
    for title, text, cls in PARTS:
        parts.append(f"## {title}\n\n{text}\n")
        parts += _tables(title, cls)
    return "\n".join(parts)


def _tables(title: str, cls: Any) -> list[str]:
    """A table for each heading under which ``--help`` lists the fields."""
    fields = cls.model_fields if issubclass(cls, BaseModel) else cls.__pydantic_fields__
    panels, schema = defaultdict(list), TypeAdapter(cls).json_schema()
    for name, field in fields.items():
        panels[_panel(field)].append(_row(name, field, schema))
    titles = ["field", "values", "default", "meaning"]
    return [
        (f"### {title}: {panel[0].lower()}{panel[1:]}\n\n" if panel else "") + table(titles, rows)
        for panel, rows in panels.items()
    ]


def _panel(field: FieldInfo) -> str:
    return next((each.title for each in field.metadata if isinstance(each, Panel)), "")


def _row(name: str, field: FieldInfo, schema: dict[str, Any]) -> list[str]:
    values = values_of(schema["properties"][name], schema.get("$defs", {}))
    default = "required" if field.is_required() else f"`{_default(field.get_default())}`"
    return [
        f"`{name}`",
        f"`{values}`",
        default,
        escaped(" ".join((field.description or "").split())),
    ]


def _default(value: Any) -> str:
    if value is None:
        return "unset"
    return value if isinstance(value, str) and value else json.dumps(value)
