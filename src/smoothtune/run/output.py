"""The output folder of a run: who may write it, what is finished, and how it becomes so.

While a run goes on, the folder holds ``run.json`` (the configuration) and ``checkpoints/``. The
model is written to a hidden folder first and moved in file by file, ``result.json`` last: a folder
with ``result.json`` is complete.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from smoothtune.config.run import RunConfig
from smoothtune.errors import OutputError
from smoothtune.files import LOCK, RESULT, owned, write_json

STARTED = "run.json"
CHECKPOINTS = "checkpoints"
STAGING = ".unfinished"


def finished_result(config: RunConfig) -> dict[str, Any] | None:
    """The result of this very run, if it is done and not to be replaced."""
    result = _read(Path(config.output_dir) / RESULT)
    if result is None or config.overwrite_output_dir or differences(result, config):
        return None
    return result


@contextmanager
def claimed(config: RunConfig, *, resume: bool) -> Iterator[Path]:
    """Own the output folder for the time of a run.

    Args:
        config: the run.
        resume: go on from the newest checkpoint.

    Yields:
        The folder, with ``run.json`` written; a replaced run's checkpoints are gone, its finished
        model stays until the new one is complete.

    Raises:
        OutputError: the folder holds something else, another process writes it, or there is
            nothing to resume.
    """
    with owned(Path(config.output_dir)) as folder:
        _check_folder(folder, config, resume)
        started = {"config": config.model_dump(mode="json")}
        write_json(folder / STARTED, started | {"method_versions": config.method_versions()})
        yield folder


def newest_checkpoint(folder: Path) -> Path | None:
    """The checkpoint of the latest step in an output folder."""
    found = [path for path in folder.glob(f"{CHECKPOINTS}/checkpoint-*/trainer_state.json")]
    steps = [path.parent for path in found if path.parent.name.split("-")[-1].isdecimal()]
    return max(steps, key=lambda path: int(path.name.split("-")[-1]), default=None)


def publish(folder: Path, result: dict[str, Any], *, keep_checkpoints: bool) -> None:
    """Move the staged model into the folder and write ``result.json`` as the last file.

    Args:
        folder: the output folder; ``STAGING`` in it holds the complete new files.
        result: the content of ``result.json``; the names of the files are added.
        keep_checkpoints: leave ``checkpoints/`` in the folder.
    """
    staging = folder / STAGING
    names = sorted(path.name for path in staging.iterdir())
    replaced = _read(folder / RESULT) or {}
    (folder / RESULT).unlink(missing_ok=True)
    for name in set(replaced.get("files", [])) - set(names):
        (folder / Path(name).name).unlink(missing_ok=True)
    for name in names:  # safetensors writes files that only their owner may read
        shutil.copymode(staging / "README.md", staging / name)
    for name in names:
        os.replace(staging / name, folder / name)
    staging.rmdir()
    write_json(folder / RESULT, result | {"files": names})
    (folder / STARTED).unlink(missing_ok=True)
    if not keep_checkpoints:
        shutil.rmtree(folder / CHECKPOINTS, ignore_errors=True)


def differences(record: Mapping[str, Any], config: RunConfig) -> list[str]:
    """Fields in which a recorded run differs from a configuration, as ``seed 1, here 2``."""
    there, here = dict(record.get("config", {})), config.identity()
    there["versions of methods"] = record.get("method_versions")
    here["versions of methods"] = config.method_versions()
    return [
        f"{key} {there.get(key)!r}, here {value!r}"
        for key, value in here.items()
        if there.get(key) != value
    ]


def _check_folder(folder: Path, config: RunConfig, resume: bool) -> None:
    record = _read(folder / RESULT) or _read(folder / STARTED)
    others = sorted(path.name for path in folder.iterdir() if path.name != LOCK)
    if record is None and others:
        raise OutputError(
            f"{folder} holds other files ({', '.join(others[:5])}) and no run of smoothtune; "
            "choose another output_dir"
        )
    shutil.rmtree(folder / STAGING, ignore_errors=True)
    if config.overwrite_output_dir and not resume:
        shutil.rmtree(folder / CHECKPOINTS, ignore_errors=True)
        return
    checkpoint = newest_checkpoint(folder)
    if resume and not checkpoint:
        raise OutputError(f"{folder} holds no checkpoint to resume from")
    if not checkpoint and not (folder / RESULT).exists():
        return  # a run that failed early left nothing to lose
    if record and (different := differences(record, config)):
        raise OutputError(
            f"{folder} holds a different run ({'; '.join(different)}); choose another output_dir "
            "or replace that run with overwrite_output_dir"
        )
    if checkpoint and not resume:
        raise OutputError(
            f"{folder} holds this run, stopped at {checkpoint.name}; go on with "
            "--resume-from-checkpoint, or start again with --overwrite-output-dir"
        )


def _read(path: Path) -> dict[str, Any] | None:
    """A JSON record of ours; None without the file."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (ValueError, OSError) as error:
        raise OutputError(f"{path} cannot be read: {error}; choose another output_dir") from error
    if not isinstance(record, dict):
        raise OutputError(f"{path} is no record of a run; choose another output_dir")
    return record
