"""The commands `demo`, `methods` and `cost`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer
from pydantic import ByteSize, TypeAdapter, ValidationError

from smoothtune.catalog import (
    MethodDescription,
    MethodGroup,
    described,
    is_of_others,
    known_methods,
    measured,
    offered_methods,
)
from smoothtune.cli.options import options_from
from smoothtune.cli.output import (
    JSON,
    USAGE,
    echo,
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
    from smoothtune.cli.demo import demo as run_demo

    run_demo(output_console(), **options)


def methods(
    name: Annotated[str | None, typer.Argument(help="Describe this method.")] = None,
    as_json: JSON = False,
) -> None:
    """List the methods, or describe one."""
    if name is None:
        _list_methods(as_json=as_json)
        return
    if is_of_others(name):
        description, evidence = _described_by_class(name), ""
    elif name in known_methods():
        description, evidence = described(name), measured(name)
    else:
        fail(unknown("method", name, [*known_methods(), *offered_methods()]), USAGE)
    if as_json:
        print_json(asdict(description) | {"measured": evidence})
    else:
        show_method(description)
        if evidence:
            echo(f"Measured against plain: {evidence}")


GROUPS: dict[MethodGroup, str] = {
    "baseline": "the baseline",
    "stability": "noise must move hidden states or predictions little",
    "noise": "train on noise, no penalty",
    "worst case": "the worst small perturbation must not change predictions",
    "adversarial": "train on adversarial examples",
    "derivatives": "keep derivatives in the input small",
    "sub-models": "sub-models of different dropout must agree",
    "start": "stay near the pre-trained weights",
    "updates": "limit or shape the updates",
    "sharpness": "train at the worst weights nearby",
    "labels": "soften the labels",
}
"""Titles in the list of methods."""


def _list_methods(*, as_json: bool) -> None:
    """Print the methods, by what they do."""
    names = known_methods()
    if as_json:
        each = [asdict(described(name)) | {"measured": measured(name)} for name in names]
        print_json({"methods": each})
        return
    for group, title in GROUPS.items():
        echo(f"{title}:")
        for method in map(described, names):
            if method.group == group:
                echo(f"  {method.name:<16} {method.summary} ({method.step})")
                if line := measured(method.name):
                    echo(f"{'':<19}measured: {line}")
    echo("cost of a step: a pass is a forward and a backward, a search one to the perturbation")
    echo("measured: against plain, at the default fields (docs/evidence.md); p < 0.05, Holm")
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
    from smoothtune.cli.cost import batches_that_fit, price_list

    model, lora = options.get("model", "minilm"), options.get("lora")
    stored = options.get("frozen_weights")
    if budget is not None:
        fits = batches_that_fit(method, model, lora, batch, length, _bytes(budget), stored)
        if as_json:
            rows = [asdict(fit) for fit in fits]
            print_json({"model": model, "length": length, "budget": budget, "methods": rows})
            return
        titles = ["method", "checkpointing", "rows: peak memory", f"rows that fit in {budget}"]
        show_rows(titles, [fit.row() for fit in fits])
        return
    if stored not in (None, "float32"):
        fail("--frozen-weights needs --budget: times are measured with float32 weights", USAGE)
    prices = price_list(method, model, lora, batch, length, rounds)
    if as_json:
        rows = [asdict(price) for price in prices]
        print_json({"model": model, "batch": batch, "length": length, "methods": rows})
        return
    titles = ["method", "x plain", "range", "seconds", "extra memory"]
    show_rows(titles, [price.row() for price in prices])


def _bytes(size: str) -> int:
    try:
        count = int(TypeAdapter(ByteSize).validate_python(size))
    except ValidationError:
        count = 0
    if count < 1:
        fail(f"--budget {size}: is no amount of memory; write 16GiB or 500MB", USAGE)
    return count
