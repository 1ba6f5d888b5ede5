"""One update of a tiny model through a trainer: shared by the trainer and multi-process tests."""

import os
import sys
import time

import torch

from helpers.versions import trainer_arguments
from smoothtune import METHODS, SmoothTrainer
from smoothtune.nn.hf_versions import settings_of_one_run
from smoothtune.testing import VOCABULARY, fixed_draws, tiny_model, with_weight

METHODS_TESTED = {  # name -> fields; fields that make the term big enough to matter
    "plain": {},
    "lnsr": {"reduction": "token_sum"},
    "noise": {"noise": "in_manifold", "k": 4},
    "r3f": {"noise": "normal", "sigma": 0.1},
    "r4f": {"noise": "normal", "sigma": 0.1},
    "l2_sp": {"alpha": 1.0, "beta": 1.0},
    "mixout": {},
    "cwgnc": {"max_norm": 0.02},
    "smart": {"lambda_s": 5.0},
    "freelb": {},
    "jachess": {"c": 0.003, "smoothness": [1.0, 2.0]},
    "jacobian": {"estimator": "projected"},
    "uegr": {},
}


class Rows(torch.utils.data.Dataset):
    """Random examples of one length, so that any split of a batch has the same mean."""

    def __init__(self, count=32, num_labels=3, seed=0):
        generator = torch.Generator().manual_seed(seed)
        self.ids = torch.randint(5, VOCABULARY, (count, 6), generator=generator)
        self.labels = torch.randint(0, num_labels, (count,), generator=generator)

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        ids = self.ids[i]
        return {
            "input_ids": ids,
            "attention_mask": torch.ones_like(ids),
            "labels": self.labels[i],
            "example_id": torch.tensor(100 + i),
        }


def arguments(output_dir, **changes):
    settings = {
        "output_dir": str(output_dir),
        "max_steps": 1,
        "learning_rate": 0.1,
        "optim": "sgd",
        "lr_scheduler_type": "constant",
        "max_grad_norm": 0,
        "train_sampling_strategy": "sequential",
        "remove_unused_columns": False,
        "report_to": "none",
        "save_strategy": "no",
        "disable_tqdm": True,
        "use_cpu": True,
        "logging_steps": 1,
        "dataloader_pin_memory": False,
        "per_device_train_batch_size": 32,
    }
    return trainer_arguments(**settings | changes)


def weights_after(output_dir, method, architecture="bert", *, data=None, fields=None, **changes):
    """Weights by name after `max_steps` updates with one method."""
    model = tiny_model(architecture)
    with fixed_draws(), settings_of_one_run():
        trainer = SmoothTrainer(
            model=model,
            args=arguments(output_dir, **changes),
            train_dataset=data or Rows(),
            regularizers=[
                METHODS[method](**fields)
                if fields
                else with_weight(METHODS[method](**METHODS_TESTED[method]))
            ],
        )
        trainer.train()
        trainer.objective.detach()
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


COMPILED = {"max_steps": 2, "torch_compile": True, "torch_compile_backend": "aot_eager"}
CLIPPED = {"weight": 0.3, "clip": 0.9}  # a half of the examples
UNEQUAL_TESTED = ("plain", "lnsr", "l2_sp", "cwgnc")


def dual_weights_after(output_dir, method, fields=None, *, alternate="step", **changes):
    """Weights by name after two updates with labels and two without, which leave the head out."""
    fields = METHODS_TESTED[method] | (fields or {})
    model = tiny_model("bert")
    settings = {"max_steps": 4, "optim": "adamw_torch", "weight_decay": 0.1, "learning_rate": 0.01}
    with fixed_draws():
        SmoothTrainer(
            model=model,
            args=arguments(output_dir, **settings | changes),
            train_dataset=Rows(16),
            unlabeled_dataset=Rows(16, seed=9),
            alternate=alternate,
            regularizers=[with_weight(METHODS[method](**fields))],
        ).train()
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


LATE = {"ramp_start": 2}  # the first update without labels moves nothing

FSDP_TESTED = {
    "lnsr": {"reduction": "token_sum"},
    "r3f": {"noise": "normal", "sigma": 0.1},
    "smart": {"lambda_s": 5.0, "mu": 0},
    "pgd": {},
    "r_drop": {},
    "label_smoothing": {},
    "jachess": {"c": 0.003, "smoothness": [1.0, 2.0]},
}

SHARES_TESTED = {
    "lnsr": {"share": 0.5, "reduction": "token_sum", "ramp_start": 0.0},
    "vat": {"share": 0.5, "ramp_start": 0.0},
    "r3f": {"share": 0.5, "noise": "normal", "sigma": 0.1},
    "jachess": {  # first derivatives, whose differences round less; half of the examples clipped
        "share": 0.5,
        "clip": 0.9,
        "ramp_start": 0.0,
        "smoothness": [1.0, 2.0],
        "hessian_weight": 0.0,
        "estimator": "finite_difference",
    },
}
SHARE_UPDATES = 4  # the first two and the fourth are measured

ZERO_TESTED = {  # a name for each case: method and fields
    name: (name, METHODS_TESTED.get(name, {}))
    for name in METHODS
    if name not in ("cwgnc", "child_tuning", "uegr", "sam", "jachess")
}
ZERO_TESTED |= {
    "jachess": ("jachess", {"weight": 1e-5}),
    "every second update": ("lnsr", {"reduction": "token_sum", "weight": 1.0, "every": 2}),
    "ramp": ("lnsr", {"weight": 1.0, "ramp_start": 1, "ramp_steps": 2}),
    "clipped AdamW": ("lnsr", {"weight": 1.0}),
}
ZERO_TESTED |= {f"share of {name}": (name, fields) for name, fields in SHARES_TESTED.items()}
ZERO_ARGUMENTS = {  # of the case of that name
    "clipped AdamW": {
        "optim": "adamw_torch",
        "learning_rate": 1e-2,
        "adam_epsilon": 1e-3,  # so that the rounding of gradients that are zero does not decide
        "max_grad_norm": 0.1,
        "weight_decay": 0.1,
    },
}
ZERO_CONFIG = {
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "train_batch_size": "auto",
    "gradient_clipping": "auto",
    "zero_force_ds_cpu_optimizer": False,
    "zero_allow_untested_optimizer": True,
}


def collate(rows):
    """Stack rows of one length."""
    return {key: torch.stack([row[key] for row in rows]) for key in rows[0]}


def leave():
    """End one of several processes; on a busy machine gloo's threads abort an ordinary exit."""
    torch.distributed.barrier()
    time.sleep(0.5)  # until the others are out of the barrier
    sys.stdout.flush()
    os._exit(0)
