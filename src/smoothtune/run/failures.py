"""What a run that fails says: which batch was too large, and what to do about a full disk."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from smoothtune.config.run import RunConfig
from smoothtune.errors import OutOfMemory, OutputError, is_out_of_memory
from smoothtune.files import why_not_written
from smoothtune.run.output import STAGING, newest_checkpoint


@contextmanager
def naming_memory(config: RunConfig) -> Iterator[None]:
    """Say of an error of memory which batch size was too large.

    Raises:
        OutOfMemory: torch, the driver or Python had no memory left.
    """
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        rows, steps = config.per_device_train_batch_size, config.gradient_accumulation_steps
        smaller = (
            f"per_device_train_batch_size={rows // 2} with "
            f"gradient_accumulation_steps={steps * 2}, which is the same update; "
            if rows > 1 and rows % 2 == 0
            else ""
        )
        raise OutOfMemory(
            f"out of memory with per_device_train_batch_size {rows}, per_device_eval_batch_size "
            f"{config.per_device_eval_batch_size} and max_seq_length {config.max_seq_length} "
            f"({str(error).splitlines()[0] if str(error) else type(error).__name__}); try "
            f"{smaller}gradient_checkpointing=true, a shorter max_seq_length, a smaller "
            "per_device_eval_batch_size or lora"
        ) from error


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Say of a failed write what to do; what was unfinished is removed.

    Raises:
        OutputError: the disk is full, or may not be written.
    """
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
