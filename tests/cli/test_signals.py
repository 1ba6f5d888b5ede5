"""SIGINT and SIGTERM before anything is trained."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

MESSAGE = "error: stopped by a signal; what was finished is kept: run the same command again\n"
IMPORTED = """
import os, signal
try:
    os.kill(os.getpid(), {number})
except BaseException:  # as modules in C do
    pass
"""
WRITING = """
import os, signal
from pathlib import Path
from smoothtune.cli.signals import end_on_signals
from smoothtune.files import owned, replacing

end_on_signals()
if not (child := os.fork()):
    os.kill(os.getpid(), signal.SIGTERM)
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM
with owned(Path("out")) as folder, replacing(folder / "table.csv") as partial:
    partial.write_text("half")
    os.kill(os.getpid(), signal.SIGTERM)
"""


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, *arguments],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_libraries_are_imported(tmp_path: Path, number: signal.Signals) -> None:
    (tmp_path / "pydantic.py").write_text(IMPORTED.format(number=int(number)))
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    ended = run("-m", "smoothtune", "predict", "model", PYTHONPATH=path)
    assert (ended.returncode, ended.stderr) == (75, MESSAGE)


def test_a_signal_while_a_file_is_written_leaves_no_half(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    ended = run("-c", WRITING)
    assert (ended.returncode, ended.stderr) == (75, MESSAGE)
    assert not (tmp_path / "out").exists()


def test_an_ignored_signal_stays_ignored(tmp_path: Path) -> None:
    code = """
import os, signal
from smoothtune.cli.signals import end_on_signals

signal.signal(signal.SIGINT, signal.SIG_IGN)
end_on_signals()
os.kill(os.getpid(), signal.SIGINT)
"""
    assert run("-c", code).returncode == 0
