"""Every module is imported where Windows lacks what others have."""

import importlib
import os
import pkgutil
import signal
import sys
from unittest import mock

import smoothtune

LACKING = ["fork", "forkpty", "setsid", "setpgid", "killpg", "getuid", "geteuid", "getpgid"]
LACKING += ["fchmod", "sched_getaffinity", "mkfifo", "uname", "getloadavg", "sysconf", "nice"]
LACKING += ["O_DIRECTORY", "O_NOFOLLOW", "O_NONBLOCK", "WNOHANG", "register_at_fork"]
SIGNALS = ["SIGHUP", "SIGKILL", "SIGUSR1", "SIGUSR2", "SIGXCPU", "SIGALRM", "SIGCHLD"]
MODULES = ["fcntl", "resource", "pwd", "grp", "termios", "tty"]


def test_modules_need_nothing_at_import_that_windows_lacks(monkeypatch):
    names = [module.name for module in pkgutil.walk_packages(smoothtune.__path__, "smoothtune.")]
    names = [name for name in names if not name.endswith("__main__")]
    assert len(names) > 200
    for name in names:  # what others' packages need of it is loaded before
        importlib.import_module(name)
    for name in LACKING:
        monkeypatch.delattr(os, name, raising=False)
    for name in SIGNALS:
        monkeypatch.delattr(signal, name)
    with mock.patch.dict(sys.modules):
        for name in [name for name in sys.modules if name.split(".")[0] == "smoothtune"]:
            del sys.modules[name]
        sys.modules |= dict.fromkeys(MODULES)
        for name in names:
            importlib.import_module(name)
