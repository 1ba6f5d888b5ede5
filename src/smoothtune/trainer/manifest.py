"""What makes a checkpoint complete: a manifest with size and sha256 of every file.

It is the last file to be written, and the first to be removed.
"""

import os
import re
import shutil
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch

from smoothtune.errors import OutputError, changed_fields
from smoothtune.files import PARTIAL, read_json, sha256, versions, write_json

MANIFEST = "manifest.json"
STATE_FILE = "smoothtune.safetensors"
ASIDE, REMOVED = ".old-", ".removed-"
"""Prefixes of a checkpoint that is being written again, and of one that is being removed."""
_NAME = re.compile(rf"({re.escape(ASIDE)})?checkpoint-(\d+)")
BITS = ("torch", "transformers", "numpy", "smoothtune")
"""Packages of which another version may end in other last bits."""
_READ = (".safetensors", ".bin", ".pt", ".pth", ".json")
"""Endings of what a resume may read."""
_BESIDE = (".jinja", ".model", "vocab.txt", "merges.txt")
"""Endings of what else a trainer writes into a checkpoint."""
_REQUIRED = {  # what an exact resume reads: usual name, what it is, and names it may have
    "model.safetensors": (
        "the weights",
        r"(pytorch_model|model|adapter_model)(-\d+-of-\d+)?\.(safetensors|bin)|pytorch_model_fsdp.*",
    ),
    STATE_FILE: ("the state of the methods", re.escape(STATE_FILE)),
    "optimizer.pt": ("the state of the optimizer", r"optimizer(_\d+)?(\.pt|\.bin)?"),
    "scheduler.pt": ("the state of the learning rate's schedule", r"scheduler\.pt"),
    "rng_state.pth": ("the state of the random generators", r"rng_state(_\d+)?\.pth"),
    "trainer_state.json": ("the state of the trainer", r"trainer_state\.json"),
}


class ResumePoint(NamedTuple):
    """The checkpoint to resume from, if there is one, and what the user should know of it."""

    folder: Path | None
    notes: list[str]


def newest(folder: Path) -> ResumePoint:
    """The complete checkpoint of the latest step below a folder."""
    notes: list[str] = []
    for checkpoint in sorted(checkpoints_in(folder), key=order, reverse=True):
        if not (why := why_unusable(checkpoint)):
            return ResumePoint(checkpoint, [*notes, *about(checkpoint)])
        if not checkpoint.name.startswith(ASIDE):
            notes.append(f"{checkpoint.name} is passed over: {why}")
    return ResumePoint(None, notes)


def why_unusable(checkpoint: Path, *, to_resume: bool = True) -> str:
    """What is missing or changed in a checkpoint; empty if it can be used.

    `to_resume` needs more than its weights.
    """
    try:
        if not checkpoint.is_dir():
            return "there is no such folder"
        manifest = read_json(checkpoint / MANIFEST)
        if manifest is None:
            return (
                f"it has no {MANIFEST}, which is written when a checkpoint is complete: it is not, "
                "or a Trainer without methods wrote it"
            )
        why = _why_changed(checkpoint, manifest)
        return why or (_why_incomplete(checkpoint) if to_resume else "")
    except OutputError as error:
        return str(error)
    except OSError as error:
        return f"it cannot be read: {error}"


def is_committed(checkpoint: Path) -> bool:
    """Whether a checkpoint was written to its end."""
    return (checkpoint / MANIFEST).exists()


def manifest_of(checkpoint: Path) -> dict[str, Any]:
    """The manifest of a checkpoint that is complete."""
    manifest = read_json(checkpoint / MANIFEST)
    assert manifest is not None
    return manifest


def about(checkpoint: Path) -> list[str]:
    """What the user should know of a complete checkpoint: that it was written elsewhere."""
    changed = changed_fields(manifest_of(checkpoint)["environment"], _environment())
    if not changed:
        return []
    return [
        f"{checkpoint.name} was written with {changed}: the run goes on, and may end with other "
        "last bits than one that was not interrupted"
    ]


def _environment() -> dict[str, str | int]:
    """What decides the last bits of a run beside what `describe_run` says."""
    software = {name: version for name, version in versions().items() if name in BITS}
    return {**software, "threads": torch.get_num_threads()}


def write_manifest(
    checkpoint: Path, run: dict[str, Any], others: Collection[str] = frozenset()
) -> None:
    """Make a checkpoint complete: all its files but those of `others` reach the disk, then a list.

    `run` is what a resumed run must have in common with this one.
    """
    files = {}
    for name, path in _files(checkpoint).items():
        if name not in others:
            _sync(path)
            files[name] = {"bytes": path.stat().st_size, "sha256": sha256(path)}
    content = {"files": files, "run": run, "environment": _environment()}
    write_json(checkpoint / MANIFEST, content)
    for folder in (checkpoint, checkpoint.parent):
        with suppress(OSError):  # not every system opens folders
            _sync(folder)


def remove(checkpoint: Path) -> None:
    """Remove a checkpoint, and no files of others; half removed it is not complete."""
    if others := files_of_others(checkpoint):
        (checkpoint / MANIFEST).unlink(missing_ok=True)
        for name, path in _files(checkpoint).items():
            if name not in others:
                path.unlink()
        return
    removed = checkpoint.with_name(f"{REMOVED}checkpoint-{order(checkpoint)[0]}")
    shutil.rmtree(removed, ignore_errors=True)
    (checkpoint / MANIFEST).unlink(missing_ok=True)
    os.replace(checkpoint, removed)
    shutil.rmtree(removed, ignore_errors=True)


def files_of_others(checkpoint: Path) -> set[str]:
    """Names of files that the manifest does not list; without one, that no trainer writes."""
    files = _files(checkpoint).items()
    names = {name for name, path in files if not PARTIAL.fullmatch(path.name)}
    with suppress(OutputError):
        listed = (read_json(checkpoint / MANIFEST) or {}).get("files")
        if isinstance(listed, dict):
            return names - listed.keys()
    return {name for name in names if not name.endswith((*_READ, *_BESIDE))}


def remove_all(folder: Path) -> None:
    """Remove the checkpoints in a folder, and the folder if it holds nothing else."""
    for checkpoint in checkpoints_in(folder):
        with suppress(OSError):
            remove(checkpoint)
    remove_remains(folder)
    with suppress(OSError):  # files of others are there
        folder.rmdir()


def remove_remains(folder: Path) -> None:
    """Finish the removals of processes that were killed."""
    for old in folder.glob(f"{REMOVED}checkpoint-*"):
        shutil.rmtree(old, ignore_errors=True)


def nothing_to_resume(folder: Path) -> str:
    """The message for a folder without a complete checkpoint."""
    return f"{folder} holds no complete checkpoint to resume from"


# --- verifying -------------------------------------------------------------------------------


def _why_changed(checkpoint: Path, manifest: dict[str, Any]) -> str:
    """The first file that is not as the manifest says."""
    listed, *others = (manifest.get(name) for name in ("files", "run", "environment"))
    if not (isinstance(listed, dict) and listed and all(isinstance(o, dict) for o in others)):
        return f"{MANIFEST} is damaged"
    for name, entry in listed.items():
        path = checkpoint / name
        if not isinstance(entry, dict):
            return f"{MANIFEST} is damaged"
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != entry.get("bytes"):
            return f"{name} has {path.stat().st_size} bytes in place of {entry.get('bytes')}"
        if sha256(path) != entry.get("sha256"):
            return f"{name} was changed after it was written (its sha256 is another)"
    for name in _files(checkpoint):
        if name not in listed and name.endswith(_READ):
            return f"{name} was added after it was written: move it elsewhere"
    return ""


def _why_incomplete(checkpoint: Path) -> str:
    """The first file that an exact resume lacks."""
    names = {path.name for path in checkpoint.iterdir()}
    for usual, (what, pattern) in _REQUIRED.items():
        if not any(re.fullmatch(pattern, name) for name in names):
            return f"{usual} is missing, {what}"
    return ""


# --- files -----------------------------------------------------------------------------------


def checkpoints_in(folder: Path) -> list[Path]:
    """Folders of checkpoints, those set aside too; not those that files of others are left in."""
    if not folder.is_dir():
        return []
    named = [path for path in folder.iterdir() if _NAME.fullmatch(path.name)]
    folders = [path for path in named if path.is_dir() and not path.is_symlink()]
    return [path for path in folders if any(p.name.endswith(_READ) for p in path.iterdir())]


def order(checkpoint: Path) -> tuple[int, bool]:
    """Its step, and False where it is set aside for another one of that step."""
    match = _NAME.fullmatch(checkpoint.name)
    assert match is not None
    return int(match[2]), match[1] is None


def _files(checkpoint: Path) -> dict[str, Path]:
    """All but the manifest, by their names below the folder, in order."""
    paths = sorted(p for p in checkpoint.rglob("*") if p.is_file() and p.name != MANIFEST)
    return {path.relative_to(checkpoint).as_posix(): path for path in paths}


def _sync(path: Path) -> None:
    """Have a file or a folder reach the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
