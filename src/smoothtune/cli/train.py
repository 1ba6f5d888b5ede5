"""src/smoothtune/cli/train.py."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from smoothtune.cli import app
from smoothtune.cli.options import (
    ChoiceColumn,
    LabelColumn,
    MaxEvalSamples,
    TaskTypeOption,
    TextColumn,
    TrustRemoteCode,
)
from smoothtune.cli.output import errors_as_exit_codes, output_console


@app.command()
def train(
    task: Annotated[
        str | None, typer.Option(help="GLUE task, squad, or a name for your own data set.")
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="Hub id, folder, or Parquet, CSV, TSV or JSONL file.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="minilm (default), a model folder, or a hub id.")
    ] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME[:FIELD=VALUE,...]", help="Method; repeat to combine."),
    ] = None,
    output_dir: Annotated[str | None, typer.Option(help="Becomes the model folder.")] = None,
    lora: Annotated[
        str | None,
        typer.Option(metavar="r=8,alpha=32,...", help="Train low-rank adapters and the head."),
    ] = None,
    merge_adapter: Annotated[
        bool, typer.Option("--merge-adapter", help="Write a plain model, adapters merged.")
    ] = False,
    seed: Annotated[int | None, typer.Option(help="Seed of everything random.")] = None,
    max_train_samples: Annotated[int | None, typer.Option(help="Train on at most N rows.")] = None,
    max_eval_samples: MaxEvalSamples = None,
    num_train_epochs: Annotated[float | None, typer.Option(help="Passes over the data.")] = None,
    max_steps: Annotated[int | None, typer.Option(help="Updates; wins over epochs.")] = None,
    learning_rate: Annotated[float | None, typer.Option(help="Peak learning rate.")] = None,
    per_device_train_batch_size: Annotated[
        int | None, typer.Option(help="Examples per step and device.")
    ] = None,
    text_column: TextColumn = None,
    label_column: LabelColumn = None,
    task_type: TaskTypeOption = None,
    choice_column: ChoiceColumn = None,
    unlabeled: Annotated[
        str | None, typer.Option(help="Texts without labels: hub id, folder or file.")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="YAML run file; options win over it.")] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Any field; wins over the file."),
    ] = None,
    overwrite_output_dir: Annotated[
        bool, typer.Option("--overwrite-output-dir", help="Replace the run in --output-dir.")
    ] = False,
    trust_remote_code: TrustRemoteCode = False,
    resume_from_checkpoint: Annotated[
        bool, typer.Option("--resume-from-checkpoint", help="Go on with a stopped run.")
    ] = False,
) -> None:
    """Fine-tune a model; OUTPUT_DIR becomes a plain model folder with result.json."""
    options = {
        "task": task,
        "data": data,
        "model": model,
        "output_dir": output_dir,
        "lora": lora,
        "merge_adapter": merge_adapter or None,
        "seed": seed,
        "max_train_samples": max_train_samples,
        "max_eval_samples": max_eval_samples,
        "num_train_epochs": num_train_epochs,
        "max_steps": max_steps,
        "learning_rate": learning_rate,
        "per_device_train_batch_size": per_device_train_batch_size,
        "text_columns": text_column or None,
        "label_column": label_column,
        "task_type": task_type,
        "choice_columns": choice_column or None,
        "unlabeled": unlabeled,
        "overwrite_output_dir": overwrite_output_dir or None,
        "trust_remote_code": trust_remote_code or None,
    }
    with errors_as_exit_codes():
        from smoothtune.config.run import load_config

        run = load_config(config, set_ or (), options, method or ())
        from smoothtune.run.train import train as run_training

        run_training(run, resume=resume_from_checkpoint, console=output_console())
    typer.echo(f"{run.output_dir} is a model folder; result.json and README.md are in it")
