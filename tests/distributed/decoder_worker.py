"""Run by torchrun: train decoders on several processes, write the weights of the first."""

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent.parent))

from helpers.causal import LANGUAGE_TESTED, language_weights_after, lora_weights_after  # noqa: E402
from helpers.training import leave  # noqa: E402

torch.set_num_threads(1)
output = sys.argv[1]
for after in (language_weights_after, lora_weights_after):
    for method in LANGUAGE_TESTED:
        weights = after(
            f"{output}/run", method, per_device_train_batch_size=2, gradient_accumulation_steps=2
        )
        if torch.distributed.get_rank() == 0:
            torch.save(weights, f"{output}/{after.__name__}-{method}.pt")
        torch.distributed.barrier()
leave()
