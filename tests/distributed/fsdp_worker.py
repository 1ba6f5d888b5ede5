"""Run by torchrun: one step of models sharded by FSDP2 in a plain loop, whole gradients written."""

import sys
from pathlib import Path

import torch
from torch.distributed.fsdp import fully_shard

sys.path.insert(0, str(Path(__file__).parent.parent))

from helpers.causal import Texts  # noqa: E402
from helpers.fsdp import SHARDED  # noqa: E402
from helpers.training import FSDP_TESTED, collate, leave  # noqa: E402
from smoothtune import METHODS, Objective
from smoothtune.core.architecture import blocks  # noqa: E402
from smoothtune.testing import fixed_draws, with_weight  # noqa: E402

torch.set_num_threads(1)
torch.distributed.init_process_group("gloo")
rank, output = torch.distributed.get_rank(), sys.argv[1]
for kind, (make, data) in SHARDED.items():
    count = len(data) // 2
    for name, fields in FSDP_TESTED.items():
        model = make()
        for block in blocks(model):
            fully_shard(block)
        fully_shard(model)
        objective = Objective(with_weight(METHODS[name](**fields))).attach(model)
        half = collate([data[i] for i in range(count * rank, count * (rank + 1))])
        if kind == "language":  # half of the label tokens of the whole batch
            half["num_items_in_batch"] = torch.tensor(Texts.label_tokens(len(data)) / 2)
        with fixed_draws():
            objective(model, half).backward()
        gradients = {
            name: parameter.grad.full_tensor()
            for name, parameter in model.named_parameters()
            if parameter.grad is not None
        }
        if rank == 0:
            torch.save(gradients, f"{output}/{kind}-{name}.pt")
        torch.distributed.barrier()
        half.pop("labels")
        try:
            objective(model, half)
        except ValueError as error:
            torch.save(str(error), f"{output}/unlabeled-{rank}.pt")
leave()
