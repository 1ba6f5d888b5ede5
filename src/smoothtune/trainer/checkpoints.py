"""Checkpoints that are complete or absent, as their manifest says, the last file to be written.

One that is written again is set aside first, so that a complete one is there at every moment.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from copy import copy
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import Trainer, TrainerState

from smoothtune.core.objective import Objective
from smoothtune.errors import CheckpointError, OutputError
from smoothtune.files import why_not_written
from smoothtune.nn import rng
from smoothtune.trainer.manifest import (
    ASIDE,
    STATE_FILE,
    about,
    checkpoints_in,
    files_of_others,
    is_committed,
    manifest_of,
    newest,
    nothing_to_resume,
    order,
    remove,
    remove_remains,
    why_unusable,
    write_manifest,
)
from smoothtune.trainer.run_record import describe_run, differences


class Checkpoints:
    """Writes, chooses and removes the checkpoints of one trainer."""

    def __init__(self, trainer: Trainer, objective: Objective) -> None:
        self.trainer: Any = trainer
        self.objective = objective
        self.run: dict[str, Any] = {}  # what a resumed run must have in common with this one
        self.limit: int | None = None  # the trainer's `save_total_limit`
        self.resumed_from: Path | None = None
        self.drawn: rng.State | None = None  # after the evaluation that a checkpoint lacked

    # --- going on from one -------------------------------------------------------------------

    def choose(self, resume_from_checkpoint: str | bool | None) -> list[str]:
        """Set `resumed_from` as an argument of `train` means it; what the user should know of it.

        Raises:
            CheckpointError: it is not complete, was changed, or belongs to another run.
        """
        self.run = describe_run(self.trainer, self.objective)
        self.resumed_from = self.drawn = None
        if not resume_from_checkpoint:
            return []
        if resume_from_checkpoint is True:
            folder = Path(str(self.trainer.args.output_dir))
            checkpoint, notes = newest(folder)
            if checkpoint is None:
                raise CheckpointError("; ".join([nothing_to_resume(folder), *notes]))
        else:
            checkpoint = Path(resume_from_checkpoint)
            if why := why_unusable(checkpoint):
                raise CheckpointError(
                    f"{checkpoint} cannot be resumed from: {why}; take another checkpoint, or "
                    "start a new run"
                )
            notes = about(checkpoint)
        if changed := differences(manifest_of(checkpoint)["run"], self.run):
            raise CheckpointError(
                f"{checkpoint} was written by a different run ({changed}): resume with the same "
                "settings, or start a new run from its weights with from_pretrained"
            )
        self.resumed_from = checkpoint
        return notes

    def go_on(self) -> None:
        """Load the methods' state, and do what the resumed run did not come to after its save."""
        checkpoint = self.resumed_from
        if checkpoint is None:
            return
        written = TrainerState.load_from_json(str(checkpoint / "trainer_state.json"))
        if written.best_model_checkpoint is not None:
            self._set_best(checkpoint.with_name(Path(written.best_model_checkpoint).name))
        try:
            self.objective.load_state_dict(load_file(checkpoint / STATE_FILE))
        except KeyError as error:
            raise CheckpointError(
                f"{checkpoint / STATE_FILE} has no entry {error}: resume with the methods of "
                "the interrupted run"
            ) from error
        self._evaluate_if_due(checkpoint)
        self._rotate_if_due(checkpoint)

    def _set_best(self, best: Path) -> None:
        """Beside the one resumed from, wherever both lay before; it may not have been written."""
        self.trainer.state.best_model_checkpoint = str(best) if best.is_dir() else None
        if self.trainer.args.load_best_model_at_end:
            self.check_best(best)

    def _evaluate_if_due(self, checkpoint: Path) -> None:
        """Evaluate, if the checkpoint was written before its step's evaluation.

        The best checkpoint, early stopping and the next random numbers depend on it. It is so where
        a signal or a kill came before the evaluation, as after an epoch, had ended.
        """
        trainer = self.trainer
        if not _lacks_evaluation(trainer.args, trainer.state):
            return
        trainer._load_rng_state(str(checkpoint))
        if metrics := trainer._evaluate(None, None):  # else a signal came again
            if trainer._determine_best_metric(metrics=metrics, trial=None):
                self._set_best(checkpoint.with_name(f"checkpoint-{trainer.state.global_step}"))
            self.drawn = rng.get_state(trainer.args.device)

    def _rotate_if_due(self, checkpoint: Path) -> None:
        """Remove those before the last checkpoint, if a kill came first."""
        folder, args = checkpoint.parent, self.trainer.args
        is_last = all(order(path) <= order(checkpoint) for path in checkpoints_in(folder))
        if args.should_save and folder == Path(str(args.output_dir)) and is_last:
            self._rotate(checkpoint)

    def restore_draws(self) -> None:
        """After the trainer's `_load_rng_state`: go on behind the evaluation that was made up."""
        if self.drawn is not None:
            rng.set_state(self.trainer.args.device, self.drawn)

    def check_best(self, best: Path) -> None:
        """Refuse a best checkpoint that is not there, or was damaged, before it is loaded."""
        if why := why_unusable(best, to_resume=False):
            raise CheckpointError(
                f"{best} has the best score, and its weights are to be kept at the end, but {why}: "
                "train again from the beginning, or without load_best_model_at_end"
            )

    # --- writing and removing ----------------------------------------------------------------

    @contextmanager
    def all_kept(self) -> Iterator[None]:
        """Have the Trainer remove no checkpoint; `save` does so, when a new one is complete.

        The last one is what a run that is killed after its training goes on from.
        """
        args = self.trainer.args
        self.limit, args.save_total_limit = args.save_total_limit, None
        try:
            yield
        finally:
            args.save_total_limit = self.limit

    def save(self, write: Callable[..., None], model: Any, trial: Any = None) -> None:
        """Within `all_kept`, around `write`, the trainer's own method, with its arguments.

        Raises:
            OutputError: it cannot be written; the checkpoint before it is as it was.
        """
        trainer, args = self.trainer, self.trainer.args
        name = f"checkpoint-{trainer.state.global_step}"
        checkpoint = Path(trainer._get_output_dir(trial=trial)) / name
        try:
            others = _set_aside(checkpoint) if args.should_save else set()
            trainer.accelerator.wait_for_everyone()
            write(model, trial)
            trainer.accelerator.wait_for_everyone()
            if args.should_save:
                self._complete(checkpoint, others)
        except Exception as error:  # of libraries that write, some have no class of their own
            if not (why := why_not_written(error)):
                raise
            _give_back(checkpoint)
            raise OutputError(
                f"{checkpoint} cannot be written: {why}; {_room(checkpoint.parent)}; make room or "
                "give the right to write, and resume from the checkpoint before it, if there is one"
            ) from error
        if args.should_save:
            self._rotate(checkpoint)

    def _complete(self, checkpoint: Path, others: set[str]) -> None:
        arguments = checkpoint / "training_args.bin"
        if arguments.exists():  # written while the limit was lifted
            written = copy(self.trainer.args)
            written.save_total_limit = self.limit
            torch.save(written, arguments)
        state = self.objective.state_dict().items()
        save_file({k: t.detach().cpu().contiguous() for k, t in state}, checkpoint / STATE_FILE)
        for path in checkpoint.iterdir():  # safetensors writes files with owner-only permissions
            if path.is_file():
                shutil.copymode(checkpoint / "trainer_state.json", path)
        write_manifest(checkpoint, self.run, others)

    def _rotate(self, new: Path) -> None:
        """Remove what was set aside and the oldest checkpoints, as `save_total_limit` says.

        What cannot be removed now is removed after a later checkpoint, or when training resumes.
        """
        for old in [path for path in checkpoints_in(new.parent) if path.name.startswith(ASIDE)]:
            with suppress(OSError):
                remove(old)
        remove_remains(new.parent)
        if not self.limit or self.limit <= 0:
            return
        best = self.trainer.state.best_model_checkpoint
        kept = {new, Path(best)} if best else {new}
        times = {path: path.stat().st_mtime for path in checkpoints_in(new.parent)}
        apart = max(times.values()) - min(times.values()) >= 1  # else those of a copy
        others = sorted(
            times.keys() - kept,
            key=lambda path: (is_committed(path), times[path] if apart else 0, order(path)),
        )
        for old in others[: max(0, len(others) + len(kept) - max(self.limit, len(kept)))]:
            with suppress(OSError):
                remove(old)


def _lacks_evaluation(args: Any, state: Any) -> bool:
    """Whether the log of a checkpoint has no evaluation of its step, and one was due."""
    step, is_last = state.global_step, state.global_step >= state.max_steps
    if args.eval_strategy == "epoch":
        due = args.eval_delay <= state.epoch and (is_last or float(state.epoch).is_integer())
    else:
        due = args.eval_strategy == "steps" and args.eval_delay <= step
        due = due and (is_last or step % state.eval_steps == 0)
    logged = (entry.keys() for entry in state.log_history if entry.get("step") == step)
    return due and not any(key.startswith("eval_") for keys in logged for key in keys)


def _aside(checkpoint: Path) -> Path:
    return checkpoint.with_name(ASIDE + checkpoint.name)


def _set_aside(checkpoint: Path) -> set[str]:
    """Keep a checkpoint of the same step until the new one is complete; remove a broken one.

    Returns:
        Names of files of others that are left in its place.
    """
    if not checkpoint.exists():
        return set()
    if why_unusable(checkpoint):
        remove(checkpoint)
        return files_of_others(checkpoint) if checkpoint.exists() else set()
    if _aside(checkpoint).exists():
        remove(_aside(checkpoint))
    os.replace(checkpoint, _aside(checkpoint))
    return set()


def _give_back(checkpoint: Path) -> None:
    """After a failed write: what was there before."""
    with suppress(OSError):
        remove(checkpoint)
        if _aside(checkpoint).exists():
            os.replace(_aside(checkpoint), checkpoint)


def _room(folder: Path) -> str:
    try:
        return f"{shutil.disk_usage(folder).free / 1e6:.0f} MB are free"
    except OSError:
        return "how much is free is not known"
