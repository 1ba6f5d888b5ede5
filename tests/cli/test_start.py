"""Commands that need no torch do not wait for it."""

import itertools
import json
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import TypeAdapter, ValidationError

from smoothtune import METHODS
from smoothtune.catalog import CATALOG, fields_model, needs_class

ROOT = Path(__file__).parents[2]
HEAVY = ("torch", "transformers", "datasets", "numpy", "pandas")
SCRIPT = """
import sys
from smoothtune.cli import main
sys.argv = ["smoothtune", *sys.argv[1:]]
try:
    main()
finally:
    print("imported:", *sorted({heavy} & set(sys.modules)), file=sys.stderr)
""".replace("{heavy}", repr(set(HEAVY)))


def start(*arguments: object) -> tuple[int, str, str]:
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-c", SCRIPT, *map(str, arguments)]
    found = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60)
    assert found.stderr.splitlines()[-1].strip() == "imported:", found.stderr
    return found.returncode, found.stdout, found.stderr


def test_lists_and_help_import_nothing_heavy() -> None:
    code, out, _ = start("methods")
    assert (code, {line.split()[0] for line in out.splitlines()} >= set(METHODS)) == (0, True)
    code, out, _ = start("methods", "lnsr")
    assert code == 0
    assert "noise_ratio" in out
    assert start("--help")[0] == start("train", "--help")[0] == 0


def test_mistakes_are_told_before_anything_heavy_is_imported(tmp_path: Path) -> None:
    out = ("--output-dir", tmp_path / "out")
    code, _, errors = start("train", *out, "--method", "lnsr:weight=-1")
    assert code == 2
    assert "task: is missing" in errors
    assert "methods.lnsr.weight: Input should be greater than or equal to 0, not -1" in errors
    file = tmp_path / "run.yaml"
    file.write_text("task: rte\noutput_dir: out\nmethods: [lsnr]\nseed: -1\n")
    code, _, errors = start("validate", file)
    assert code == 2
    assert "did you mean 'lnsr'" in errors
    assert f"{file}:4: seed: " in errors
    study = tmp_path / "study.yaml"
    study.write_text("task: rte\nmethods: [{name: lnsr, weight: -1}]\n")
    code, _, errors = start("study", study, "--dry-run")
    assert code == 2
    assert "weight: Input should be greater than or equal to 0" in errors


def test_catalog_is_fresh() -> None:
    docs = runpy.run_path(str(ROOT / "scripts" / "docs.py"))
    assert (ROOT / "src" / "smoothtune" / CATALOG).read_text("utf-8") == docs["catalog"]()


def test_fields_are_checked_without_anything_heavy(tmp_path: Path) -> None:
    run, study = tmp_path / "run.yaml", tmp_path / "study.yaml"
    fields = "methods: {lnsr: {share: 0.2, reduction: sum}, mixout: {p: 0.5}}"
    run.write_text(f"task: rte\noutput_dir: out\n{fields}\n")
    study.write_text("task: rte\nseeds: [0]\nmethods: [r3f, {name: uegr, keep: 0.1}]\n")
    code, out, _ = start("validate", "--fields-only", run, study)
    assert code == 0
    assert "ok (rte, lnsr + mixout)" in out
    assert "ok (a study of " in out


@pytest.mark.parametrize("name", METHODS)
def test_fields_that_are_called_independent_are_right_in_all_pairs(name: str) -> None:
    """Of the values that fit their types, a class takes every two whose fields are such."""
    ours, theirs = fields_model(name), TypeAdapter(METHODS[name])
    values = [
        {field: value}
        for field in ours.model_fields
        for value in [*WRONG, *_choices(name, field)]
        if not _messages(ours.model_validate, {field: value}, field)
        and not needs_class(name, {field: value})
    ]
    for one, other in itertools.combinations(values, 2):
        if not needs_class(name, both := one | other):
            theirs.validate_python(both)


def _choices(name: str, field: str) -> list:
    schema = TypeAdapter(METHODS[name]).json_schema()["properties"][field]
    options = schema.get("anyOf", [schema])
    return [each for option in options for each in option.get("enum", [option.get("const")])]


def test_what_is_wrong_together_needs_the_class() -> None:
    assert needs_class("lnsr", {"share": 0.3, "weight": 1.0})
    assert needs_class("lnsr", {"share": None})
    assert needs_class("uegr", {"combination": "list"})
    assert needs_class("mixout", {"share": 0.3})
    assert needs_class("my_package.module:Method", {})
    assert not needs_class("lnsr", {"share": 0.1, "tokens": "pooled"})


WRONG = [-1, 0, 0.5, 1, 2.5, True, "", "word", None, [], [1], [-1.0, 2], ["a"], {"a": 1}, "both"]


@pytest.mark.parametrize("name", METHODS)
def test_catalog_knows_the_values_that_fields_take(name: str) -> None:
    """Each value is refused with the words that the method's class has for it, or taken by both."""
    ours, theirs = fields_model(name), TypeAdapter(METHODS[name])
    for field in ours.model_fields:
        for value in WRONG:
            assert _messages(ours.model_validate, {field: value}, field) == _messages(
                theirs.validate_python, {field: value}, field
            ), (field, value)
    with pytest.raises(ValidationError, match="Extra inputs are not permitted"):
        ours.model_validate({"no_field": 1})


def _messages(validate, values: dict, field: str) -> list[str]:
    try:
        validate(values)
    except ValidationError as error:
        # what a class checks across its fields has no place
        return sorted({d["msg"] for d in error.errors() if d["loc"][:1] == (field,)})
    return []


def test_catalog_is_plain_json() -> None:
    content = json.loads((ROOT / "src" / "smoothtune" / CATALOG).read_text("utf-8"))
    assert content["tasks"]["squad"] == "question-answering"
    assert set(content["methods"]) == set(METHODS)


def test_nobody_sees_the_advice_of_bitsandbytes() -> None:
    """What it logs on import on CPUs with bfloat16 arithmetic, here on any."""
    advice = "import logging; logging.getLogger('bitsandbytes.backends.cpu.ops').warning('advice')"
    for module in ("smoothtune", "smoothtune.cli"):
        command = [sys.executable, "-c", f"import {module}; {advice}"]
        assert subprocess.run(command, capture_output=True, text=True).stderr == ""


def test_commands_are_completed_by_shells() -> None:
    words = {"COMP_WORDS": "smoothtune tr", "COMP_CWORD": "1"}
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")} | words
    found = subprocess.run(
        [sys.executable, "-m", "smoothtune"],
        env=environment | {"_SMOOTHTUNE_COMPLETE": "complete_bash"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert found.stdout.split() == ["train"]
