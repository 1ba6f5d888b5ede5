"""What the package depends on is pinned and tested; its own files do not import in circles."""

import tomllib
from graphlib import TopologicalSorter
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import grimp  # which import-linter brings
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


def test_no_files_import_one_another_in_a_circle() -> None:
    graph = grimp.build_graph("smoothtune", cache_dir=None)
    imports = {name: graph.find_modules_directly_imported_by(name) for name in graph.modules}
    TopologicalSorter(imports).prepare()  # or CycleError
