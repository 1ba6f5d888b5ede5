"""A command in several processes: one tells what is wrong, and all of them end."""

import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import typer

from smoothtune.cli.output import FAILED, errors_as_exit_codes, fail
from smoothtune.cli.signals import STOPPED
from smoothtune.errors import Stopped

LOST = ("closed by peer", "reset by peer", "remote process", "nccl", "broken pipe")
"""What the errors of collectives say after another process has died."""


def several() -> bool:
    """Whether torchrun or accelerate has started this command more than once."""
    size = os.environ.get("WORLD_SIZE", "1").strip()
    return size.isdigit() and int(size) > 1  # what is no number is told by join_processes


def prints() -> bool:
    """Whether this process is the one that prints."""
    return os.environ.get("RANK", "0") == "0"


@contextmanager
def errors_of_all() -> Iterator[None]:
    """Of several processes the first that fails tells why, as `errors_as_exit_codes`.

    The others find it gone and end without a word. A process that failed ends at once: threads of
    the backend would wait for the others.
    """
    if not several():
        yield
        return
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # warnings of DDP from every process
    try:
        with errors_as_exit_codes(), _first_error():
            from smoothtune.run.processes import join_processes

            join_processes()
            yield
        from smoothtune.run.processes import part

        part()
    except typer.Exit as ended:
        _leave(ended.exit_code)
    except SystemExit as ended:  # a signal
        _leave(ended.code if isinstance(ended.code, int) else FAILED)
    except BaseException:
        traceback.print_exc()
        _leave(FAILED)


@contextmanager
def _first_error() -> Iterator[None]:
    """End a process without a word unless it is the first that fails."""
    try:
        yield
    except Exception as error:
        from smoothtune.run.processes import is_first_to_fail

        code = STOPPED if isinstance(error, Stopped) else FAILED
        if not is_first_to_fail():
            _leave(code)
        if isinstance(error, Stopped):
            fail(str(error), STOPPED)  # the launcher's command is not known
        if isinstance(error, RuntimeError) and any(word in str(error).lower() for word in LOST):
            fail(
                "another process of this run died without a message, killed perhaps for want of "
                f"memory: see what the launcher says of it ({str(error).splitlines()[0]})",
                FAILED,
            )
        raise


def _leave(code: int) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
