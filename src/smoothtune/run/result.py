"""The content of ``result.json``: what a run was, what it scored and what it cost."""

from typing import Any

from datasets import Dataset

from smoothtune.config.run import RunConfig
from smoothtune.device import device_name
from smoothtune.files import versions
from smoothtune.memory import peak_memory
from smoothtune.models.paths import is_on_the_hub
from smoothtune.results import Best, Cost, RunResult
from smoothtune.run.inputs import Inputs
from smoothtune.run.processes import world_size
from smoothtune.run.trainer import RunTrainer
from smoothtune.run.training_arguments import best_score, watches_scores
from smoothtune.trainer.cost import StepCost
from smoothtune.trainer.model_record import kept_step


def kept_weights_message(result: RunResult) -> str:
    """Which weights were kept and why, of a run that scores in training decided on; else ""."""
    best, step, last = result.best, result.kept_step, result.cost.steps
    if not best:
        return ""
    end = ", where it was stopped early" * best.stopped_early
    message = f"kept: the weights of step {step} of {last}{end}"
    if best.value is None:
        return f"{message}; no evaluation came after every method's term, so none was the best"
    best_score_text = f"the best by {best.metric} ({best.value:.4f})"
    if result.config["load_best_model_at_end"]:
        return f"{message}, {best_score_text}"
    return f"{message}, the last; {best_score_text} need not be its own"


def below_constant(result: RunResult) -> str:
    """That a model is no better than the best constant answer; "" where it is."""
    if result.score > result.trivial_baseline:
        return ""
    return (
        f"{result.headline} {result.score:.4f} is not better than the best constant answer, which "
        f"has {result.trivial_baseline:.4f}: train longer, with another learning rate or on more "
        "rows"
    )


def run_result(
    config: RunConfig,
    inputs: Inputs,
    trainer: RunTrainer,
    metrics: dict[str, float],
    train_metrics: dict[str, float],
    seen: Dataset,
    cost: Cost,
) -> RunResult:
    """The content of ``result.json``; `train_metrics` are those of the rows `seen`."""
    task, prepared, main_metric = inputs.task, inputs.prepared, inputs.task.main_metric
    model: Any = trainer.model
    best = None
    if watches_scores(config):
        best = Best(
            metric=best_score(config, task)[0].removeprefix("eval_"),
            value=trainer.state.best_metric,
            stopped_early=trainer.state.global_step < trainer.state.max_steps,
        )
    return RunResult(
        task=task.name,
        task_type=task.task_type,
        model=config.model,
        base_model_id=config.model if is_on_the_hub(config.model) else None,
        methods=config.methods,
        applied={name: of._asdict() for name, of in trainer.objective.strengths.applied().items()},
        seed=config.seed,
        world_size=world_size(),
        headline=main_metric,
        metrics=metrics,
        train_metrics=train_metrics,
        train_rows=len(task.scorer.example_ids(seen)),
        generalization_gap=train_metrics[main_metric] - metrics[main_metric],
        brier=metrics.get("brier"),
        trivial_baseline=task.scorer.baseline(prepared.validation),
        cost=cost,
        data=prepared.report,
        fingerprints=inputs.fingerprints,
        class_weights=inputs.class_weights,
        best=best,
        kept_step=kept_step(trainer),
        attention=model.config._attn_implementation,
        log_history=trainer.state.log_history,
        versions=versions(),
        config=config.in_force(),
        method_versions=config.method_versions(),
    )


def run_cost(
    trainer: RunTrainer, step: StepCost | None, seconds: dict[str, float], resumed_from: int
) -> Cost:
    """Time and memory of a run: `seconds` are those of "train" and "evaluation"."""
    return Cost(
        train_seconds=seconds["train"],
        evaluation_seconds=seconds["evaluation"],
        steps=trainer.state.global_step,
        step_seconds=step.seconds if step else None,
        plain_step_seconds=step.plain_seconds if step else None,
        ratio_to_plain=step.ratio if step else None,
        device=device_name(trainer.args.device),
        resumed_from_step=resumed_from,
        **peak_memory(),
    )
