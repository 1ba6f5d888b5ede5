"""Two gloo processes give what one process gives."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from training import METHODS_TESTED, Rows, weights_after


@pytest.mark.parametrize(("per_device", "accumulation"), [(16, 1), (4, 4)])
def test_two_processes_equal_one(tmp_path, per_device, accumulation):
    worker = Path(__file__).parent / "worker.py"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command += [worker, tmp_path, str(per_device), str(accumulation), *METHODS_TESTED]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr[-3000:]
    for method in METHODS_TESTED:
        found = torch.load(tmp_path / f"{method}.pt", weights_only=True)
        expected = weights_after(tmp_path / "single", method, max_steps=2, data=Rows(32))
        for name, weight in expected.items():
            torch.testing.assert_close(found[name], weight, rtol=0, atol=1e-6, msg=name)
