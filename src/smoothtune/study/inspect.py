"""What a study would do, found out without loading weights."""

from __future__ import annotations

from typing import Any

from rich.console import Console

from smoothtune.run.inputs import read_inputs
from smoothtune.run.inspect import check_fit, empty_model, with_adapters
from smoothtune.study.config import Study
from smoothtune.study.inputs import data_at_hand


def inspect_study(study: Study, console: Console) -> None:
    """Check every run of a study as far as it goes before its first step.

    Data and tokenizer are read once for every task, model and training-set size.

    Raises:
        ConfigError: methods, model, adapters and settings of a run do not fit together.
        ModelError: a model cannot be found, or its tokenizer cannot be used.
        DataError: the data of a task cannot be read or do not fit it.
    """
    for number in range(len(study.conditions)):
        runs = [run for (c, _, _), run in study.runs.items() if c == number]
        if not runs:
            continue
        first = runs[0].model_copy(update={"data": data_at_hand(runs[0])})
        inputs = read_inputs(first, console)
        models = dict[str, Any]()
        for run in runs:
            stored = repr((run.lora, run.frozen_weights))
            if stored not in models:
                models[stored] = with_adapters(run, inputs, empty_model(run, inputs))
            check_fit(run, inputs, models[stored])
