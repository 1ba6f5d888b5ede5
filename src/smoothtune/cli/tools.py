"""The commands `demo`, `methods` and `cost`."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from pydantic import ByteSize, TypeAdapter, ValidationError

from smoothtune.catalog import (
    MethodDescription,
    described,
    is_of_others,
    known_methods,
    offered_methods,
)
from smoothtune.cli.method_list import GROUPS, listed_methods
from smoothtune.cli.options import options_from
from smoothtune.cli.output import (
    JSON,
    USAGE,
    echo,
    errors_as_exit_codes,
    fail,
    output_console,
    print_json,
    show_method,
    show_rows,
)
from smoothtune.config.run import RunConfig
from smoothtune.errors import unknown


@options_from(RunConfig, "model")
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
    elif name is not None:
        found = [described(name)]
    else:
        _list_methods(as_json=as_json)
        return
    if as_json:
        print_json(found[0].as_dict())
    else:
        show_method(found[0])


def _list_methods(*, as_json: bool) -> None:
    """Print the methods, by what they do."""
    if as_json:
        about = {name: {"group": group, "cost": cost} for name, group, cost in listed_methods()}
        print_json(
            {"methods": [described(name).as_dict() | about[name] for name in known_methods()]}
        )
        return
    for group in GROUPS:
        echo(f"{group.title}:")
        for name, cost in group.costs.items():
            echo(f"  {name:<16} {described(name).summary} ({cost})")
    echo("cost of a step: a pass is a forward and a backward, a search one to the perturbation")
    echo("equation, fields and departures of one: smoothtune methods NAME")


def _described_by_class(name: str) -> MethodDescription:
    from smoothtune.methods.describe import describe
    from smoothtune.methods.find import find_method

    try:
        return describe(find_method(name))
    except ValueError as error:
        fail(f"{name}: {error}", USAGE)


@options_from(RunConfig, "model", "lora", "frozen_weights")
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
    budget: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Memory, as 16GiB: instead of the time, say which batch fits, without and with "
            "gradient checkpointing.",
        ),
    ] = None,
    as_json: JSON = False,
) -> None:
    """Measure, and print a row for each method."""
    with errors_as_exit_codes():
        from smoothtune.cli.cost import batches_that_fit, fit_row, price_list, price_row

        model, lora = options.get("model", "minilm"), options.get("lora")
        stored = options.get("frozen_weights")
        if budget is not None:
            fits = batches_that_fit(method, model, lora, batch, length, _bytes(budget), stored)
            if as_json:
                print_json({"model": model, "length": length, "budget": budget, "methods": fits})
                return
            titles = ["method", "checkpointing", "rows: peak memory", f"rows that fit in {budget}"]
            show_rows(titles, [fit_row(fit) for fit in fits])
            return
        if stored not in (None, "float32"):
            fail("--frozen-weights needs --budget: times are measured with float32 weights", USAGE)
        prices = price_list(method, model, lora, batch, length, rounds)
        if as_json:
            print_json({"model": model, "batch": batch, "length": length, "methods": prices})
            return
        titles = ["method", "x plain", "range", "seconds", "extra memory"]
        show_rows(titles, [price_row(price) for price in prices])


def _bytes(size: str) -> int:
    try:
        found = int(TypeAdapter(ByteSize).validate_python(size))
    except ValidationError:
        found = 0
    if found < 1:
        fail(f"--budget {size}: is no amount of memory; write 16GiB or 500MB", USAGE)
    return found
