"""DDP copies the first process's buffers in place; an update's later passes leave them alone."""

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from smoothtune.nn.distributed import buffers_copied_once


@pytest.fixture
def ddp(tmp_path):
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1
    )
    yield DistributedDataParallel(nn.BatchNorm1d(2))
    torch.distributed.destroy_process_group()


def test_buffers_are_copied_before_the_first_pass_alone(ddp, monkeypatch):
    copies = []
    monkeypatch.setattr(ddp, "_sync_buffers", lambda: copies.append(None))
    with buffers_copied_once(ddp):
        for _ in range(3):
            ddp(torch.randn(4, 2))
    assert len(copies) == 1
    ddp(torch.randn(4, 2))  # as DDP does by itself again
    assert len(copies) == 2
