"""One training run, from its configuration to a model folder with ``result.json``."""

import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from datasets import Dataset
from rich.console import Console
from torch import Tensor
from transformers import PreTrainedModel

from smoothtune.config.run import RunConfig
from smoothtune.console import quiet, say
from smoothtune.device import SLOW_BFLOAT16, slow_at_bfloat16
from smoothtune.errors import OutOfMemory, OutputError, Stopped, is_out_of_memory
from smoothtune.files import CARD, RESULT, check_owned, read_json, write_atomic
from smoothtune.memory import keep_freed_memory
from smoothtune.models.load import Base
from smoothtune.models.lora import merged, save
from smoothtune.results import RunResult
from smoothtune.run import output, processes
from smoothtune.run.callbacks import (
    EvaluationEnded,
    ProgressCallback,
    ShortRunLogs,
    StillOwned,
    StopOnSignal,
    Stopwatch,
    is_saved,
)
from smoothtune.run.cost import scored_rows, step_cost
from smoothtune.run.inputs import Inputs, prepare_model, read_inputs
from smoothtune.run.model_card import model_card
from smoothtune.run.result import below_constant, kept_weights_message, run_cost, run_result
from smoothtune.run.signals import Signals
from smoothtune.run.trainer import RunTrainer, build_trainer, evaluate, some_examples
from smoothtune.tasks.prepare import Prepared
from smoothtune.trainer.trainer import save_checkpoint


@dataclass
class Trained:
    """A trained and evaluated model, not yet written."""

    base: Base
    prepared: Prepared
    model: PreTrainedModel
    """The trained model, with all methods detached."""
    predictions: np.ndarray
    """(N, W) of the validation rows, see `Task`; for text classification the logits (N, C)."""
    result: RunResult
    weights: dict[str, Tensor] | None = None
    """Whole weights by name in place of the model's, of which FSDP2 has left it a part."""

    def save(self, folder: Path) -> None:
        """Write the files of the model folder except ``result.json``."""
        with quiet():
            save(self.model, folder, self.weights)
            self.base.tokenizer.save_pretrained(folder)
        write_atomic(folder / CARD, model_card(self.result))


def train(
    config: RunConfig, *, resume: bool = False, console: Console | None = None
) -> dict[str, Any]:
    """Fine-tune a model; `config.output_dir` becomes a model folder with result.json and a card.

    Before the first step it prints a summary of the data, the attention implementation and the
    measured cost of the methods.

    Args:
        config: the run.
        resume: continue from the newest checkpoint in the folder.
        console: where to print.

    Returns:
        The content of ``result.json``; read from the file if this same run is already finished.

    Raises:
        ConfigError: methods and model do not fit together.
        OutputError: the output folder holds something else.
        ModelError: the model cannot be loaded.
        DataError: the data cannot be read or do not fit the task.
        NonFiniteLoss: a loss term became NaN or infinite; no model is written.
        Stopped: SIGINT or SIGTERM came; a checkpoint is in the output folder.
    """
    processes.join_processes()
    console = processes.console_of_main(console)
    if result := processes.from_main(lambda: finished_here(config)):
        say(console, f"{config.output_dir} already holds this run: nothing to do")
        if processes.is_main():
            output.clean_up_after(config)
            output.push(config, result, console)
        return result
    folder, writes = Path(config.output_dir), processes.is_main()
    with output.claimed(config, resume=resume) if writes else nullcontext():
        processes.wait_for_all()
        trained = fit(config, folder, resume=resume, console=console, more_logs=True)
        if not writes:
            return trained.result.content()
        with Signals(), output.writing(folder):  # a first signal waits for the end, which is near
            check_owned(folder)
            trained.save(folder / output.STAGING)
            keep = output.keeps_checkpoints(config)
            output.publish(folder, trained.result.content(), keep_checkpoints=keep)
    scores = (f"{name} {value:.4f}" for name, value in trained.result.metrics.items())
    say(console, f"validation: {'  '.join(scores)}")
    for remark in (kept_weights_message(trained.result), below_constant(trained.result)):
        if remark:
            say(console, remark)
    output.push(config, read_json(folder / RESULT) or {}, console)
    return trained.result.content()


def finished_here(config: RunConfig) -> dict[str, Any] | None:
    """The recorded result if this same run, on the data and weights as they are, is finished.

    Raises OutputError if data or base weights are others now, or a file of the model was changed.
    """
    result = output.finished_result(config)
    if result is None:
        return None
    recorded = result.get("fingerprints", {})
    here = read_inputs(config, Console(quiet=True)).fingerprints
    if changed := [name.replace("_", " ") for name in here if here[name] != recorded.get(name)]:
        raise OutputError(
            f"{config.output_dir} holds this run, finished, but with other content of its "
            f"{' and '.join(changed)} than there is now: choose another output_dir, or replace "
            "that run with --overwrite-output-dir"
        )
    return result


def fit(
    config: RunConfig,
    folder: Path,
    *,
    resume: bool = False,
    resumable: bool = True,
    console: Console | None = None,
    more_logs: bool = False,
) -> Trained:
    """Fine-tune and evaluate as `train` does, without writing the model; the same errors.

    Args:
        config: the run; its `output_dir` is not used.
        folder: for checkpoints.
        resume: continue from the newest checkpoint in the folder.
        resumable: leave a checkpoint of the last step, so that a run that is killed in the final
            evaluation need not train again.
        console: where to print.
        more_logs: log a short run that does not say `logging_steps` oftener; no result changes.
    """
    console = console or Console()
    if config.frozen_weights == "float32":  # kept memory would hold float32 copies of the others
        keep_freed_memory()
    with Signals() as signals:
        with signals.ending(
            "stopped by a signal before the first step; nothing is lost: start again with the "
            "same command"
        ):
            if config.bf16 and slow_at_bfloat16():
                say(console, SLOW_BFLOAT16)
            with processes.main_first():
                inputs = read_inputs(config, console)
            model = prepare_model(config, inputs, console)
            with naming_memory(config):
                cost = step_cost(config, inputs, model, console)
            trainer = build_trainer(config, inputs, model, folder, console)
            if more_logs and "logging_steps" not in config.model_fields_set:
                trainer.add_callback(ShortRunLogs())
        checkpoint = None
        if resume:
            checkpoint, notes = processes.from_main(lambda: output.newest_checkpoint(folder))
            for note in notes:
                say(console, note)
        with naming_memory(config):
            title = "+".join(config.methods)
            stopwatch = train_to_the_end(trainer, title, checkpoint, signals, console)
            seconds = {"train": stopwatch.seconds}
            if resumable:
                keep_training(trainer, console)
            start = time.perf_counter()
            trained = inputs.prepared.train
            seen = some_examples(trained, scored_rows(config, len(trained)), config.seed)
            metrics, train_metrics, predictions = final_evaluation(trainer, inputs, seen)
            seconds["evaluation"] = time.perf_counter() - start
    whole_cost = run_cost(trainer, cost, seconds, stopwatch.resumed_from)
    result = run_result(config, inputs, trainer, metrics, train_metrics, seen, whole_cost)
    trainer.objective.detach()
    weights = processes.whole_weights(trainer)
    model = merged(model) if config.merge_adapter else model
    return Trained(inputs.base, inputs.prepared, model, predictions, result, weights)


@contextmanager
def naming_memory(config: RunConfig) -> Iterator[None]:
    """Turn an error of memory into OutOfMemory, which says which batch size was too large."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error) or isinstance(error, OutOfMemory):  # which names it
            raise
        rows, steps = config.per_device_train_batch_size, config.gradient_accumulation_steps
        why = (str(error) or type(error).__name__).splitlines()[0]
        smaller = (
            f"per_device_train_batch_size={rows // 2} with "
            f"gradient_accumulation_steps={steps * 2}, which is the same update; "
        ) * (rows % 2 == 0)
        raise OutOfMemory(
            f"out of memory with per_device_train_batch_size {rows}, per_device_eval_batch_size "
            f"{config.per_device_eval_batch_size} and max_seq_length {config.max_seq_length} "
            f"({why}); try {smaller}gradient_checkpointing=true, a shorter max_seq_length, a "
            "smaller per_device_eval_batch_size or lora"
        ) from error


def train_to_the_end(
    trainer: RunTrainer, title: str, checkpoint: Path | None, signals: Signals, console: Console
) -> Stopwatch:
    """Train to the last step, from a checkpoint if there is one; returns what has taken the time.

    Raises NonFiniteLoss; or Stopped, with a checkpoint.
    """
    progress, stopwatch = ProgressCallback(console, title), Stopwatch()
    still_owned = StillOwned(Path(str(trainer.args.output_dir)).parent)
    for callback in (progress, stopwatch, still_owned, StopOnSignal(signals)):
        trainer.add_callback(callback)
    try:
        with quiet():
            trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    finally:
        progress.close()
    if signals.agree():
        stop(trainer)
    return stopwatch


def final_evaluation(
    trainer: RunTrainer, inputs: Inputs, seen: Dataset
) -> tuple[dict[str, float], dict[str, float], np.ndarray]:
    """Metrics of the validation rows and of training rows `seen`, and predictions of the former."""
    try:
        metrics, predictions = evaluate(trainer, inputs.task, inputs.prepared.validation)
        train_metrics, _ = evaluate(trainer, inputs.task, seen)
    except EvaluationEnded:
        stop(trainer)
    return metrics, train_metrics, predictions


def keep_training(trainer: RunTrainer, console: Console) -> None:
    """Leave a checkpoint of the last step for the time of the evaluation; not on a full disk."""
    try:
        keep_step(trainer)
    except OutputError as error:
        say(console, f"{error}; the run goes on, but would train again if it were killed now")


def keep_step(trainer: RunTrainer) -> None:
    """Leave a checkpoint of the step that the trainer is at, unless it is there."""
    if not is_saved(trainer.args, trainer.state):
        with quiet():
            save_checkpoint(trainer)


def stop(trainer: RunTrainer) -> NoReturn:
    """Raise Stopped, with a checkpoint of the step that the trainer is at."""
    keep_step(trainer)
    done, total = trainer.state.global_step, trainer.state.max_steps
    raise Stopped(
        f"stopped by a signal after step {done} of {total}; continue with the same command and "
        "--resume-from-checkpoint"
    )
