"""Run by torchrun: train one method on several processes, write the weights of the first."""

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent.parent))

from helpers.training import leave, weights_after  # noqa: E402

torch.set_num_threads(1)
output, per_device, accumulation, *methods = sys.argv[1:]
for method in methods:
    weights = weights_after(
        f"{output}/run",
        method,
        per_device_train_batch_size=int(per_device),
        gradient_accumulation_steps=int(accumulation),
        max_steps=2,
    )
    if torch.distributed.get_rank() == 0:
        torch.save(weights, f"{output}/{method}.pt")
    torch.distributed.barrier()
leave()
