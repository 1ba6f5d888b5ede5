"""Run by torchrun: a loop with models that accelerate shards by FSDP2; whole weights written.

accelerate has FSDP for accelerators alone: here it is told that the CPU with gloo is one.
"""

import os
import sys
from pathlib import Path

import torch
from accelerate import Accelerator

sys.path.insert(0, str(Path(__file__).parent.parent))

from helpers.fsdp import ask_accelerate_for_shards, updates  # noqa: E402
from helpers.training import SHARES_TESTED, Rows, leave  # noqa: E402
from smoothtune.testing import tiny_model  # noqa: E402

ask_accelerate_for_shards()
os.environ["FSDP_TRANSFORMER_CLS_TO_WRAP"] = "BertLayer"
torch.set_num_threads(1)

accelerator, data = Accelerator(), Rows(32)
half, rank = len(data) // 2, torch.distributed.get_rank()
for name in SHARES_TESTED:
    model = tiny_model("bert")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    model, optimizer = accelerator.prepare(model, optimizer)
    own = slice(half * rank, half * (rank + 1))
    updates(model, optimizer, name, data, own, accelerator.backward)
    weights = accelerator.get_state_dict(model)
    if rank == 0:
        torch.save(weights, f"{sys.argv[1]}/{name}.pt")
leave()
