"""Atomic writes, folder locks, checksums, package versions and the cache folder."""

import hashlib
import json
import math
import os
import platform
import re
import socket
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from smoothtune.errors import OutputError

RESULT, CARD = "result.json", "README.md"
LOCK = ".lock"
MAX_JSON_BYTES = 200_000_000
PARTIAL = re.compile(r"\..+\.\d+\.partial")
_version = cache(version)  # of a package; it reads and parses a file


def not_written(path: Path, error: OSError) -> OutputError:
    """What to say of a file or folder that cannot be written."""
    if through := _through_a_file(path, error):
        return OutputError(f"{path} cannot be written: {through}")
    return OutputError(
        f"{path} cannot be written: {error.strerror or error}; make room or give the right to "
        "write, and run the same command again"
    )


def _through_a_file(path: Path, error: Exception) -> str:
    """Of a path that a file stands in, in the place of a folder: which; empty for other errors."""
    if not isinstance(error, NotADirectoryError | FileExistsError):
        return ""
    file = next((each for each in (path, *path.parents) if each.is_file()), None)
    return f"{file} is a file and no folder; choose another folder" if file else ""


WORDS_OF_WRITING = (
    *("PytorchStreamWriter", "open file failed", "unexpected pos", "iostream"),  # of torch
    *("I/O error", "IoError", "os error"),  # of safetensors and tokenizers
)


def why_not_written(error: Exception) -> str:
    """Why a library could not write a file; empty if the error is none of writing."""
    if isinstance(error, OSError):  # those of the network are none of writing
        network = error.errno is None or isinstance(error, ConnectionError | TimeoutError)
        return "" if network else error.strerror or str(error)
    if isinstance(error, OutputError):
        return str(error)
    return str(error).split("\n")[0] if any(w in str(error) for w in WORDS_OF_WRITING) else ""


def make_folder(path: Path) -> None:
    """Make a folder, unless it is there, with those above it; OutputError if it cannot be made."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise not_written(path, error) from error


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A file to write that takes the place of `path` at the end; removed after an exception.

    Raises OutputError if it cannot be written; `path` is as it was.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        partial.unlink(missing_ok=True)  # what a killed process of the same number left
        yield partial
        os.replace(partial, path)
    except OSError as error:
        raise not_written(path, error) from error
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)


def write_atomic(path: Path, content: str | bytes) -> None:
    """Write a file, or raise OutputError; a crash leaves the old file or the new one."""
    with replacing(path) as partial, partial.open("xb") as file:
        file.write(content if isinstance(content, bytes) else content.encode("utf-8"))
        file.flush()
        os.fsync(file.fileno())


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write a JSON file atomically; ValueError where a number is not finite."""
    write_atomic(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def read_json(path: Path) -> dict[str, Any] | None:
    """Read a JSON object; None without the file.

    Raises OutputError if it is damaged, holds a number that is not finite, or something else.
    """
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_JSON_BYTES + 1)
        if len(raw) > MAX_JSON_BYTES:
            raise ValueError(f"it is longer than {MAX_JSON_BYTES:,} bytes")
        value = json.loads(raw, parse_constant=_finite)
        try:
            json.dumps(value, allow_nan=False)  # faster than a function for every number
        except ValueError:
            json.loads(raw, parse_float=_finite)  # which names the number
    except FileNotFoundError:
        return None
    except RecursionError:
        reason = "it is nested too deeply"
    except (ValueError, OSError) as error:
        if through := _through_a_file(path, error):
            raise OutputError(f"{path} cannot be read: {through}") from error
        reason = str(error)
    else:
        if isinstance(value, dict):
            return value
        reason = "it holds no JSON object"
    raise OutputError(
        f"{path} cannot be read: {reason}; remove or mend the file, or choose another folder"
    )


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:40]} is no finite number")
    return number


@contextmanager
def owned(folder: Path, *parts: str) -> Iterator[Path]:
    """Hold the lock of a folder, which is made if it is missing, and removed if it stays empty.

    What killed processes left is removed from it, and from `parts`, the names of folders in it.

    Raises:
        OutputError: it is a file, holds symbolic links, which would lead out of it, or the lock of
            another program, cannot be written, or another process writes it.
    """
    if folder.exists() and not folder.is_dir():
        raise OutputError(f"{folder} is a file; choose another output_dir")
    made = [each for each in (folder, *folder.parents) if not each.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _refuse_links(folder)
        lock, is_foreign = FileLock(folder / LOCK), _is_foreign(folder / LOCK)
        owner = _signed(folder / LOCK)
        lock.acquire(timeout=0)
    except Timeout as error:
        who = f"process {owner['pid']} on {owner['host']}" if owner else "another process"
        _sign(folder / LOCK, owner)  # filelock before 4 has emptied it
        raise OutputError(f"{folder} is being written by {who}") from error
    except OSError as error:
        through = _through_a_file(folder, error)
        why = through or f"{error.strerror or error}; choose another output_dir"
        raise OutputError(f"{folder} cannot be written: {why}") from error
    path = Path(os.path.abspath(folder))
    lock_id = _held[path] = _file_id(folder / LOCK)
    try:
        if not is_foreign:
            _sign(folder / LOCK, {"pid": os.getpid(), "host": socket.gethostname()})
        for each in (folder, *(folder / part for part in parts)):
            for left in each.iterdir() if each.is_dir() else ():
                if PARTIAL.fullmatch(left.name):
                    left.unlink(missing_ok=True)
        yield folder
    finally:
        _held.pop(path, None)
        # while it is held: whoever waits for this file sees that it is gone
        if not is_foreign and _file_id(folder / LOCK) == lock_id:
            with suppress(OSError):
                (folder / LOCK).unlink(missing_ok=True)
        lock.release()
        with suppress(OSError):  # as soon as one holds something
            for each in made:
                each.rmdir()


_held: dict[Path, tuple[int, int] | None] = {}  # device and number of the locks, by folder


def _file_id(path: Path) -> tuple[int, int] | None:
    with suppress(OSError):
        return (status := path.stat()).st_dev, status.st_ino
    return None


def check_owned(folder: Path) -> None:
    """Raise OutputError if a folder whose lock this process took was moved or replaced meanwhile.

    Another process may write the new one.
    """
    lock_id = _held.get(Path(os.path.abspath(folder)))
    if lock_id is not None and _file_id(folder / LOCK) != lock_id:
        raise OutputError(
            f"{folder} was moved or replaced while this process wrote it: nothing more is written. "
            "What is finished is where that folder is now; name that one in the same command to "
            "go on there"
        )


def _refuse_links(folder: Path) -> None:
    links = [path for pattern in ("*", "*/*") for path in folder.glob(pattern) if path.is_symlink()]
    if links:
        names = ", ".join(sorted(str(link.relative_to(folder)) for link in links)[:5])
        raise OutputError(
            f"{folder} holds symbolic links ({names}), which nothing is written through; remove "
            "them or choose another output_dir"
        )


def _is_foreign(lock: Path) -> bool:
    """Whether a lock is there that this library did not make; OutputError if it is none."""
    if not lock.exists():
        return False
    if not lock.is_file() or (lock.stat().st_size and not _signed(lock)):
        raise OutputError(f"{lock} belongs to another program; choose another output_dir")
    return not lock.stat().st_size


def _sign(lock: Path, owner: dict[str, Any]) -> None:
    """Say in a lock who holds it, for the message to others."""
    with suppress(OSError), lock.open("r+", encoding="utf-8") as file:  # Windows forbids it
        if owner:
            file.write(json.dumps(owner) + "\n")
            file.truncate()


def _signed(lock: Path) -> dict[str, Any]:
    """What `_sign` wrote; empty for other files."""
    try:
        with lock.open(encoding="utf-8") as file:
            owner = json.loads(file.read(1000))
        return {"pid": int(owner["pid"]), "host": str(owner["host"])}
    except (OSError, ValueError, TypeError, LookupError, RecursionError):
        return {}


def is_owned(folder: Path) -> bool:
    """True while a process holds the lock of `owned` on this folder."""
    if not (folder / LOCK).is_file() or (folder / LOCK).is_symlink():
        return False
    try:
        with FileLock(folder / LOCK, timeout=0):
            return False
    except Timeout:
        return True
    except OSError:
        return False


def open_log(path: Path) -> Any:
    """A text file to append lines to; OSError for a symbolic link in its place."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
    return os.fdopen(os.open(path, flags, 0o666), "a", encoding="utf-8")


def refuse_other_files(folder: Path, missing: str, allowed: Collection[str] = ()) -> None:
    """Refuse a folder that lacks the record `missing` and holds other files than `allowed`."""
    others = sorted({path.name for path in folder.iterdir()} - {LOCK, *allowed})
    if others:
        raise OutputError(
            f"{folder} holds other files ({', '.join(others[:5])}) and no {missing}; "
            "choose another output_dir"
        )


def sha256(path: Path) -> str:
    """Hexadecimal sha256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def checksums(folder: Path) -> dict[str, str | None]:
    """Sha256 of every file in a folder by name; None for a folder in it."""
    paths = sorted(folder.iterdir())
    return {path.name: sha256(path) if path.is_file() else None for path in paths}


def changed_file(folder: Path, record: Mapping[str, Any]) -> str:
    """The first file of a model folder that is not as ``result.json`` says; empty if all are.

    The model card, which is for people to write on, is left out.
    """
    files = record.get("files")
    for name, digest in files.items() if isinstance(files, dict) else ():
        path = folder / Path(name).name
        if name == CARD or not isinstance(digest, str):
            continue
        if not path.is_file():
            return f"{name} is missing"
        if sha256(path) != digest:
            return f"{name} was changed after it was written (its sha256 is another)"
    return ""


def versions() -> dict[str, str]:
    """Versions of Python, the platform and the packages that decide a result."""
    packages = ("smoothtune", "torch", "transformers", "datasets", "numpy")
    installed = {name: _version(name) for name in packages}
    return {"python": platform.python_version(), "platform": platform.platform()} | installed


def cache_folder() -> Path:
    """Where files that serve many runs are kept: SMOOTHTUNE_CACHE, else the user's cache."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("SMOOTHTUNE_CACHE") or Path(base) / "smoothtune")
