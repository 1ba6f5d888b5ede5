"""Run by torchrun: SmoothTrainer with accelerate's plugin for FSDP2; whole weights written.

accelerate has FSDP for accelerators alone: here it is told that the CPU with gloo is one.
"""

import os
import sys
from pathlib import Path

import torch
from accelerate import PartialState
from accelerate.utils import DistributedType

sys.path.insert(0, str(Path(__file__).parent.parent))

from helpers.training import (  # noqa: E402
    FSDP_TESTED,
    METHODS_TESTED,
    SHARE_UPDATES,
    SHARES_TESTED,
    Rows,
    arguments,
    leave,
)
from smoothtune import METHODS, SmoothTrainer
from smoothtune.testing import fixed_draws, tiny_model, with_weight

os.environ |= {
    "ACCELERATE_TORCH_DEVICE": "cpu",
    "ACCELERATE_USE_FSDP": "true",
    "FSDP_VERSION": "2",
    "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP",
    "FSDP_TRANSFORMER_CLS_TO_WRAP": "BertLayer",
    "FSDP_STATE_DICT_TYPE": "FULL_STATE_DICT",
}
PartialState._prepare_backend = lambda *_, **__: ("gloo", DistributedType.MULTI_GPU)
torch.set_num_threads(1)
torch.distributed.init_process_group("gloo")
rank, output = torch.distributed.get_rank(), Path(sys.argv[1])


def trainer_of(method, folder=output / "run", unlabeled=None, **changes):
    """A trainer of the weights of two updates, 16 rows in each process."""
    settings = {"use_cpu": False, "max_steps": 2, "per_device_train_batch_size": 16}
    return SmoothTrainer(
        model=tiny_model("bert"),
        args=arguments(folder, **settings | changes),
        train_dataset=Rows(),
        unlabeled_dataset=unlabeled,
        regularizers=[method],
    )


def write(trainer, name):
    assert all(type(p).__name__ == "DTensor" for p in trainer.model.parameters())
    weights = trainer.accelerator.get_state_dict(trainer.model_wrapped)
    if rank == 0:
        torch.save(weights, output / f"{name}.pt")


for name, fields in {"plain": {}, **FSDP_TESTED}.items():
    with fixed_draws():
        trainer = trainer_of(with_weight(METHODS[name](**fields)))
        trainer.train()
        write(trainer, name)
for name, fields in SHARES_TESTED.items():
    with fixed_draws():
        trainer = trainer_of(METHODS[name](**fields), max_steps=SHARE_UPDATES)
        trainer.train()
        write(trainer, f"share-{name}")
lnsr = FSDP_TESTED["lnsr"]
saving = {"optim": "adamw_torch", "learning_rate": 0.01, "save_strategy": "steps", "save_steps": 1}
for name, resumed in (("whole", False), ("resumed", True)):
    with fixed_draws():
        trainer = trainer_of(
            METHODS["lnsr"](**SHARES_TESTED["lnsr"]), output / "saved", max_steps=3, **saving
        )
        trainer.train(resume_from_checkpoint=resumed and str(output / "saved" / "checkpoint-2"))
        write(trainer, name)
trainer.save_model(str(output / "model"))
refused = {
    "whole weights": with_weight(METHODS["mixout"](**METHODS_TESTED["mixout"])),
    "second derivatives": with_weight(METHODS["jacobian"](estimator="projected")),
}
told = {}
for name, method in refused.items():
    try:
        trainer_of(method)
    except ValueError as error:
        told[name] = str(error)
try:
    trainer_of(with_weight(METHODS["lnsr"](**lnsr)), unlabeled=Rows())
except ValueError as error:
    told["unlabeled"] = str(error)
if rank == 0:
    torch.save(told, output / "told.pt")
leave()
