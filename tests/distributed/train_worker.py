"""Run by torchrun: `smoothtune train` with every method, on all processes."""

import os
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent.parent))

from helpers.launched import RESUMED, RUNS, STOP_AT, config_of, train_fixed, train_until  # noqa: E402
from helpers.training import leave  # noqa: E402

torch.set_num_threads(1)
inputs, output, parts = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
processes = int(os.environ["WORLD_SIZE"])


def config(name, folder):
    return config_of(name, inputs, folder, processes=processes, parts=parts)


for name in RUNS:
    train_fixed(config(name, output / name))
for name in RESUMED:
    train_until(STOP_AT, config(name, output / "stopped" / name))
    if (output / "begun" / name).exists():
        train_fixed(config(name, output / "begun" / name), resume=True)
leave()
