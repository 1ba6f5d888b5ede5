"""Run by torchrun: SmoothTrainer under DeepSpeed's ZeRO on the CPU with gloo; weights written.

transformers takes DeepSpeed for a matter of accelerators: here it is told that the CPU is one.
"""

import os
import sys
from pathlib import Path

import deepspeed
import torch
from accelerate import PartialState
from accelerate.utils import DistributedType

sys.path.insert(0, str(Path(__file__).parent.parent))

from helpers.training import (  # noqa: E402
    ZERO_ARGUMENTS,
    ZERO_CONFIG,
    ZERO_TESTED,
    Rows,
    arguments,
    leave,
)
from smoothtune import METHODS, SmoothTrainer
from smoothtune.testing import fixed_draws, tiny_model, with_weight

os.environ |= {"ACCELERATE_TORCH_DEVICE": "cpu", "ACCELERATE_USE_DEEPSPEED": "true"}
PartialState._prepare_backend = lambda *_, **__: ("gloo", DistributedType.MULTI_GPU)
torch.set_num_threads(1)
deepspeed.init_distributed(dist_backend="gloo", verbose=False)
rank, output = torch.distributed.get_rank(), Path(sys.argv[1])


def trainer_of(method, folder=output / "run", stage=2, unlabeled=None, **changes):
    """A trainer of the weights of some updates, 16 rows in each process."""
    config = {**ZERO_CONFIG, "zero_optimization": {"stage": stage}}
    settings = {"use_cpu": False, "max_steps": 3, "per_device_train_batch_size": 16}
    return SmoothTrainer(
        model=tiny_model("bert", dtype=torch.float32),
        args=arguments(folder, deepspeed=config, **settings | changes),
        train_dataset=Rows(),
        unlabeled_dataset=unlabeled,
        regularizers=[method],
    )


def write(trainer, name):
    assert trainer.accelerator.distributed_type == DistributedType.DEEPSPEED
    if rank == 0:
        torch.save(trainer.model.state_dict(), output / f"{name}.pt")


for name, (method, fields) in ZERO_TESTED.items():
    for stage in (1, 2) if name == "lnsr" else (2,):
        with fixed_draws():
            regularizer = METHODS[method](**fields)
            regularizer = regularizer if "share" in fields else with_weight(regularizer)
            trainer = trainer_of(regularizer, stage=stage, **ZERO_ARGUMENTS.get(name, {}))
            trainer.train()
            write(trainer, f"{name}-{stage}")
trainer.save_model(str(output / "model"))
refused = {
    "edits": (METHODS["cwgnc"](), {}),
    "climbs": (METHODS["sam"](), {}),
    "stage 3": (METHODS["plain"](), {"stage": 3}),
    "checkpoints": (METHODS["plain"](), {"save_strategy": "steps"}),
    "unlabeled": (METHODS["lnsr"](weight=1.0), {"unlabeled": Rows()}),
    "accumulation": (METHODS["plain"](), {"gradient_accumulation_steps": 2}),
}
told = {}
for name, (method, changes) in refused.items():
    try:
        trainer_of(method, **changes)
    except ValueError as error:
        told[name] = str(error)
if rank == 0:
    torch.save(told, output / "told.pt")
leave()
