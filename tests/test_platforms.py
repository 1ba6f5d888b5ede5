"""Every module is imported where Windows lacks what others have."""

import subprocess
import sys

LACKING = """
import os, pkgutil, importlib, signal, sys

for name in ("fork", "forkpty", "setsid", "setpgid", "killpg", "getuid", "geteuid", "getpgid",
             "fchmod", "sched_getaffinity", "mkfifo", "uname", "getloadavg", "sysconf", "nice",
             "O_DIRECTORY", "O_NOFOLLOW", "O_NONBLOCK", "WNOHANG", "register_at_fork"):
    if hasattr(os, name):
        delattr(os, name)
for name in ("SIGHUP", "SIGKILL", "SIGUSR1", "SIGUSR2", "SIGXCPU", "SIGALRM", "SIGCHLD"):
    delattr(signal, name)
for name in ("fcntl", "resource", "pwd", "grp", "termios", "tty"):
    sys.modules[name] = None
import smoothtune

for module in pkgutil.walk_packages(smoothtune.__path__, "smoothtune."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
print("all imported")
"""


def test_modules_need_nothing_at_import_that_windows_lacks():
    # what others' packages need of it is loaded before
    before = (
        "import accelerate, datasets, torch, torch.distributed, transformers, typer, tempfile\n"
        "import transformers.trainer, sklearn, scipy.stats, pandas, torch._dynamo, filelock\n"
        "import asyncio, multiprocessing.util, multiprocessing.pool, seqeval.metrics\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", before + LACKING], capture_output=True, text=True, check=False
    )
    assert done.stdout.strip().endswith("all imported"), done.stderr[-2000:]
