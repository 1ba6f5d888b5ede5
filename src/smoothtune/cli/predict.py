"""The command `predict`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from smoothtune.cli.options import as_arguments, options_from
from smoothtune.cli.output import (
    JSON,
    echo,
    errors_as_exit_codes,
    output_console,
    print_json,
    refuse_foreign,
)
from smoothtune.config.prediction import Prediction, load_prediction
from smoothtune.errors import counted


@options_from(Prediction, but=["model"])
def predict(
    options: dict[str, Any],
    *,
    model: Annotated[str, typer.Argument(help=Prediction.model_fields["model"].description)],
    as_json: JSON = False,
) -> None:
    """Predict, and print where the predictions are."""
    with errors_as_exit_codes():
        settings = load_prediction(options | {"model": model})
        from smoothtune.evaluation.foreign import missing_options

        if missing := missing_options(settings):
            refuse_foreign(model, ["predict", model, *as_arguments(options)], missing)
        from smoothtune.evaluation.predict import predict as run_prediction

        count = run_prediction(settings, console=output_console(as_json=as_json))
    echo(f"{settings.to} holds {counted(count, 'row')} with the column prediction", err=as_json)
    if as_json:
        print_json({"to": settings.to, "rows": count})
