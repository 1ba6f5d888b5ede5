"""Programs that run in several processes."""

import subprocess
import sys
from pathlib import Path

PROGRAMS = Path(__file__).parents[1] / "distributed"


def on_two_processes(program: str, *arguments) -> None:
    """Run a program of `tests/distributed` under torchrun, on gloo."""
    on_processes(2, program, *arguments)


def on_processes(number: int, program: str, *arguments) -> None:
    """The same on any number of processes."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += [f"--nproc-per-node={number}", PROGRAMS / program, *arguments]
    result = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert result.returncode == 0, result.stderr[-3000:]
