"""Signals that stop: noted while a model is trained, an end at once where nothing can be lost."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from smoothtune import errors
from smoothtune.errors import STOP_SIGNALS, Stopped
from smoothtune.run.processes import in_any, world_size


class _Ended(BaseException):
    """Ends a phase; no library's ``except Exception`` swallows it."""


class Signals:
    """Records a signal of `STOP_SIGNALS` within a ``with``, unless it was ignored before.

    What follows within `ONE_STOP_SECONDS` belongs to it. After that, SIGINT and SIGTERM have their
    usual effect; the others go on being recorded, as some are sent again and again. Nothing is
    recorded in threads other than the main one, where Python cannot.

    Each of several processes gets the signal at another step, so they stop only if they `agree`.
    Their launcher sends the signal on, so that all may get it twice; a second one has no effect.
    """

    received: int | None = None  # number of the first signal that this process received
    stopping = False  # whether the processes have agreed to stop

    def agree(self) -> bool:
        """Whether any process has received a signal; all of them must ask, in the same step."""
        self.stopping = self.stopping or in_any(self.received is not None)
        return self.stopping

    def __enter__(self) -> Signals:
        self.ends_at_once, self.process = False, os.getpid()
        main = threading.current_thread() is threading.main_thread()
        before = {number: signal.getsignal(number) for number in STOP_SIGNALS if main}
        self.previous = {n: h for n, h in before.items() if h not in (None, signal.SIG_IGN)}
        for number in self.previous:
            signal.signal(number, self._receive)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self.previous.items():
            signal.signal(number, handler)

    @contextmanager
    def ending(self, message: str) -> Iterator[None]:
        """A phase that a signal ends at once, by Stopped with `message`."""
        self.ends_at_once = True
        try:
            if self.received is None:
                yield
        except _Ended:
            pass
        finally:
            self.ends_at_once = False
        if self.received is not None:
            raise Stopped(message)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self.process:  # a forked worker
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        if self.received is None:
            self.received, self.first = number, time.monotonic()
            if self.ends_at_once:
                raise _Ended
            return
        later = time.monotonic() - self.first >= errors.ONE_STOP_SECONDS
        if later and number in (signal.SIGINT, signal.SIGTERM) and world_size() == 1:
            self.__exit__()
            os.kill(os.getpid(), number)
