"""The commands `evaluate` and `report`; heavy modules are imported when they run."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from smoothtune.cli.options import (
    ChoiceColumn,
    LabelColumn,
    MaxEvalSamples,
    TaskTypeOption,
    TextColumn,
    TrustRemoteCode,
)
from smoothtune.cli.output import USAGE, errors_as_exit_codes, fail, output_console


def evaluate(
    model: Annotated[str, typer.Argument(help="minilm, a fine-tuned model folder, or a hub id.")],
    output_dir: Annotated[str, typer.Option(help="Gets evaluation.json, tables and plots.")],
    task: Annotated[
        str | None, typer.Option(help="GLUE task, squad, ...; default: as in result.json.")
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="Hub id, folder or file; default: as in result.json.")
    ] = None,
    ood: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=DATA", help="Another data set of the task; repeatable."),
    ] = None,
    ood_set: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME.KEY=VALUE",
            help="How it is read: text_columns, label_column, labels={0: 1, 1: 0}; repeatable.",
        ),
    ] = None,
    further_share: Annotated[
        float | None,
        typer.Option(help="Also train a copy on this share of it, and score the rest."),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="All parts below.")] = False,
    calibration: Annotated[
        bool, typer.Option("--calibration", help="Brier, ECE, reliability, temperature.")
    ] = False,
    robustness: Annotated[
        bool, typer.Option("--robustness", help="Noise and attacks on the embeddings.")
    ] = False,
    corruption: Annotated[
        bool, typer.Option("--corruption", help="Random tokens, typos, dropped, swapped words.")
    ] = False,
    smoothness: Annotated[
        bool, typer.Option("--smoothness", help="Jacobian, Hessian, noise attenuation.")
    ] = False,
    drift: Annotated[
        bool, typer.Option("--drift", help="Distance to the pre-trained model.")
    ] = False,
    base_model: Annotated[
        str | None, typer.Option(help="The pre-trained model; default: as in result.json.")
    ] = None,
    text_column: TextColumn = None,
    label_column: LabelColumn = None,
    task_type: TaskTypeOption = None,
    choice_column: ChoiceColumn = None,
    max_train_samples: Annotated[
        int | None, typer.Option(help="Rows for the training score, at most 1000.")
    ] = None,
    max_eval_samples: MaxEvalSamples = None,
    max_diagnostic_samples: Annotated[
        int, typer.Option(help="Rows for all that costs many passes.")
    ] = 256,
    max_seq_length: Annotated[int | None, typer.Option(help="Cut longer inputs.")] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="doc_stride and the like; see docs/tasks."),
    ] = None,
    num_resamples: Annotated[int, typer.Option(help="Bootstrap resamples.")] = 1000,
    seed: Annotated[int, typer.Option(help="Seed of everything random.")] = 42,
    batch_size: Annotated[int, typer.Option(help="Examples that run at once.")] = 32,
    overwrite_output_dir: Annotated[
        bool, typer.Option("--overwrite-output-dir", help="Replace another evaluation.")
    ] = False,
    trust_remote_code: TrustRemoteCode = False,
) -> None:
    """Evaluate any fine-tuned model; finished parts are kept and not repeated."""
    chosen = {
        "calibration": calibration,
        "robustness": robustness,
        "corruption": corruption,
        "smoothness": smoothness,
        "drift": drift,
    }
    with errors_as_exit_codes():
        from smoothtune.evaluation.run import evaluate as run_evaluation
        from smoothtune.config.evaluation import load_settings

        settings = Settings(
            model=model,
            output_dir=output_dir,
            parts=tuple(name for name, asked in chosen.items() if asked or everything),
            ood=other_data_sets(_named(ood or ()), ood_set or ()),
            further_share=further_share,
            task=task,
            data=data,
            text_columns=tuple(text_column) if text_column else None,
            label_column=label_column,
            task_type=chosen_task_type(task_type),
            choice_columns=tuple(choice_column) if choice_column else None,
            spans=span_fields(set_ or ()),
            base_model=base_model,
            max_train_samples=max_train_samples,
            max_eval_samples=max_eval_samples,
            max_diagnostic_samples=max_diagnostic_samples,
            max_seq_length=max_seq_length,
            num_resamples=num_resamples,
            seed=seed,
            batch_size=batch_size,
            trust_remote_code=trust_remote_code,
            overwrite_output_dir=overwrite_output_dir,
        )
        run_evaluation(settings, console=output_console())
    typer.echo(f"{output_dir} holds evaluation.json, tables and plots")


def _named(pairs: Sequence[str]) -> dict[str, str]:
    """``NAME=DATA`` as a dictionary; a name becomes part of file names."""
    named: dict[str, str] = {}
    for pair in pairs:
        name, _, source = pair.partition("=")
        if not source or not re.fullmatch(r"\w[\w. -]{0,60}", name) or name in named:
            fail(f"--ood: {pair!r} is not NAME=DATA with a new, plain name", USAGE)
        named[name] = source
    return named


def report(
    folders: Annotated[
        list[Path], typer.Argument(metavar="DIR...", help="Output folders of evaluate.")
    ],
    to: Annotated[Path, typer.Option(help="A .html or .md file.")],
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file.")] = False,
) -> None:
    """Write one page about evaluations of one task; the first is what others are compared with."""
    with errors_as_exit_codes():
        from smoothtune.errors import PlotsMissing
        from smoothtune.evaluation.report import write_report

        try:
            write_report(folders, to, overwrite=overwrite)
        except PlotsMissing as error:
            fail(str(error), USAGE)
    typer.echo(f"{to} is written")
