"""Study files and recipes: YAML with ``include`` and ``scales``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from smoothtune.config.yaml_file import read_yaml
from smoothtune.errors import ConfigError, Location, Problem, unknown

MAX_INCLUDES = 4


@dataclass
class Source:
    """What a study file says, and where."""

    file: str
    values: dict[str, Any] = field(default_factory=dict)
    places: dict[Location, str] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def put(self, key: str, value: Any, place: str) -> None:
        """Set a key; what was said about it before is forgotten."""
        self.values[key] = value
        self.places = {at: where for at, where in self.places.items() if at[0] != key}
        self.places[key,] = place

    def place(self, location: Location) -> str:
        """File and line of a location, or of the nearest one around it that is known."""
        known = [location[:end] for end in range(len(location), 0, -1)]
        return next((self.places[at] for at in known if at in self.places), self.file)


def read_study_file(path: Path, scale: str | None) -> Source:
    """Read a study file with what it includes, and take one of its scales.

    ``include: FILE`` takes over the keys of another file beside it; ``scales`` holds keys by the
    name of a scale. What is said later wins, key by key: the included file, the file, the scale.

    Args:
        path: the file.
        scale: the scale to take; None if the file has none.

    Returns:
        The keys, with their places; unreadable files are among its problems.
    """
    source, scales = _read(path, 0)
    if not scales:
        if scale is not None and not source.problems:
            message = f"has no scales; leave out --scale {scale}"
            source.problems.append(Problem(str(path), "scales", message))
        return source
    if scale is None:
        message = f"give --scale: {', '.join(scales)}"
        source.problems.append(Problem(str(path), "scales", message))
    elif scale not in scales:
        source.problems.append(Problem(str(path), "scales", unknown("scale", scale, scales)))
    else:
        _take(source, scales[scale])
    return source


def _read(path: Path, depth: int) -> tuple[Source, dict[str, Source]]:
    """Keys of a file and of those it includes, and its scales."""
    document = read_yaml(path)
    source = Source(str(path), problems=list(document.problems))
    if not isinstance(document.value, dict):
        if not source.problems:
            source.problems.append(Problem(str(path), "", "holds no fields"))
        return source, {}
    places = {at: f"{path}:{line}" for at, line in document.lines.items()}
    own = Source(str(path), dict(document.value), places, source.problems)
    scales: dict[str, Source] = {}
    included = own.values.pop("include", None)
    listed = own.values.pop("scales", None) or {}
    if included is not None:
        if depth >= MAX_INCLUDES or not isinstance(included, str) or "/" in included:
            message = "must be the name of one file in the same folder"
            own.problems.append(Problem(own.place(("include",)), "include", message))
        else:
            base, scales = _read(path.parent / included, depth + 1)
            _take(base, own)
            own = Source(str(path), base.values, base.places, base.problems + source.problems)
    if not isinstance(listed, dict) or not all(isinstance(s, dict) for s in listed.values()):
        own.problems.append(Problem(own.file, "scales", "must hold keys by name of a scale"))
        return own, scales
    for name, values in listed.items():
        inner = {at[2:]: where for at, where in places.items() if at[:2] == ("scales", name)}
        found = Source(str(path), dict(values), {at: w for at, w in inner.items() if at})
        if name in scales:
            _take(scales[name], found)
        else:
            scales[name] = found
    return own, scales


def _take(source: Source, other: Source) -> None:
    """Let the keys of another source win."""
    for key, value in other.values.items():
        source.put(key, value, other.place((key,)))
    source.places |= other.places


def portable(place: str) -> str:
    """A local path without the folders above it, for records that others read; a hub id as it is.

    >>> portable("/data/sets/rte"), portable("org/name")
    ('rte', 'org/name')
    """
    path = Path(place).expanduser()
    return path.name if path.is_absolute() or path.exists() else place


def portable_fields(run: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a run with what it reads made `portable`."""
    places = {key: run.get(key) for key in ("data", "unlabeled", "model")}
    return {**run, **{key: portable(place) for key, place in places.items() if place}}


def recipes() -> dict[str, Path]:
    """The recipes by name: those of the package, or of the checkout it runs from.

    Returns:
        Files by name; files that others include begin with an underscore and are left out.
    """
    package = Path(__file__).parent.parent
    folders = (package / "recipes", package.parent.parent / "recipes")
    folder = next((folder for folder in folders if folder.is_dir()), folders[0])
    return {p.stem: p for p in sorted(folder.glob("*.yaml")) if not p.stem.startswith("_")}


def recipe_titles() -> list[list[str]]:
    """Name, scales and title of every recipe."""
    rows = []
    for name, path in recipes().items():
        source, scales = _read(path, 0)
        rows.append([name, " ".join(scales), str(source.values.get("title", ""))])
    return rows


def study_file(name: str) -> Path:
    """The file of a study, by path or by name of a recipe.

    Raises:
        ConfigError: there is neither.
    """
    path = Path(name).expanduser()
    if path.is_file():
        return path
    known = recipes()
    if name in known:
        return known[name]
    message = unknown("study file or recipe", name, known) if known else f"{name} does not exist"
    raise ConfigError([Problem("", "", message)])
