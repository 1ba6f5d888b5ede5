"""Run by torchrun: `smoothtune train` with every method, on all processes."""

import os
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent.parent))

from helpers.at_once import begin_at_once  # noqa: E402
from helpers.launched import RUNS, config_of, train_fixed  # noqa: E402
from helpers.training import leave  # noqa: E402

begin_at_once()
torch.set_num_threads(1)
inputs, output, parts = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
processes = int(os.environ["WORLD_SIZE"])
for name in sys.argv[4:] or RUNS:
    train_fixed(config_of(name, inputs, output / name, processes=processes, parts=parts))
leave()
