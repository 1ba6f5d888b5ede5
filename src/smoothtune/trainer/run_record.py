"""What a resumed run must have in common with the run that wrote the checkpoint."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from torch import nn
from transformers import Trainer, TrainingArguments

from smoothtune.core.objective import Objective
from smoothtune.nn.hf_versions import sampling_strategy, warmup_steps

ARGUMENTS = (
    "seed",
    "data_seed",
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "world_size",
    "learning_rate",
    "lr_scheduler_type",
    "lr_scheduler_kwargs",
    "optim",
    "optim_args",
    "weight_decay",
    "adam_beta1",
    "adam_beta2",
    "adam_epsilon",
    "max_grad_norm",
    "label_smoothing_factor",
    "neftune_noise_alpha",
    "dataloader_drop_last",
    "bf16",
    "fp16",
)
"""Arguments that decide what an update does and reads; the number of steps may grow."""
CUT = ("per_device_train_batch_size", "gradient_accumulation_steps", "world_size")
"""How an update is cut, which a run may change whose order of rows stays the same."""
EXAMPLES = "examples per update"
"""Recorded by such a run."""


def examples_per_update(args: TrainingArguments) -> int:
    """Number of training examples of an update, over accumulation steps and processes."""
    return args.train_batch_size * args.gradient_accumulation_steps * args.world_size


def describe_run(trainer: Trainer, objective: Objective) -> dict[str, Any]:
    """Model, methods with all fields and versions, and arguments, as flat JSON data."""
    run: dict[str, Any] = {"model": describe_model(trainer.model)}
    for name, method in objective.regularizers.items():
        run[f"{name}.version"] = method.traits.version
        run |= {f"{name}.{f.name}": _plain(getattr(method, f.name)) for f in fields(method)}
    run |= {name: _plain(getattr(trainer.args, name)) for name in ARGUMENTS}
    run["warmup_steps"] = warmup_steps(trainer.args)
    run["train_sampling_strategy"] = sampling_strategy(trainer.args)
    if trainer.is_fsdp_enabled:
        run["weights in parts"] = "FSDP2"
    return run | getattr(trainer, "run_identity", {})


def describe_model(model: Any) -> str:
    """Class, number of weights, and a checksum of their names and shapes."""
    assert isinstance(model, nn.Module)
    weights = [(name, list(p.shape), str(p.dtype)) for name, p in model.named_parameters()]
    digest = hashlib.sha256(json.dumps(sorted(weights)).encode()).hexdigest()[:8]
    count = sum(p.numel() for p in model.parameters())
    return f"{type(model).__name__} of {count:,} weights, architecture {digest}"


def differences(recorded: Mapping[str, Any], current: Mapping[str, Any]) -> str:
    """Entries that differ, as ``seed 1, here 2``; a method that one side lacks is named once.

    How an update is cut counts unless both say how many examples it has.
    """
    counted = EXAMPLES in recorded and EXAMPLES in current
    passed = CUT if counted else (EXAMPLES,)
    recorded, current = (
        {key: value for key, value in run.items() if key not in passed}
        for run in (recorded, current)
    )
    before, now = _methods(recorded), _methods(current)
    changes = [f"method {name}, here without it" for name in sorted(before - now)]
    changes += [f"no method {name}, here with it" for name in sorted(now - before)]
    for key in sorted(recorded.keys() | current.keys()):
        if "." in key and key.split(".")[0] not in before & now:
            continue
        if recorded.get(key) != current.get(key):
            changes.append(f"{key} {recorded.get(key)!r}, here {current.get(key)!r}")
    return "; ".join(changes)


def _methods(run: Mapping[str, Any]) -> set[str]:
    return {key.removesuffix(".version") for key in run if key.endswith(".version")}


def _plain(value: Any) -> Any:
    """As JSON gives it back; what is no data by its type alone."""
    try:
        return json.loads(json.dumps(value, allow_nan=False))
    except ValueError:  # infinite
        return repr(value)
    except TypeError:
        return type(value).__name__
