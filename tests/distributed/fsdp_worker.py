"""Run by torchrun: models sharded by FSDP2 in a plain loop; whole gradients and weights written."""

import sys
from pathlib import Path

import torch
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

sys.path.insert(0, str(Path(__file__).parent.parent))

from helpers.causal import Texts  # noqa: E402
from helpers.fsdp import SHARDED  # noqa: E402
from helpers.training import (  # noqa: E402
    FSDP_TESTED,
    SHARE_UPDATES,
    SHARES_TESTED,
    collate,
    leave,
)
from smoothtune import METHODS, Objective
from smoothtune.nn.architecture import blocks  # noqa: E402
from smoothtune.testing import fixed_draws, with_weight  # noqa: E402

torch.set_num_threads(1)
torch.distributed.init_process_group("gloo")
rank, output = torch.distributed.get_rank(), sys.argv[1]


def sharded(model, **options):
    for block in blocks(model):
        fully_shard(block, **options)
    fully_shard(model, **options)
    return model


for kind, (make, data) in SHARDED.items():
    count = len(data) // 2
    for name, fields in FSDP_TESTED.items():
        model = sharded(make())
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
make, data = SHARDED["classifier"]
try:
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    Objective(METHODS["lnsr"]()).attach(sharded(make(), mp_policy=policy))
except ValueError as error:
    torch.save(str(error), f"{output}/policy-{rank}.pt")
for name, fields in SHARES_TESTED.items():
    model = sharded(make())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    objective = Objective(METHODS[name](**fields)).bind(model, optimizer)
    with fixed_draws():
        for _ in range(SHARE_UPDATES):
            for part in range(2):
                first = len(data) // 4 * (2 * part + rank)
                rows = collate([data[first + i] for i in range(len(data) // 4)])
                model.set_requires_gradient_sync(part == 1)
                (objective(model, rows) / 2).backward()
            optimizer.step()
            optimizer.zero_grad()
    weights = {n: weight.full_tensor() for n, weight in model.state_dict().items()}
    state = objective.strengths.state_dict()
    losses = state[f"sums.{name}"][5:]  # of this process's own rows
    torch.distributed.all_reduce(losses)
    losses /= torch.distributed.get_world_size()
    if rank == 0:
        torch.save(weights, f"{output}/share-{name}.pt")
        torch.save(state, f"{output}/strength-{name}.pt")
leave()
