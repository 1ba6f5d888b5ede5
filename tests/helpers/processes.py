"""Programs that run in several processes."""

import subprocess
import sys
from pathlib import Path

PROGRAMS = Path(__file__).parents[1] / "distributed"


def on_two_processes(program: str, *arguments) -> None:
    """Run a program of `tests/distributed` under torchrun, on gloo."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command += [PROGRAMS / program, *arguments]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr[-3000:]
