"""The errors that users see, and the wording that their messages share."""

import difflib
import re
import signal
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

Location = tuple[str | int, ...]


class Problem(NamedTuple):
    """One problem in a configuration."""

    where: str  # file and line, ``run.yaml:3``, or the option, ``--learning-rate``
    field: str  # its dotted name, ``methods.lnsr.weight``; empty for the file as a whole
    message: str

    def __str__(self) -> str:
        option = "--" + self.field.replace("_", "-")
        field = "" if self.where == option else self.field
        return ": ".join(part for part in (self.where, field, self.message) if part)


class ConfigError(ValueError):
    """A configuration that cannot be used; ``problems`` holds everything that is wrong with it."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = problems


class NotSupported(ValueError):
    """A method that is not for this task, model or way to train; `refusals` say what to change."""

    def __init__(self, refusals: Iterable[str]) -> None:
        self.refusals = list(dict.fromkeys(refusals))
        super().__init__("not supported:\n" + "\n".join(f"- {text}" for text in self.refusals))


class LoraError(ConfigError):
    """Adapters that cannot be made or read; the message says what to do."""

    def __init__(self, message: str) -> None:
        super().__init__([Problem("", "lora", message)])


class DataError(ValueError):
    """Data that cannot be trained on; the message lists what is wrong, one problem per line."""


class ModelError(ValueError):
    """A model that cannot be loaded; the message says why and what to do."""


class OutputError(ValueError):
    """An output folder that this run must not write; the message says how to go on."""


class CheckpointError(OutputError):
    """A checkpoint that cannot be resumed from; the message names the file and the mend."""


class PlotsMissing(ImportError):
    """Matplotlib is not installed."""


class NonFiniteLoss(FloatingPointError):
    """A term of the objective is NaN or infinite; nothing has been updated with it."""


class NonFiniteWeights(NonFiniteLoss):
    """A weight is NaN or infinite after an update; no checkpoint was written with it."""


class OutOfMemory(MemoryError):
    """A step or an evaluation needs more memory than there is; the message says what to try."""


class Stopped(Exception):
    """The run was stopped by a signal and left a checkpoint."""


STOP_SIGNALS = tuple(
    getattr(signal, name)
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGXCPU")
    if hasattr(signal, name)
)
"""From a user, a terminal that closes, or a batch system whose time is over."""
ONE_STOP_SECONDS = 2.0
"""For which further signals belong to the first: a terminal and a launcher both send it."""
_NO_MEMORY = (
    *("out of memory", "not enough memory", "bad alloc"),
    *("can't allocate memory", "cannot allocate memory"),
)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether Python, torch or a driver says that there was no memory left."""
    message = str(error).lower()
    kinds = {cls.__name__ for cls in type(error).__mro__}  # torch's own, without importing it
    is_memory_error = bool(kinds & {"MemoryError", "OutOfMemoryError"})
    return is_memory_error or any(words in message for words in _NO_MEMORY)


_UNPRINTABLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u200e\u200f\u2028-\u202e\u2060-\u206f"
    "\ud800-\udfff\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]"
)
"""Control characters but tab and newline, marks that turn the direction of text or hide it, halves
of characters."""


def printable(text: str) -> str:
    r"""Text of users as terminals and pages may get it: no escapes, nothing that hides or turns it.

    >>> printable("a\x1b[2Jb\u202ec")
    'a\\x1b[2Jb\\u202ec'
    """
    return _UNPRINTABLE.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


LISTINGS = {"field": "docs/settings.md", "method": "the list of `smoothtune methods`"}
MOST_NAMES = 12  # that an error lists beside one that is close


def unknown(kind: str, name: str, choices: Iterable[str], listing: str | None = None) -> str:
    """Message for a misspelled name: ``unknown method 'lsnr'; did you mean 'lnsr'? Known: ...``.

    If `choices` are many and one is close, `listing`, or what is usual for the `kind`, is named in
    their place.
    """
    names = sorted(choices)
    close = " or ".join(map(repr, _close(name, names)))
    listing = LISTINGS.get(kind) if listing is None else listing
    if close and listing and len(names) > MOST_NAMES:
        return f"unknown {kind} {name!r}; did you mean {close}? All are in {listing}"
    hint = f"; did you mean {close}?" if close else "."
    return f"unknown {kind} {name!r}{hint} Known: {', '.join(names)}"


def _close(name: str, names: Sequence[str]) -> list[str]:
    """Names that it is the end or, as `lr`, the initials of; else the most similar one."""
    longer = [each for each in names if each.endswith(f"_{name}")]
    for each in names:
        words = each.split("_")
        if len(words) > 1 and "".join(word[:1] for word in words) == name:
            longer.append(each)
    return longer or difflib.get_close_matches(name, names, n=1)


def counted(count: int | str, noun: str) -> str:
    """A number and its noun: ``1 row``, ``2 rows``."""
    return f"{count} {noun}" if str(count) == "1" else f"{count} {noun}s"


def dotted(location: Location) -> str:
    """``("methods", "lnsr", "layers", 0)`` as ``methods.lnsr.layers[0]``."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location)
    return text.removeprefix(".")


def changed_fields(recorded: Mapping[str, Any], current: Mapping[str, Any]) -> str:
    """Fields of `current` whose recorded value differs, as ``seed 1, here 2``; empty if none.

    >>> changed_fields({"methods": {"lnsr": {"share": 0.3}}}, {"methods": {"lnsr": {"share": 0.5}}})
    'methods.lnsr.share 0.3, here 0.5'
    >>> changed_fields({"methods": {"lnsr": {"share": 0.3}}}, {"methods": {"plain": {}}})
    'methods lnsr, here plain'
    """
    return "; ".join(_changes(recorded, current))


def _changes(
    recorded: Mapping[str, Any], current: Mapping[str, Any], within: str = ""
) -> Iterator[str]:
    for name, value in current.items():
        before: Any = recorded.get(name)
        field = f"{within}{name}"
        inside = isinstance(before, Mapping) and isinstance(value, Mapping)
        if inside and before.keys() == value.keys():
            yield from _changes(before, value, f"{field}.")
        elif inside:
            yield f"{field} {', '.join(before) or 'none'}, here {', '.join(value) or 'none'}"
        elif before != value:
            yield f"{field} {before!r}, here {value!r}"


def message_of(detail: Any, choices: list[str], listing: str | None = None) -> str:
    """Message for one of pydantic's errors; `choices` are the known field names, see `unknown`."""
    if detail["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        return unknown("field", str(detail["loc"][-1]), choices, listing)
    if detail["type"] == "unexpected_positional_argument":
        return f"{detail['input']!r} is given without a name: give every field by its name"
    if detail["type"] in ("missing", "missing_argument", "missing_keyword_only_argument"):
        return "is missing"
    message = detail["msg"].removeprefix("Value error, ").replace("Input should be", "must be")
    message = message.partition(", unable to parse")[0]  # a text as a number, which is shown
    if detail["type"] == "value_error" or len(repr(detail["input"])) > 80:
        return message
    return f"{message}, not {detail['input']!r}"
