"""The output folder of a run: locking, resuming, publishing and uploading the finished model.

While a run goes on, the folder holds ``run.json`` (the configuration) and ``checkpoints/``. The
model is written to a hidden folder first and moved in file by file, ``result.json`` last: a folder
with ``result.json`` is complete.
"""

import math
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import huggingface_hub
from pydantic import Field, field_validator
from rich.console import Console

from smoothtune.config.names import TUNE
from smoothtune.config.run import RunConfig
from smoothtune.console import quiet, say
from smoothtune.errors import OutputError, changed_fields
from smoothtune.files import (
    CARD,
    RESULT,
    changed_file,
    check_owned,
    checksums,
    owned,
    read_json,
    refuse_other_files,
    why_not_written,
    write_json,
)
from smoothtune.results import Record
from smoothtune.run.processes import world_size
from smoothtune.trainer.manifest import (
    ResumePoint,
    newest,
    nothing_to_resume,
    remove_all,
    remove_remains,
)
from smoothtune.trainer.run_record import CUT

STARTED = "run.json"
CHECKPOINTS = "checkpoints"
STAGING = ".unfinished"
MEND = "remove the file, or choose another output_dir"


def finished_result(config: RunConfig) -> dict[str, Any] | None:
    """The recorded result if this same run is finished and is not to be replaced.

    Raises OutputError if a file of its model was changed, or is missing.
    """
    folder = Path(config.output_dir)
    result = _recorded(folder / RESULT)
    if result is None or config.overwrite_output_dir or _changed(result, config):
        return None
    if why := changed_file(folder, result):
        raise OutputError(
            f"{folder} holds this run, finished, but {why}: restore the file, or train again with "
            "--overwrite-output-dir"
        )
    return result


@contextmanager
def claimed(config: RunConfig, *, resume: bool) -> Iterator[Path]:
    """Lock the output folder for the time of a run, check it, and write ``run.json`` into it.

    A replaced run's checkpoints are gone then; its finished model stays until the new one is
    complete. Raises OutputError as `owned` and `refuse_folder`.
    """
    with owned(Path(config.output_dir)) as folder:
        refuse_folder(folder, config, resume=resume)
        shutil.rmtree(folder / STAGING, ignore_errors=True)
        if config.overwrite_output_dir and not resume:
            remove_all(folder / CHECKPOINTS)
        started = {"config": config.in_force(), "world_size": world_size()}
        write_json(folder / STARTED, started | {"method_versions": config.method_versions()})
        yield folder


def newest_checkpoint(folder: Path) -> ResumePoint:
    """The complete checkpoint of the latest step in an output folder."""
    return newest(folder / CHECKPOINTS)


def publish(folder: Path, result: dict[str, Any], *, keep_checkpoints: bool) -> None:
    """Move the staged model into the folder and write ``result.json`` as the last file.

    `STAGING` in the folder holds the complete new files; `result` is written with the sha256 of
    each.
    """
    staging = folder / STAGING
    files = checksums(staging)
    names = list(files)
    write_json(staging / RESULT, result | {"files": files})  # from here on nothing takes room
    check_owned(folder)
    replaced = read_json(folder / RESULT) or {}
    (folder / RESULT).unlink(missing_ok=True)
    listed = replaced.get("files", [])
    for path in [path for path in folder.iterdir() if path.name in {*names, *listed}]:
        if path.is_dir():  # as of chat templates: a folder takes the place of no other
            shutil.rmtree(path)
        elif path.name not in names:
            path.unlink()
    for path in staging.rglob("*"):  # safetensors writes files with owner-only permissions
        if path.is_file():
            shutil.copymode(staging / CARD, path)
    for name in names:
        os.replace(staging / name, folder / name)
    os.replace(staging / RESULT, folder / RESULT)
    _clean_up(folder, keep_checkpoints=keep_checkpoints)


def clean_up_after(config: RunConfig) -> None:
    """Remove what a run left that was killed when its model was written, and only then."""
    folder = Path(config.output_dir)
    begun = _recorded(folder / STARTED)
    if begun is not None and not _changed(begun, config):  # else it is of a later run
        with owned(folder):
            _clean_up(folder, keep_checkpoints=keeps_checkpoints(config))


def keeps_checkpoints(config: RunConfig) -> bool:
    """Whether checkpoints stay when the run is done."""
    return config.save_strategy != "no"


def _clean_up(folder: Path, *, keep_checkpoints: bool) -> None:
    """Remove what a finished run needs no more; ``run.json``, the last, says that it is there."""
    shutil.rmtree(folder / STAGING, ignore_errors=True)
    if keep_checkpoints:
        remove_remains(folder / CHECKPOINTS)
    else:
        remove_all(folder / CHECKPOINTS)
    (folder / STARTED).unlink(missing_ok=True)


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Turn a failed write into OutputError, which says what to do; remove what was unfinished."""
    try:
        yield
    except Exception as error:  # of libraries that write, some have no class of their own
        cause = error.__cause__ if isinstance(error, OutputError) else error
        why = why_not_written(cause) if isinstance(cause, Exception) else ""
        if not why:
            raise
        shutil.rmtree(folder / STAGING, ignore_errors=True)
        saved = newest_checkpoint(folder).folder
        again = " and --resume-from-checkpoint" if saved else ""
        raise OutputError(
            f"the model cannot be written to {folder}: {why}; make room or give the right to "
            f"write, and run the same command{again}"
        ) from error


def push(config: RunConfig, result: dict[str, Any], console: Console) -> None:
    """Upload the model, its card and ``result.json``, if the run says so; nothing else.

    Raises OutputError if the hub does not take it; the folder on disk is complete.
    """
    if not config.push_to_hub:
        return
    folder, files = Path(config.output_dir), result["files"]
    name = config.hub_model_id or folder.resolve().name
    folders = [f"{name}/*" for name, digest in files.items() if digest is None]
    try:
        with quiet():
            repository = huggingface_hub.create_repo(
                name, private=config.hub_private_repo, exist_ok=True
            )
            huggingface_hub.upload_folder(
                repo_id=repository.repo_id,
                folder_path=folder,
                allow_patterns=[*files, *folders, RESULT],
                commit_message="Model trained with smoothtune",
            )
    except Exception as error:  # of the network, of rights, of names
        raise OutputError(
            f"{folder} is complete, but could not be uploaded to {name}: {error}; log in with "
            "`hf auth login` and give the same command again, which only uploads"
        ) from error
    say(console, f"uploaded to {repository}")


def refuse_folder(folder: Path, config: RunConfig, *, resume: bool = False) -> None:
    """Refuse, by OutputError, a folder that a run must not write; changes nothing."""
    record = _recorded(folder / STARTED) or _recorded(folder / RESULT)  # the last that was begun
    if record is None and folder.exists():
        refuse_other_files(folder, "run of smoothtune", (TUNE,))
    if config.overwrite_output_dir and not resume:
        return
    checkpoint, notes = newest_checkpoint(folder)
    if resume and not checkpoint:
        raise OutputError("; ".join([nothing_to_resume(folder), *notes]))
    if not checkpoint and not (folder / RESULT).exists():
        return  # a run that failed early left nothing to lose
    if record and (changed := _changed(record, config, resume=resume)):
        raise OutputError(
            f"{folder} holds a different run ({changed}); choose another output_dir "
            f"or replace that run with --overwrite-output-dir{_same_update(record, changed)}"
        )
    if checkpoint and not resume:
        raise OutputError(
            f"{folder} holds this run, stopped at {checkpoint.name}; go on with "
            "--resume-from-checkpoint, or start again with --overwrite-output-dir"
        )


class _Started(Record):
    """``run.json`` or ``result.json``, as far as it says which run it is."""

    config: dict[str, Any]
    method_versions: dict[str, int] | None = None
    world_size: Annotated[int, Field(ge=1)] = 1

    @field_validator("config")
    @classmethod
    def _can_be_compared(cls, config: dict[str, Any]) -> dict[str, Any]:
        methods = config.get("methods", {})
        if not isinstance(methods, dict) or not all(isinstance(f, dict) for f in methods.values()):
            raise ValueError("methods must hold fields by name")
        if not all(isinstance(config.get(name) or 1, int) for name in CUT):
            raise ValueError(f"{' and '.join(CUT)} must be whole numbers")
        return config


def _recorded(path: Path) -> dict[str, Any] | None:
    record = read_json(path)
    if record is not None:
        _Started.check(record, path, "train", mend=MEND)
    return record


def _changed(record: Mapping[str, Any], config: RunConfig, *, resume: bool = False) -> str:
    """Fields in which a recorded run differs from a configuration; empty if none does.

    A resumed run may cut its updates otherwise, over more processes or fewer.
    """
    recorded = _run_of(record) | {"versions of methods": record.get("method_versions")}
    current = config.identity() | {"versions of methods": config.method_versions()}
    current["world_size"] = world_size()
    if resume and _examples(recorded) == _examples(current):
        current = {name: value for name, value in current.items() if name not in CUT}
    return changed_fields(recorded, current)


def _run_of(record: Mapping[str, Any]) -> dict[str, Any]:
    return {**record.get("config", {}), "world_size": record.get("world_size", 1)}


def _examples(run: Mapping[str, Any]) -> int:
    """Examples per update of a recorded run or of this one."""
    return math.prod(int(run.get(name) or 1) for name in CUT)


def _same_update(record: Mapping[str, Any], changed: str) -> str:
    """What a run resumed on another number of processes has to keep."""
    if "world_size" not in changed:
        return ""
    return (
        "; it is resumed on another number of processes with its "
        f"{_examples(_run_of(record))} examples per update: processes x "
        "per_device_train_batch_size x gradient_accumulation_steps"
    )
