"""The versions that are tested with are those that are supported, and those that are installed."""

import tomllib
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = [line for lines in PROJECT["optional-dependencies"].values() for line in lines]
NEEDED = {
    line: requirement
    for line in [*PROJECT["dependencies"], *EXTRAS]
    if (requirement := Requirement(line)).name != PROJECT["name"]
}
PINNED = {
    canonicalize_name(requirement.name): str(requirement.specifier)
    for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    if not line.startswith("#") and (requirement := Requirement(line))
}


@pytest.mark.parametrize("line", NEEDED)
def test_every_dependency_has_a_pin_in_its_range(line: str) -> None:
    requirement = NEEDED[line]
    pin = PINNED[canonicalize_name(requirement.name)]
    assert pin.startswith("==")
    assert requirement.specifier.contains(pin.removeprefix("=="))


@pytest.mark.parametrize("name", PINNED)
def test_what_is_installed_is_what_is_pinned(name: str) -> None:
    try:
        installed = Version(version(name)).public  # without +cpu
    except PackageNotFoundError:  # of an extra
        return
    assert PINNED[name] == f"=={installed}"
