"""Run by torchrun: train with every method on several processes, write the weights of the first."""

import gc
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent.parent))

from helpers.ddp import RUNS, is_fast  # noqa: E402
from helpers.training import leave  # noqa: E402

gc.freeze()  # which every trainer would look at again
torch.set_num_threads(1)
output, fast = sys.argv[1], sys.argv[2] == "fast"
cases = [(name, method) for name, run in RUNS.items() for method in run.methods]
for name, method in cases:
    if is_fast(name, method) != fast:
        continue
    weights = RUNS[name].train(
        f"{output}/run",
        method,
        per_device_train_batch_size=RUNS[name].size,
        gradient_accumulation_steps=RUNS[name].batches,
    )
    rank = torch.distributed.get_rank()
    if rank == 0 or name in ("dual", "late", "both"):
        torch.save(weights, f"{output}/{name}-{method}{'-1' if rank else ''}.pt")
    torch.distributed.barrier()
leave()
