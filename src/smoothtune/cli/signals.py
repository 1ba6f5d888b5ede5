"""Signals that stop while a command imports, reads and writes: an end with its own exit code.

Training and studies, which leave more than that, take the signals over (`smoothtune.run.signals`).
"""

import os
import signal
import sys
import time
from types import FrameType

from smoothtune.errors import ONE_STOP_SECONDS, STOP_SIGNALS

STOPPED = 75  # exit code: stopped by a signal, and resumable


def end_on_signals() -> None:
    """End this process on a signal as after an error: what is half written is removed.

    A signal that is ignored, as SIGINT in the background of a shell, stays so.
    """
    process, first = os.getpid(), None

    def end(number: int, frame: FrameType | None) -> None:
        nonlocal first
        forked = os.getpid() != process  # a worker
        if forked or (first is not None and time.monotonic() - first >= ONE_STOP_SECONDS):
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        if first is not None:
            return
        first = time.monotonic()
        text = "error: stopped by a signal; what was finished is kept: run the same command again"
        if os.environ.get("RANK", "0") == "0":  # of several processes that torchrun has started
            print(text, file=sys.stderr, flush=True)
        if _imports(frame):  # modules in C swallow exceptions, and nothing is being written
            os._exit(STOPPED)
        sys.exit(STOPPED)

    for number in STOP_SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, end)


def _imports(frame: FrameType | None) -> bool:
    while frame is not None and "importlib._bootstrap" not in frame.f_code.co_filename:
        frame = frame.f_back
    return frame is not None
