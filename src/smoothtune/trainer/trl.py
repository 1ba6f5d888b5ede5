"""TRL's SFTTrainer and RewardTrainer: checks of their settings."""

from __future__ import annotations

from typing import Any

from transformers import Trainer


def trl_trainer(trainer: Trainer) -> str | None:
    """Name of the class of TRL that a trainer is or inherits from; None for other trainers."""
    classes = (cls for cls in type(trainer).__mro__ if cls.__module__.startswith("trl."))
    return next((cls.__name__ for cls in classes if not cls.__name__.startswith("_")), None)


def trl_problems(trainer: Any) -> list[str]:
    """Reasons why a trainer of TRL is not supported, with what to change; empty if it is."""
    name, args = trl_trainer(trainer), trainer.args
    if name in (None, "RewardTrainer"):
        return []
    if name != "SFTTrainer":
        return [
            f"TRL's {name} runs the model several times for one loss, or a second model: "
            "SFTTrainer and RewardTrainer work"
        ]
    wrong = []
    if args.loss_type != "nll":
        wrong.append(f"loss_type={args.loss_type!r} of SFTTrainer is not verified: use 'nll'")
    if trainer.aux_loss_enabled:
        wrong.append("router losses are not verified: set router_aux_loss_coef=0")
    if args.packing and args.packing_strategy == "wrapped":
        wrong.append(
            "packing_strategy='wrapped' lets documents attend to one another, so a perturbation "
            "of one reaches the next: use 'bfd', or packing=False"
        )
    return wrong
