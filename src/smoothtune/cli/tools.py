"""The commands `demo`, `methods` and `cost`."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any

import typer
from pydantic import ByteSize, TypeAdapter, ValidationError

from smoothtune.catalog import (
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
        from smoothtune.methods.describe import describe
        from smoothtune.methods.find import find_method

        try:
            description, evidence = describe(find_method(name)), ""
        except ValueError as error:
            fail(f"{name}: {error}", USAGE)
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
}  # titles in the list of methods


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
    from smoothtune.cli.cost import Fit, Price, batches_that_fit, price_list

    model, lora = options.get("model", "minilm"), options.get("lora")
    stored = options.get("frozen_weights")
    rows: Sequence[Price | Fit]
    if budget is not None:
        rows = batches_that_fit(method, model, lora, batch, length, _bytes(budget), stored)
        titles = ["method", "checkpointing", "rows: peak memory", f"rows that fit in {budget}"]
        about = {"model": model, "length": length, "budget": budget}
    elif stored in (None, "float32"):
        rows = price_list(method, model, lora, batch, length, rounds)
        titles = ["method", "x plain", "range", "seconds", "extra memory"]
        about = {"model": model, "batch": batch, "length": length}
    else:
        fail("--frozen-weights needs --budget: times are measured with float32 weights", USAGE)
    if as_json:
        print_json(about | {"methods": [asdict(row) for row in rows]})
    else:
        show_rows(titles, [row.row() for row in rows])


def _bytes(size: str) -> int:
    try:
        count = int(TypeAdapter(ByteSize).validate_python(size))
    except ValidationError:
        count = 0
    if count < 1:
        fail(f"--budget {size}: is no amount of memory; write 16GiB or 500MB", USAGE)
    return count
