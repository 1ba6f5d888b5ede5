"""Atomic writes, folder locks, checksums, package versions and the cache folder."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from smoothtune.errors import OutputError

RESULT = "result.json"
LOCK = ".lock"


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A file to write that takes the place of `path` at the end; removed after an exception."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield partial
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def write_atomic(path: Path, text: str) -> None:
    """Write a text file atomically: a crash leaves the old file or the new one."""
    with replacing(path) as partial, partial.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write a JSON file atomically.

    Raises:
        ValueError: a number is not finite.
    """
    write_atomic(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def read_json(path: Path) -> dict[str, Any] | None:
    """Read a JSON object; None without the file.

    Raises:
        OutputError: the file is damaged, or holds something else.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (ValueError, OSError) as error:
        raise OutputError(f"{path} cannot be read: {error}; choose another output_dir") from error
    if not isinstance(value, dict):
        raise OutputError(f"{path} holds no JSON object; choose another output_dir")
    return value


@contextmanager
def owned(folder: Path) -> Iterator[Path]:
    """Make a folder and hold its lock: no other process writes it meanwhile.

    Raises:
        OutputError: it is a file, or another process writes it.
    """
    if folder.exists() and not folder.is_dir():
        raise OutputError(f"{folder} is a file; choose another output_dir")
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / LOCK)
    try:
        lock.acquire(timeout=0)
    except Timeout as error:
        raise OutputError(f"{folder} is being written by another process") from error
    try:
        yield folder
    finally:
        lock.release()
        (folder / LOCK).unlink(missing_ok=True)


def is_owned(folder: Path) -> bool:
    """True while a process holds the lock of `owned` on this folder."""
    if not (folder / LOCK).exists():
        return False
    lock = FileLock(folder / LOCK)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return True
    lock.release()
    return False


def refuse_other_files(folder: Path, missing: str, ours: Collection[str] = ()) -> None:
    """Refuse to write into a folder that holds files of something else.

    Args:
        folder: an owned folder.
        missing: the record that the folder lacks, for the message.
        ours: names of files that may be there.

    Raises:
        OutputError: it holds other files.
    """
    others = sorted({path.name for path in folder.iterdir()} - {LOCK, *ours})
    if others:
        raise OutputError(
            f"{folder} holds other files ({', '.join(others[:5])}) and no {missing}; "
            "choose another output_dir"
        )


def sha256(path: Path) -> str:
    """Hexadecimal sha256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def versions() -> dict[str, str]:
    """Versions of Python, the platform and the packages that decide a result."""
    packages = ("smoothtune", "torch", "transformers", "datasets", "numpy")
    installed = {name: version(name) for name in packages}
    return {"python": platform.python_version(), "platform": platform.platform()} | installed


def cache_folder() -> Path:
    """Where neighbor tables are kept: SMOOTHTUNE_CACHE, else smoothtune in the user's cache."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("SMOOTHTUNE_CACHE") or Path(base) / "smoothtune")
