"""What makes a checkpoint complete: a manifest with size and sha256 of every file, written last."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import is_zipfile

from safetensors import SafetensorError, safe_open

from smoothtune.errors import CheckpointError, OutputError
from smoothtune.files import read_json, sha256, write_json
from smoothtune.trainer.run_record import differences

MANIFEST = "manifest.json"
STATE_FILE = "smoothtune.safetensors"
ASIDE, REMOVED = ".old-", ".removed-"
"""Prefixes of a checkpoint that is being written again, and of one that is being removed."""
_NAME = re.compile(rf"({re.escape(ASIDE)})?checkpoint-(\d+)")
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


class Found(NamedTuple):
    """The checkpoint to resume from."""

    folder: Path | None
    """None: there is no complete one."""
    notes: list[str]
    """What the user should know: checkpoints passed over and why, or not verified."""


def newest(folder: Path) -> Found:
    """The complete checkpoint of the latest step below a folder."""
    notes: list[str] = []
    for checkpoint in sorted(checkpoints_in(folder), key=_order, reverse=True):
        if not (why := why_unusable(checkpoint)):
            return Found(checkpoint, notes + unverified(checkpoint))
        if not checkpoint.name.startswith(ASIDE):
            notes.append(f"{checkpoint.name} is passed over: {why}")
    return Found(None, notes)


def why_unusable(checkpoint: Path) -> str:
    """What is missing or changed in a checkpoint; empty if it can be resumed from."""
    try:
        manifest = read_json(checkpoint / MANIFEST)
        if manifest is not None:
            return _why_changed(checkpoint, manifest) or _why_incomplete(checkpoint)
        return _why_incomplete(checkpoint) or _why_cut(checkpoint)
    except OutputError as error:
        return str(error)
    except OSError as error:
        return f"it cannot be read: {error}"


def check_run(checkpoint: Path, run: dict[str, Any]) -> None:
    """Refuse a checkpoint that another run wrote.

    Raises:
        CheckpointError: model, methods or settings differ; the message shows where.
    """
    manifest = read_json(checkpoint / MANIFEST)
    if manifest is not None and (changed := differences(manifest["run"], run)):
        raise CheckpointError(
            f"{checkpoint} was written by a different run ({changed}): resume with the same "
            f"settings, or start a new run from its weights with from_pretrained"
        )


def write_manifest(checkpoint: Path, run: dict[str, Any]) -> None:
    """Make a checkpoint complete: all its files reach the disk, then their list."""
    files = {}
    for path in sorted(_files(checkpoint)):
        with path.open("rb") as file:
            os.fsync(file.fileno())
        name = path.relative_to(checkpoint).as_posix()
        files[name] = {"bytes": path.stat().st_size, "sha256": sha256(path)}
    write_json(checkpoint / MANIFEST, {"files": files, "run": run})
    for folder in (checkpoint, checkpoint.parent):
        _sync_folder(folder)


def remove(checkpoint: Path) -> None:
    """Remove a checkpoint; one that is half removed is not taken for a complete one."""
    removed = checkpoint.with_name(f"{REMOVED}checkpoint-{_order(checkpoint)[0]}")
    shutil.rmtree(removed, ignore_errors=True)
    (checkpoint / MANIFEST).unlink(missing_ok=True)
    os.replace(checkpoint, removed)
    shutil.rmtree(removed, ignore_errors=True)


def nothing_to_resume(folder: Path) -> str:
    """The message for a folder without a complete checkpoint."""
    return f"{folder} holds no complete checkpoint to resume from"


# --- verifying -------------------------------------------------------------------------------


def _why_changed(checkpoint: Path, manifest: dict[str, Any]) -> str:
    """The first file that is not as the manifest says."""
    files, run = manifest.get("files"), manifest.get("run")
    if not (isinstance(files, dict) and files and isinstance(run, dict)):
        return f"{MANIFEST} is damaged"
    for name, entry in files.items():
        path = checkpoint / name
        if not isinstance(entry, dict):
            return f"{MANIFEST} is damaged"
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != entry.get("bytes"):
            return f"{name} has {path.stat().st_size} bytes in place of {entry.get('bytes')}"
        if sha256(path) != entry.get("sha256"):
            return f"{name} was changed after it was written (its sha256 is another)"
    return ""


def _why_incomplete(checkpoint: Path) -> str:
    """The first file that an exact resume lacks."""
    if not checkpoint.is_dir():
        return "there is no such folder"
    names = {path.name for path in checkpoint.iterdir()}
    for usual, (what, pattern) in _REQUIRED.items():
        if not any(re.fullmatch(pattern, name) for name in names):
            return f"{usual} is missing, {what}"
    return ""


def _why_cut(checkpoint: Path) -> str:
    """The first file without a manifest's sum that is not whole."""
    for path in sorted(_files(checkpoint)):
        try:
            if path.suffix == ".safetensors":
                with safe_open(path, framework="pt"):
                    continue
            if path.name == "trainer_state.json":
                json.loads(path.read_bytes())
            if path.suffix in (".pt", ".pth", ".bin") and not is_zipfile(path):
                return f"{path.name} is not whole"
        except (SafetensorError, ValueError):
            return f"{path.name} is not whole"
    return ""


def unverified(checkpoint: Path) -> list[str]:
    """A note on a checkpoint without a manifest."""
    if (checkpoint / MANIFEST).exists():
        return []
    return [
        f"{checkpoint.name} has no {MANIFEST}, as if an earlier version had written it: its files "
        "are there, but neither they nor the settings of their run can be verified"
    ]


# --- files -----------------------------------------------------------------------------------


def checkpoints_in(folder: Path) -> list[Path]:
    """Folders of checkpoints, those set aside too."""
    if not folder.is_dir():
        return []
    found = filter(is_checkpoint, folder.iterdir())
    return [path for path in found if path.is_dir() and not path.is_symlink()]


def is_checkpoint(path: Path) -> bool:
    """Whether a name is that of a checkpoint, set aside or not."""
    return _NAME.fullmatch(path.name) is not None


def _order(checkpoint: Path) -> tuple[int, bool]:
    match = _NAME.fullmatch(checkpoint.name)
    assert match is not None
    return int(match[2]), match[1] is None


def _files(checkpoint: Path) -> Iterator[Path]:
    return (p for p in checkpoint.rglob("*") if p.is_file() and p.name != MANIFEST)


def _sync_folder(folder: Path) -> None:
    with suppress(OSError):  # not every system opens folders
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
