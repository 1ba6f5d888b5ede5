"""Run the fast tests with several pairs of torch and transformers; called by `make test-versions`.

Each pair has a virtual environment of its own in build/versions, made the first time. `oldest`
holds every dependency at the lower bound of pyproject.toml. With uv the CPU build of torch is taken
(TORCH_BACKEND names another); pip takes the default one, of several gigabytes.

    python scripts/versions.py                    # all pairs, one after the other
    python scripts/versions.py oldest 5.17        # some
    python scripts/versions.py 4.57 -- tests/trainer -n 2   # and what pytest is to run
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "build" / "versions"
TEST_TOOLS = ["pytest>=9", "pytest-xdist>=3.8", "hypothesis>=6"]
PAIRS = {  # what pip is held to
    "oldest": None,
    "4.57": ["torch==2.13.0", "transformers==4.57.6"],
    "5.17": ["torch==2.11.0", "transformers==5.17.0"],
    "newest": [],
}
PINS = "tests/test_dependencies.py::test_what_is_installed_is_what_is_pinned"
COUNTS = ("passed", "failed", "skipped")


def lower_bounds() -> list[str]:
    """The dependencies of the package, each at the lowest version that it allows."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    held = []
    for line in project["dependencies"]:
        requirement = Requirement(line)
        lowest = [s.version for s in requirement.specifier if s.operator == ">="]
        held += [f"{requirement.name}=={version}" for version in lowest]
    return held


def make_environment(pair: str) -> Path:
    """The interpreter of a pair, with the package and the tools of its tests."""
    folder = FOLDER / pair
    python, ready = folder / "bin" / "python", folder / "ready"
    if ready.exists():
        return python
    subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
    held = PAIRS[pair]
    constraints = folder / "constraints.txt"
    constraints.write_text("\n".join(lower_bounds() if held is None else held) + "\n")
    package = f"{ROOT}[minilm,report,excel]"
    install: list[str | Path] = [python, "-m", "pip", "install"]
    if uv := shutil.which("uv"):
        backend = os.environ.get("TORCH_BACKEND", "cpu")
        install = [uv, "pip", "install", "--python", python, "--torch-backend", backend]
    install += ["--quiet", "--constraint", constraints, "--editable", package, *TEST_TOOLS]
    subprocess.run(install, check=True)
    ready.touch()
    return python


def run(pair: str, arguments: list[str]) -> bool:
    """Print a line of the table; whether all passed."""
    python = make_environment(pair)
    # Of old libraries' own warnings, and of pins that are those of the newest pair alone.
    options = [] if pair == "newest" else ["-o", "filterwarnings=default"]
    options += ["--deselect", PINS]
    command = ["-m", "pytest", "-q", "-m", "not slow", *options, *arguments]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    result = subprocess.run(
        [python, *command], cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True
    )
    (FOLDER / f"{pair}.log").write_text(result.stdout, encoding="utf-8")
    last = (result.stdout.strip() or "nothing ran").splitlines()[-1]
    counts = [re.search(rf"(\d+) {count}", last) for count in COUNTS]
    numbers = [match[1] if match else "0" for match in counts]
    shown = " ".join(["pytest", *command[2:]])
    print(f"| {pair} | {' | '.join(numbers)} | `{shown}` |", flush=True)
    return result.returncode == 0


def main(words: list[str]) -> None:
    """Print the table of the pairs that are named, or of all."""
    cut = words.index("--") if "--" in words else len(words)
    pairs, arguments = words[:cut] or list(PAIRS), words[cut + 1 :] or ["tests"]
    if unknown := set(pairs) - set(PAIRS):
        sys.exit(f"no such pair: {', '.join(unknown)}; the pairs are {', '.join(PAIRS)}")
    print(f"| pair | {' | '.join(COUNTS)} | command |\n|---|---|---|---|---|")
    sys.exit(not all([run(pair, arguments) for pair in pairs]))


if __name__ == "__main__":
    main(sys.argv[1:])
