"""Run by torchrun: one step of a plain loop on an FSDP2-sharded model, whole gradients written."""

import sys
from pathlib import Path

import torch
from torch.distributed.fsdp import fully_shard

sys.path.insert(0, str(Path(__file__).parent.parent))

from helpers.training import FSDP_TESTED, Rows, collate, leave  # noqa: E402
from smoothtune import METHODS, Objective
from smoothtune.core.architecture import blocks  # noqa: E402
from smoothtune.testing import fixed_draws, tiny_model

torch.set_num_threads(1)
torch.distributed.init_process_group("gloo")
rank, output = torch.distributed.get_rank(), sys.argv[1]
for name, fields in FSDP_TESTED.items():
    model = tiny_model("bert")
    for block in blocks(model):
        fully_shard(block)
    fully_shard(model)
    objective = Objective(METHODS[name](**fields)).attach(model)
    rows = Rows()
    with fixed_draws():
        half = collate([rows[i] for i in range(16 * rank, 16 * rank + 16)])
        objective(model, half).backward()
    gradients = {
        name: parameter.grad.full_tensor()
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }
    if rank == 0:
        torch.save(gradients, f"{output}/{name}.pt")
    torch.distributed.barrier()
leave()
