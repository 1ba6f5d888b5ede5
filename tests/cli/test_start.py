"""Commands that need no torch do not wait for it."""

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path

from smoothtune import METHODS
from smoothtune.catalog import CATALOG, field_names

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
    code, _, errors = start("train", *out, "--method", "lnsr:wieght=1", "--seed", -1)
    assert code == 2
    assert "task: is missing" in errors
    assert "methods.lnsr.wieght: unknown field 'wieght'; did you mean 'weight'?" in errors
    assert "seed: must be greater than or equal to 0" in errors
    file = tmp_path / "run.yaml"
    file.write_text("task: rte\noutput_dir: out\nmethods: [lsnr]\nseed: -1\n")
    code, _, errors = start("validate", file)
    assert code == 2
    assert "did you mean 'lnsr'" in errors
    assert f"{file}:4: seed: " in errors
    study = tmp_path / "study.yaml"
    study.write_text("task: rte\nmethods: [{name: lnsr, wieght: [1, 2]}]\n")
    code, _, errors = start("study", study, "--dry-run")
    assert code == 2
    assert f"{study}:2: methods.lnsr.wieght: unknown field 'wieght'" in errors


def test_catalog_is_fresh() -> None:
    docs = runpy.run_path(str(ROOT / "scripts" / "docs.py"))
    assert (ROOT / "src" / "smoothtune" / CATALOG).read_text("utf-8") == docs["catalog"]()


def test_catalog_is_plain_json() -> None:
    content = json.loads((ROOT / "src" / "smoothtune" / CATALOG).read_text("utf-8"))
    assert content["tasks"]["squad"] == "question-answering"
    assert set(content["methods"]) == set(METHODS)
    for name, cls in METHODS.items():
        assert set(field_names(name)) == set(cls.__pydantic_fields__)


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
