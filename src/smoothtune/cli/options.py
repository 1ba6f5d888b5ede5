"""Options of the command line: made from the fields of settings, and those that commands share."""

import inspect
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import typer
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from smoothtune.config.fields import METHOD, Count, Fields, Panel, without_none
from smoothtune.errors import ConfigError, Problem

Command = Callable[..., None]
FILE = Annotated[
    Path | None, typer.Argument(help="YAML run file, as --config.", show_default=False)
]
CONFIG = Annotated[Path | None, typer.Option(help="YAML run file; options win over it.")]
SET = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Any field; wins over the file."),
]
DRY_RUN = Annotated[
    bool, typer.Option("--dry-run", help="Check all, show what would be done; do none of it.")
]


class Workers(Fields):
    """How the runs of a study or a search are trained."""

    jobs: Count | None = None
    """Runs at once; default: by cores and memory."""


def one_file(file: Path | None, config: Path | None) -> Path | None:
    """The run file, which is an argument or that of ``--config``, not both."""
    if file and config:
        message = "name the run file once, as an argument or with --config"
        raise ConfigError([Problem("", "", message)])
    return file or config


def options_from(
    settings: type[BaseModel], *names: str, but: Collection[str] = ()
) -> Callable[[Command], Command]:
    """Give a command an option for every field of settings, or for `names` alone; none for `but`.

    The command gets a mapping of the options that the user gave: others are not in it, so that a
    default never replaces a value from a file.
    """
    fields = {
        name: field
        for name, field in settings.model_fields.items()
        if name in (names or settings.model_fields) and name not in but
    }

    def decorate(command: Command) -> Command:
        def call(**values: Any) -> None:
            options = {name: values.pop(name) for name in fields}
            options = {name: value for name, value in options.items() if value not in (None, [])}
            command(options, **values)

        _, *own = inspect.signature(command, eval_str=True).parameters.values()
        made = [_option(name, field, settings) for name, field in fields.items()]
        call.__signature__ = inspect.Signature(made + own)  # type: ignore[attr-defined]
        call.__name__ = command.__name__
        return call

    return decorate


def as_arguments(options: Mapping[str, Any]) -> list[str]:
    """Fields as they are typed: ``{"text_columns": ["a"]}`` as ``--text-column a``."""
    typed = []
    for name, value in options.items():
        flag = "--" + name.replace("_", "-")
        if isinstance(value, bool):
            typed.append(flag if value else f"--no-{flag.removeprefix('--')}")
        elif isinstance(value, list):
            typed += [part for item in value for part in (flag.removesuffix("s"), str(item))]
        else:
            typed += [flag, str(value)]
    return typed


def repeatable(metavar: str, text: str, panel: Panel) -> Any:
    """An option that may be given several times, for a parameter of type ``list[str] | None``."""
    return typer.Option(metavar=metavar, help=text, rich_help_panel=panel.title)


def methods_option(text: str) -> Any:
    """An option for methods with their fields, see `repeatable`."""
    return repeatable("NAME[:FIELD=VALUE,...]", text, METHOD)


def _option(name: str, field: FieldInfo, settings: type[BaseModel]) -> inspect.Parameter:
    """The option of a field; its value is None unless the user gives it."""
    type_ = without_none(field.annotation)
    is_list, fields = get_origin(type_) is list, hasattr(type_, "model_fields")
    flag = "--" + name.replace("_", "-")
    single = is_list and name.removesuffix("s") not in settings.model_fields
    flags = list(dict.fromkeys([flag.removesuffix("s"), flag] if single else [flag]))
    metavar = "FIELD=VALUE,..." if fields else None
    if get_origin(type_) is tuple:  # typed in one, as 2,4,8 or rte,cola
        metavar = "NAME,..." if get_args(type_)[0] is str else "NUMBER,..."
    if type_ is bool:  # what a file turns on, or what is on by default, can be turned off
        flags = [f"{flag}/--no-{flag.removeprefix('--')}"]
    option = typer.Option(
        *flags,
        help=_help(field, type_),
        metavar=metavar,
        rich_help_panel=next((m.title for m in field.metadata if isinstance(m, Panel)), None),
    )
    plain = list[str] if is_list else type_ if type_ in (bool, int, float) else str
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[plain | None, option],
    )


def _help(field: FieldInfo, type_: Any) -> str:
    """Help of a field: description, choices and default."""
    text = " ".join((field.description or "").replace("`", "").split())
    if get_origin(type_) is Literal:
        text += f" One of {', '.join(get_args(type_))}."
    if field.is_required():
        return f"{text}  [required]"
    if field.default is None or field.default is False:
        return text
    default = field.default
    if isinstance(default, tuple):  # numbers, as one types them
        default = ",".join(f"{number:g}" for number in default)
    return f"{text}  [default: {default}]"
