"""Trainer callbacks: progress and logs, and stopping on a signal."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from transformers import TrainerCallback
from transformers.trainer_callback import ExportableState

from smoothtune.console import progress_bar, say
from smoothtune.files import check_owned
from smoothtune.run.processes import from_main, is_main
from smoothtune.run.signals import Signals
from smoothtune.trainer.manifest import is_committed

QUIET = {"epoch", "step", "total_flos", "train_runtime", "train_samples_per_second"}
QUIET |= {"train_steps_per_second", "train_loss"}
QUIET |= {f"eval_{key}" for key in ("runtime", "samples_per_second", "steps_per_second")}


class ProgressCallback(TrainerCallback):
    """A progress bar in a terminal, and a line for every logged loss and every evaluation."""

    def __init__(self, console: Console, title: str) -> None:
        self.console, self.title = console, title
        self.bar = progress_bar(console)

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Open the bar."""
        self.row = self.bar.add_task(self.title, total=state.max_steps, completed=state.global_step)
        self.bar.start()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Advance the bar."""
        self.bar.update(self.row, completed=state.global_step)

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **_: Any
    ) -> None:
        """Print the loss by term, or the metrics of an evaluation."""
        shown = {key: value for key, value in (logs or {}).items() if key not in QUIET}
        if shown:
            parts = [f"{key.removeprefix('eval_')} {value:.4g}" for key, value in shown.items()]
            phase = "evaluation" if any(key.startswith("eval_") for key in shown) else "train"
            where = f"{self.title} step {state.global_step}/{state.max_steps}"
            say(self.console, f"{where} {phase}: {'  '.join(parts)}")

    def close(self) -> None:
        """Close the bar."""
        self.bar.stop()


class ShortRunLogs(TrainerCallback):
    """Logs the losses of a short run `LINES` times, in place of every `logging_steps` updates."""

    LINES = 10

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Ask for a log."""
        every = max(1, state.max_steps // self.LINES)
        if every < args.logging_steps:
            control.should_log = state.global_step % every == 0


@dataclass
class EarlyStopping(TrainerCallback):
    """Ends the training after `patience` evaluations in a row without a better score.

    It counts in the log, which checkpoints hold: a resumed run stops where it would have stopped. A
    score that is better by no more than `threshold` is no better. `counts` says whether an
    evaluation after so many updates counts.
    """

    metric: str
    greater_is_better: bool
    patience: int
    threshold: float
    counts: Callable[[int], bool] = lambda _: True

    def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Look at the last score."""
        if self.stopped(state.log_history):
            control.should_training_stop = True

    on_train_begin = on_evaluate  # a run resumed at the step at which it was stopped is at its end

    def stopped(self, log: list[dict[str, float]]) -> bool:
        """Whether the last evaluations of a log were no better than the best before them."""
        best, waited = -math.inf, 0
        for entry in log:
            if self.metric not in entry or not self.counts(int(entry.get("step", 0))):
                continue
            score = entry[self.metric] if self.greater_is_better else -entry[self.metric]
            waited = 0 if score > best + self.threshold else waited + 1
            best = max(best, score)
        return waited >= self.patience


class Stopwatch(TrainerCallback, ExportableState):
    """Seconds of training, with those before the checkpoint that a run was resumed from."""

    def __init__(self) -> None:
        self.before, self.start, self.resumed_from = 0.0, time.perf_counter(), 0

    @property
    def seconds(self) -> float:
        """Since the training began."""
        return self.before + time.perf_counter() - self.start

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds."""
        return {"args": {}, "attributes": {"before": self.seconds}}

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Go on counting."""
        if state.global_step:
            saved = state.stateful_callbacks[type(self).__name__]
            self.before, self.resumed_from = saved["attributes"]["before"], state.global_step


class StillOwned(TrainerCallback):
    """Ends a run whose folder was moved or replaced, before it writes into the new one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """A checkpoint may follow."""
        if is_main():
            check_owned(self.folder)

    on_evaluate = on_step_end  # it takes time


class EvaluationEnded(BaseException):
    """A signal came during an evaluation."""


def is_saved(args: Any, state: Any) -> bool:
    """Whether there is a checkpoint of the step that the training is at."""
    checkpoint = Path(args.output_dir, f"checkpoint-{state.global_step}")
    return from_main(lambda: is_committed(checkpoint))


class StopOnSignal(TrainerCallback):
    """After a signal, finish the step, write a checkpoint and stop; an evaluation is cut short."""

    def __init__(self, signals: Signals) -> None:
        self.signals = signals

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Ask the loop for a checkpoint and the end."""
        if self.signals.agree():
            control.should_save = control.should_training_stop = True
            control.should_evaluate = False

    def on_prediction_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """End an evaluation; in training, with a checkpoint after it."""
        if self.signals.agree():
            control.should_save = control.should_training_stop = True
            raise EvaluationEnded

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """The checkpoint just written is the one to go on from."""
        if self.signals.agree():
            control.should_training_stop = True

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Neither evaluate nor save again at the end of an epoch that was cut."""
        if self.signals.agree():
            control.should_save, control.should_evaluate = not is_saved(args, state), False
            control.should_training_stop = True
