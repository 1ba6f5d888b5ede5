"""Options that several commands have."""

from __future__ import annotations

from typing import Annotated

import typer

TextColumn = Annotated[
    list[str] | None,
    typer.Option("--text-column", "--text-columns", help="Text column; twice for pairs."),
]
LabelColumn = Annotated[str | None, typer.Option(help="Label column.")]
TaskTypeOption = Annotated[
    str | None,
    typer.Option(
        "--task-type",
        help="text-classification (default), question-answering, token-classification or "
        "multiple-choice.",
    ),
]
ChoiceColumn = Annotated[
    list[str] | None,
    typer.Option("--choice-column", "--choice-columns", help="Choices; repeat, or one of lists."),
]
MaxEvalSamples = Annotated[int | None, typer.Option(help="Evaluate on at most N rows.")]
TrustRemoteCode = Annotated[
    bool, typer.Option("--trust-remote-code", help="Run code that comes with the model.")
]
