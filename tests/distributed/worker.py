"""Run by torchrun: train with every method on several processes, write the weights of the first."""

import gc
import sys
from functools import partial
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent.parent))

from helpers.causal import LANGUAGE_TESTED, language_weights_after, lora_weights_after  # noqa: E402
from helpers.training import METHODS_TESTED, leave, weights_after  # noqa: E402

gc.freeze()  # which every trainer would look at again
torch.set_num_threads(1)
output = sys.argv[1]
RUNS = [  # name, function, methods, size of a batch, batches of an update
    ("one-batch", partial(weights_after, max_steps=2), METHODS_TESTED, 16, 1),
    ("four-batches", partial(weights_after, max_steps=2), METHODS_TESTED, 4, 4),
    ("language", language_weights_after, LANGUAGE_TESTED, 2, 2),
    ("lora", lora_weights_after, LANGUAGE_TESTED, 2, 2),
]
for name, after, methods, size, accumulation in RUNS:
    for method in methods:
        weights = after(
            f"{output}/run",
            method,
            per_device_train_batch_size=size,
            gradient_accumulation_steps=accumulation,
        )
        if torch.distributed.get_rank() == 0:
            torch.save(weights, f"{output}/{name}-{method}.pt")
        torch.distributed.barrier()
leave()
