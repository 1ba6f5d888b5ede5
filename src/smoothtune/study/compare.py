"""A run with its methods beside others, over several seeds: written as a study file."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from smoothtune.config.draft import Draft
from smoothtune.config.run import RunConfig
from smoothtune.config.yaml_file import parse_yaml
from smoothtune.errors import ConfigError, OutputError, Problem
from smoothtune.files import make_folder, write_atomic
from smoothtune.study.config import Study, study_of
from smoothtune.study.entries import RUN_FIELDS

COMPARE = "--compare"
NOTE = "# Written by smoothtune train --compare; the same runs: smoothtune study FILE\n"


def comparison_study(run: RunConfig, others: Sequence[str], seeds: int) -> dict[str, Any]:
    """The content of a study file that compares a run's methods with others, and with plain.

    Args:
        run: all its other fields are shared; its seed is the first one.
        others: ``NAME[:FIELD=VALUE,...]`` of methods.
        seeds: number of seeds.

    Raises:
        ConfigError: there is nothing to compare.
    """
    changed = run.in_force(include=set(RUN_FIELDS), exclude_unset=True)
    draft = Draft()
    entries: list[Any] = [draft.parse_method(spec, f"{COMPARE} {spec}") for spec in others]
    draft.stop_at_problems()
    own = [{"name": name, **values} for name, values in run.methods.items()]
    if list(run.methods) != ["plain"]:
        label = "+".join(run.methods)
        label += " of the run" * ({"name": label} in entries)
        entries.append({"label": label, "methods": own})
    named = [entry for entry in entries if entry.get("name") != "plain"]
    if not named:
        message = "compares plain with plain; name a method with --method"
        raise ConfigError([Problem(COMPARE, "", message)])
    return {
        "title": f"{run.task}: {', '.join(entry.get('label') or entry['name'] for entry in named)}",
        "seeds": list(range(run.seed, run.seed + seeds)),
        "more_epochs": None,
        "methods": ["plain", *named],
        **changed,
        "task": run.task,
    }


def check_comparison(study: Mapping[str, Any]) -> Study:
    """A study of `comparison_study`, every run of which is valid, or ConfigError."""
    draft = Draft(COMPARE)
    draft.values = parse_yaml(_text(study), name=COMPARE).value
    return study_of(draft, COMPARE)


def _text(study: Mapping[str, Any]) -> str:
    return NOTE + yaml.safe_dump(dict(study), sort_keys=False, allow_unicode=True)


def write_comparison(run: RunConfig, others: Sequence[str], seeds: int) -> Path:
    """Write the study file of `comparison_study` beside the output folder.

    Raises:
        ConfigError: there is nothing to compare, or a run is not valid; no file is written.
        OutputError: the file exists with another content.
    """
    study = comparison_study(run, others, seeds)
    check_comparison(study)
    text = _text(study)
    file = Path(f"{run.output_dir.rstrip(os.sep)}.study.yaml")
    if file.exists() and file.read_text("utf-8") != text and not run.overwrite_output_dir:
        raise OutputError(
            f"{file} holds another comparison; choose another output_dir, or replace the file with "
            "--overwrite-output-dir"
        )
    make_folder(file.parent)
    write_atomic(file, text)
    return file
