"""Ways to take a step, for `gpu_cost.py`: methods, loops as others have them, and plain ones."""

import copy
from collections.abc import Callable

import torch
import torch.nn.functional as F
from host_time import literal_r3f, symmetric_kl
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from smoothtune import METHODS, Objective
from smoothtune.core.regularizer import Penalty, Regularizer


class Way:
    """An own copy of the model, with an optimizer."""

    def __init__(self, model: nn.Module, loss: object, autocast: torch.dtype | None):
        self.model, self.autocast = copy.deepcopy(model), autocast
        trained = [weight for weight in self.model.parameters() if weight.requires_grad]
        self.optimizer = torch.optim.AdamW(trained, lr=1e-6, fused=True)
        self.loss = loss
        if isinstance(loss, Objective):
            loss.bind(self.model, self.optimizer, 10_000)
            loss.expect(10_000, accumulates=False)
        self.counted: int | None = None

    def step(self, batch: dict[str, torch.Tensor]) -> None:
        """A whole update."""
        kind = next(iter(batch.values())).device.type
        with torch.autocast(kind, self.autocast, enabled=self.autocast is not None):
            loss = self.loss(self.model, batch)  # type: ignore[operator]
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def flops(self, batch: dict[str, torch.Tensor]) -> int:
        """Of a step, counted once."""
        if self.counted is None:
            with FlopCounterMode(display=False) as counter:
                self.step(batch)
            self.counted = counter.get_total_flops()
        return self.counted

    def close(self) -> None:
        """Free what it holds."""
        if isinstance(self.loss, Objective):
            self.loss.detach()


def literal_r_drop(model: nn.Module, batch: dict) -> torch.Tensor:
    """As dropreg/R-Drop with two passes."""
    one, other = model(**batch), model(**batch)
    return (one.loss + other.loss) / 2 + symmetric_kl(one.logits, other.logits) / 2


def literal_smart(model: nn.Module, batch: dict) -> torch.Tensor:
    """As archinetai/smart-pytorch, one step of the search."""
    embedded, mask = model.get_input_embeddings()(batch["input_ids"]), batch["attention_mask"]

    def logits(inputs: torch.Tensor) -> torch.Tensor:
        return model(inputs_embeds=inputs, attention_mask=mask).logits.float()

    clean = logits(embedded)
    noise = (torch.randn_like(embedded) * 1e-5).requires_grad_()
    climbed = torch.autograd.grad(symmetric_kl(logits(embedded + noise), clean.detach()), noise)[0]
    noise = noise + 1e-3 * climbed
    noise = (noise / (noise.abs().amax(-1, keepdim=True) + 1e-6)).detach()
    moved = logits(embedded + noise)
    return F.cross_entropy(clean, batch["labels"]) + 0.02 * symmetric_kl(moved, clean)


PEERS = {"peer R3F": literal_r3f, "peer R-Drop": literal_r_drop, "peer SMART": literal_smart}


def acting(name: str) -> Objective:
    """A method with its defaults, from the first update on."""
    method: Regularizer = METHODS[name]()
    if isinstance(method, Penalty):
        method.ramp_start = method.ramp_steps = 0
    return Objective(method)


def twice(joined: bool) -> Callable:
    """A plain loss of the batch twice: in two passes, or in one of twice the rows."""

    def loss(model: nn.Module, batch: dict) -> torch.Tensor:
        if not joined:
            return (model(**batch).loss + model(**batch).loss) / 2
        return model(**{name: torch.cat([value, value]) for name, value in batch.items()}).loss

    return loss
