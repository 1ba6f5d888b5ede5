"""The content of ``result.json``: what a run was, what it scored and what it cost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from smoothtune.config.run import RunConfig
from smoothtune.device import device_name
from smoothtune.files import versions
from smoothtune.memory import peak_memory
from smoothtune.models.places import is_on_the_hub
from smoothtune.run.inputs import Inputs
from smoothtune.run.processes import world_size
from smoothtune.run.trainer import RunTrainer
from smoothtune.run.training_arguments import best_score, watches_scores
from smoothtune.trainer.cost import StepCost


def best_evaluation(config: RunConfig, trainer: RunTrainer) -> dict[str, Any] | None:
    """What scores in training decided: which weights were kept, and when the training ended."""
    if not watches_scores(config):
        return None
    state, (metric, _) = trainer.state, best_score(config, trainer.task)
    return {
        "metric": metric.removeprefix("eval_"),
        "value": state.best_metric,  # None: no evaluation counted
        "stopped_early": state.global_step < state.max_steps,
    }


def kept_step(config: RunConfig, trainer: RunTrainer) -> int:
    """The update whose weights are the run's."""
    state = trainer.state
    best = state.best_model_checkpoint if config.load_best_model_at_end else None
    return int(Path(best).name.rpartition("-")[2]) if best else state.global_step


def told_kept(result: dict[str, Any]) -> str:
    """Which weights were kept and why, of a run that scores in training decided on; else ""."""
    best, step, last = result["best"], result["kept_step"], result["cost"]["steps"]
    if not best:
        return ""
    end = ", where it was stopped early" * best["stopped_early"]
    told = f"kept: the weights of step {step} of {last}{end}"
    if best["value"] is None:
        return f"{told}; no evaluation came after every method's term, so none was the best"
    best_score_is = f"the best by {best['metric']} ({best['value']:.4f})"
    if result["config"]["load_best_model_at_end"]:
        return f"{told}, {best_score_is}"
    return f"{told}, the last; {best_score_is} need not be its own"


def below_constant(result: dict[str, Any]) -> str:
    """That a model is no better than the best constant answer; "" where it is.

    Args:
        result: the content of ``result.json``.
    """
    name, constant = result["headline"], result["trivial_baseline"]
    score = result["metrics"][name]
    if score > constant:
        return ""
    return (
        f"{name} {score:.4f} is not better than the best constant answer, which has "
        f"{constant:.4f}: train longer, with another learning rate or on more rows"
    )


def run_result(
    config: RunConfig,
    inputs: Inputs,
    trainer: RunTrainer,
    metrics: dict[str, float],
    train_metrics: dict[str, float],
    cost: StepCost | None,
    seconds: dict[str, float],
) -> dict[str, Any]:
    """The content of ``result.json``; `seconds` holds those of "train" and "evaluation"."""
    task, prepared, main_metric = inputs.task, inputs.prepared, inputs.task.main_metric
    model: Any = trainer.model
    return {
        "task": task.name,
        "task_type": task.task_type,
        "model": config.model,
        "base_model_id": config.model if is_on_the_hub(config.model) else None,
        "methods": config.methods,
        "applied": {
            name: of._asdict() for name, of in trainer.objective.strengths.applied().items()
        },
        "seed": config.seed,
        "world_size": world_size(),
        "headline": main_metric,
        "metrics": metrics,
        "train_metrics": train_metrics,
        "generalization_gap": train_metrics[main_metric] - metrics[main_metric],
        "brier": metrics.get("brier"),
        "trivial_baseline": task.scorer.baseline(prepared.validation),
        "cost": {
            "train_seconds": seconds["train"],
            "evaluation_seconds": seconds["evaluation"],
            "steps": trainer.state.global_step,
            "step_seconds": cost and cost.seconds,
            "plain_step_seconds": cost and cost.plain_seconds,
            "ratio_to_plain": cost and cost.ratio,
            "device": device_name(trainer.args.device),
            **peak_memory(),
        },
        "data": prepared.report.to_dict(),
        "fingerprints": inputs.fingerprints,
        "class_weights": inputs.class_weights,
        "best": best_evaluation(config, trainer),
        "kept_step": kept_step(config, trainer),
        "attention": model.config._attn_implementation,
        "log_history": trainer.state.log_history,
        "versions": versions(),
        "config": config.in_force(),
        "method_versions": config.method_versions(),
    }
