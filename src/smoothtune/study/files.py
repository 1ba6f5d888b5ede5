"""Study files and recipes: YAML with ``include`` and ``scales``."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from smoothtune.config.draft import Draft
from smoothtune.errors import ConfigError, Problem, unknown

MAX_INCLUDES = 4


def read_study_file(path: Path, scale: str | None) -> Draft:
    """Read a study file with what it includes, and take one of its scales.

    ``include: FILE`` takes over the keys of another file beside it; ``scales`` holds keys by the
    name of a scale. What is said later wins, key by key: the included file, the file, the scale.
    """
    draft, scales = _read(path, 0)
    if scale is None:
        if scales:
            draft.report(("scales",), f"give --scale: {', '.join(scales)}")
    elif scale in scales:
        draft.update(scales[scale])
    elif scales:
        draft.report(("scales",), unknown("scale", scale, scales))
    elif not draft.problems:
        draft.report(("scales",), f"has no scales; leave out --scale {scale}")
    return draft


def _read(path: Path, depth: int) -> tuple[Draft, dict[str, Draft]]:
    """Keys of a file and of those it includes, and its scales."""
    own, scales = Draft(path), dict[str, Draft]()
    own.read()
    included, listed = own.values.pop("include", None), own.values.pop("scales", None) or {}
    draft = own
    if included is not None:
        if depth >= MAX_INCLUDES or not isinstance(included, str) or "/" in included:
            own.report(("include",), "must be the name of one file in the same folder")
        else:
            draft, scales = _read(path.parent / included, depth + 1)
            draft.file = own.file
            draft.update(own)
    if not isinstance(listed, dict) or not all(isinstance(s, dict) for s in listed.values()):
        draft.report(("scales",), "must hold keys by name of a scale")
        return draft, scales
    for name, values in listed.items():
        part = scales.setdefault(name, Draft(path))
        for key, value in values.items():
            part.put(key, value, own.origin(("scales", name, key)))
        inside = {at[2:]: where for at, where in own.origins.items() if at[:2] == ("scales", name)}
        part.origins |= {at: where for at, where in inside.items() if at}
    return draft, scales


def portable(place: str) -> str:
    """A local path without the folders above it, for records that others read; a hub id as it is.

    >>> portable("/data/sets/rte"), portable("org/name")
    ('rte', 'org/name')
    """
    path = Path(os.path.expanduser(place))
    return path.name if path.is_absolute() or os.path.exists(path) else place


def portable_fields(run: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a run with what it reads made `portable`."""
    places = {key: run.get(key) for key in ("data", "unlabeled", "model")}
    return {**run, **{key: portable(place) for key, place in places.items() if place}}


def recipes_folder() -> Path:
    """The folder of the recipes: that of the package, or of the checkout it runs from."""
    package = Path(__file__).parent.parent
    folders = (package / "recipes", package.parent.parent / "recipes")
    return next((folder for folder in folders if folder.is_dir()), folders[0])


def recipes() -> dict[str, Path]:
    """Recipes by name; files that others include begin with an underscore and are left out."""
    files = sorted(recipes_folder().glob("*.yaml"))
    return {path.stem: path for path in files if not path.stem.startswith("_")}


class Recipe(NamedTuple):
    """What a recipe says of itself."""

    name: str
    scales: list[str]
    title: str
    draws: list[str]
    """Titles of its tables and figures."""


def list_recipes() -> list[Recipe]:
    """All of them, by name."""
    listed = []
    for name, path in recipes().items():
        draft, scales = _read(path, 0)
        layout = draft.values.get("layout") or []
        draws = [str(item.get("table") or item.get("figure")) for item in layout]
        listed.append(Recipe(name, list(scales), str(draft.values.get("title", "")), draws))
    return listed


def scales_of(path: Path) -> list[str]:
    """Names of the scales of a study file."""
    return list(_read(path, 0)[1])


def study_file(name: str) -> Path:
    """The file of a study, by path or by name of a recipe.

    Raises:
        ConfigError: there is neither.
    """
    path = Path(os.path.expanduser(name))
    if os.path.isfile(path):
        return path
    known = recipes()
    if name in known:
        return known[name]
    message = unknown("study file or recipe", name, known)
    if path.suffix in (".yaml", ".yml") or not known:
        message = f"{name}: no such file; `smoothtune study --list` shows the recipes"
    raise ConfigError([Problem("", "", message)])
