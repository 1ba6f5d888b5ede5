"""The model card (README.md) of a trained model, from its ``result.json``."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult
from huggingface_hub.repocard_data import eval_results_to_model_index

from smoothtune.catalog import MethodDescription
from smoothtune.config.run import RunConfig
from smoothtune.methods.describe import describe
from smoothtune.methods.find import find_method
from smoothtune.report.page import render
from smoothtune.results import RunResult
from smoothtune.tasks.presets import TASK_CLASSES


def model_card(result: RunResult) -> str:
    """Markdown with the hub's YAML header; names and messages of users are escaped."""
    config, task = result.config, TASK_CLASSES[result.task_type]
    content = {
        "adapter": config.get("lora") is not None and not config.get("merge_adapter"),
        "methods": [_described(name) for name in result.methods],
        "settings": config | {"max_grad_norm": RunConfig.model_validate(config).clip_norm()},
        "model_index": _model_index(result),
        "hub_task": task.hub_task or result.task_type,
        "auto_model": task.auto_model.__name__,
    }
    return render("model_card.md.jinja", result.content() | content)


def _model_index(result: RunResult) -> list[dict[str, Any]]:
    """The scores as the hub reads them."""
    config, task = result.config, result.task
    hub_task = TASK_CLASSES[result.task_type].hub_task
    if hub_task is None:  # the hub has no such task
        return []
    data = config.get("data") or task
    if Path(data).expanduser().exists():
        data = "local"  # no path of this machine among what the hub indexes
    scores = [
        EvalResult(
            task_type=hub_task,
            dataset_type=data,
            dataset_name=task,
            dataset_split="validation",
            metric_type=name,
            metric_value=value,
        )
        for name, value in result.metrics.items()
    ]
    index = eval_results_to_model_index(Path(config["output_dir"]).name, scores)
    return list(index)


def _described(name: str) -> MethodDescription:
    """A method of the run under the name that the run has for it."""
    description = describe(find_method(name))
    return replace(description, name=name, title=description.title or name)
