"""The commands `demo`, `methods` and `cost`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from smoothtune.catalog import (
    MethodDescription,
    described,
    is_of_others,
    known_methods,
    offered_methods,
)
from smoothtune.cli.options import options_from
from smoothtune.cli.output import (
    JSON,
    USAGE,
    errors_as_exit_codes,
    fail,
    output_console,
    print_json,
    show_method,
    show_rows,
)
from smoothtune.config.run import RunConfig
from smoothtune.errors import unknown


@options_from(RunConfig, "model", "seed")
def demo(options: dict[str, Any]) -> None:
    """Run the demonstration."""
    with errors_as_exit_codes():
        from smoothtune.cli.demo import demo as run_demo

        run_demo(output_console(), **options)


def methods(
    name: Annotated[str | None, typer.Argument(help="Describe this method.")] = None,
    as_json: JSON = False,
) -> None:
    """List the methods, or describe one."""
    if name is not None and is_of_others(name):
        found = [_described_by_class(name)]
    elif name is not None and name not in known_methods():
        fail(unknown("method", name, [*known_methods(), *offered_methods()]), USAGE)
    else:
        found = [described(each) for each in ([name] if name else known_methods())]
    if as_json:
        plain = [method.as_dict() for method in found]
        print_json(plain[0] if name else {"methods": plain})
    elif name:
        show_method(found[0])
    else:
        show_rows(
            ["name", "title", "summary"],
            [[method.name, method.title, method.summary] for method in found],
        )


def _described_by_class(name: str) -> MethodDescription:
    from smoothtune.methods.describe import describe
    from smoothtune.methods.find import find_method

    try:
        return describe(find_method(name))
    except ValueError as error:
        fail(f"{name}: {error}", USAGE)


@options_from(RunConfig, "model")
def cost(
    options: dict[str, Any],
    *,
    method: Annotated[
        list[str], typer.Option(metavar="NAME[:FIELD=VALUE,...]", help="Method; repeatable.")
    ],
    batch: Annotated[int, typer.Option(min=1, help="Examples per step.")] = 16,
    length: Annotated[int, typer.Option(min=4, help="Tokens per example.")] = 128,
    rounds: Annotated[
        int, typer.Option(min=1, help="Steps measured with and without the method.")
    ] = 5,
    as_json: JSON = False,
) -> None:
    """Measure, and print a row for each method."""
    with errors_as_exit_codes():
        from smoothtune.cli.cost import price_list, price_row

        model = options.get("model", "minilm")
        prices = price_list(method, model, batch, length, rounds)
        if as_json:
            print_json({"model": model, "batch": batch, "length": length, "methods": prices})
            return
        titles = ["method", "x plain", "range", "seconds", "extra memory"]
        show_rows(titles, [price_row(price) for price in prices])
