"""Run by torchrun: `smoothtune train` with accelerate's plugin for FSDP2, on all processes.

accelerate has FSDP for accelerators alone: here it is told that the CPU with gloo is one.
"""

import os
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent.parent))

from helpers.fsdp import ask_accelerate_for_shards  # noqa: E402
from helpers.launched import (  # noqa: E402
    SHARDED_RESUMED,
    SHARDED_RUNS,
    STOP_AT,
    config_of,
    train_fixed,
    train_until,
)
from helpers.training import leave  # noqa: E402

ask_accelerate_for_shards()
torch.set_num_threads(1)
inputs, output, parts = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
processes = int(os.environ["WORLD_SIZE"])


def config(name, folder):
    return config_of(name, inputs, folder, processes=processes, parts=parts)


for name in SHARDED_RUNS:
    train_fixed(config(name, output / name))
for name in SHARDED_RESUMED:
    train_until(STOP_AT, config(name, output / "stopped" / name))
    if (output / "begun" / name).exists():
        train_fixed(config(name, output / "begun" / name), resume=True)
leave()
