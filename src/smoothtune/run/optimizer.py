"""AdamW as the original code of BERT has it: without the correction of the moments' bias.

The moments begin at zero, so the first steps are about (1 - beta1) / sqrt(1 - beta2) = 3 times as
long as with the correction. Zhang et al. (ICLR 2021, arXiv 2006.05987) and Mosbach et al. (ICLR
2021, arXiv 2006.04884) find in it a cause of unstable fine-tuning; the papers that cure instability
train with it.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from transformers import TrainingArguments


def uncorrected(arguments: TrainingArguments) -> tuple[type[torch.optim.Optimizer], dict[str, Any]]:
    """The optimizer's class and settings, as the Trainer takes them."""
    betas = (arguments.adam_beta1, arguments.adam_beta2)
    settings = {"lr": arguments.learning_rate, "betas": betas, "eps": arguments.adam_epsilon}
    return UncorrectedAdamW, settings


class UncorrectedAdamW(torch.optim.Optimizer):
    """w <- w - lr (m / (sqrt(v) + eps) + weight_decay w), m and v running means of g and g^2."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 5e-5,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ):
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One update; `closure` is called first, with gradients, and its value is returned."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    self._update(weight, group)
        return loss

    def _update(self, weight: Tensor, group: dict[str, Any]) -> None:
        state, gradient, (beta1, beta2) = self.state[weight], weight.grad, group["betas"]
        if not state:
            state["exp_avg"] = torch.zeros_like(weight)
            state["exp_avg_sq"] = torch.zeros_like(weight)
        first, second = state["exp_avg"], state["exp_avg_sq"]
        first.lerp_(gradient, 1 - beta1)
        second.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        if group["weight_decay"]:
            weight.mul_(1 - group["lr"] * group["weight_decay"])
        weight.addcdiv_(first, second.sqrt().add_(group["eps"]), value=-group["lr"])
