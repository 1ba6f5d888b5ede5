"""Losses and weights that are NaN or infinite: how they are noticed, and what is said of them."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial, reduce
from typing import Any

import torch
from torch import Tensor, nn

from smoothtune.errors import NonFiniteLoss, NonFiniteWeights

Check = tuple[Tensor, Callable[[], Exception]]
"""() whether it is passed, on the device; and the error if it is not."""


class Checks:
    """Checks of values on the device, whose results are read where that waits for nothing.

    Attributes:
        late: results are read one `turn` later, when they have long been there; else at once.
    """

    def __init__(self) -> None:
        self.late = False
        self._latest: list[Check] = []
        self._sent: _Sent | None = None

    def add(self, passed: Tensor, error: Callable[[], Exception]) -> None:
        """Check something: () whether it is as it should be, and what makes the error."""
        self._latest.append((passed, error))
        if not self.late:
            self.read()

    def turn(self) -> None:
        """After an update: send its results to the host, and read those of the update before."""
        before, latest = self._sent, self._latest
        self._sent, self._latest = _Sent(latest) if latest else None, []
        error = None if before is None else before.first_error()
        if error is not None:
            self.clear()  # what follows it is of weights that it has spoiled
            raise error

    def read(self) -> None:
        """Read all results; this waits for the device."""
        self.turn()
        self.turn()

    def clear(self) -> None:
        """Forget what was not read."""
        self._sent, self._latest = None, []


class _Sent:
    """Results on their way to the host."""

    def __init__(self, checks: Sequence[Check]):
        self.errors = [error for _, error in checks]
        device = checks[-1][0].device
        passed = torch.stack([each.to(device) for each, _ in checks])
        self.passed = passed.to("cpu", non_blocking=passed.is_cuda)
        self.arrived = torch.cuda.Event() if passed.is_cuda else None
        if self.arrived is not None:
            self.arrived.record()

    def first_error(self) -> Exception | None:
        if self.arrived is not None:
            self.arrived.synchronize()
        results = zip(self.passed.tolist(), self.errors, strict=True)
        return next((error() for passed, error in results if not passed), None)


def non_finite_loss(
    model: nn.Module, losses: Mapping[str, Tensor], example_ids: Any, update: int
) -> NonFiniteLoss:
    """Says which parts () are not finite, on which examples (ids (B,), or None), and what to do."""
    bad = [f"{name} = {value.item()}" for name, value in sorted(losses.items())]
    where = "" if example_ids is None else f", examples {example_ids.tolist()}"
    broken = [n for n, p in model.named_parameters() if not p.isfinite().all()]
    state = (
        f"{len(broken)} weights are not finite, {broken[0]} among them: go back to a checkpoint"
        if broken
        else "The weights hold the last good state"
    )
    return NonFiniteLoss(
        f"the objective is not finite in update {update}{where}: {', '.join(bad)}. "
        f"{state}. Lower the learning rate or the weight of the term, or look at the examples "
        "named."
    )


def finite_weights(model: nn.Module, update: int) -> Check | None:
    """The check that all trained weights are finite after some updates; None: there are none."""
    trained = {name: _local(p) for name, p in model.named_parameters() if p.requires_grad}
    trained = {name: weight for name, weight in trained.items() if weight.numel()}
    if not trained:
        return None
    weights = list(trained.values())
    on_cpu = all(weight.device.type == "cpu" for weight in weights)
    finite = _finite_on_cpu(weights) if on_cpu else _finite(weights, torch.inf)
    return finite.all(), partial(_non_finite_weights, list(trained), finite, update)


def _finite_on_cpu(weights: list[Tensor]) -> Tensor:
    """`_finite` in a tenth of a maximum's time; squares of finite weights may be infinite."""
    finite = _finite(weights, 2)
    return finite if finite.all() else _finite(weights, torch.inf)


def _finite(weights: list[Tensor], order: float) -> Tensor:
    """(W,) whether a norm of each weight is finite; in a few operations, whatever W."""
    norms = torch._foreach_norm(weights, order)
    dtype = reduce(torch.promote_types, {norm.dtype for norm in norms})
    return torch.stack([norm.to(norms[0].device, dtype) for norm in norms]).isfinite()


def _non_finite_weights(names: list[str], finite: Tensor, update: int) -> NonFiniteWeights:
    return NonFiniteWeights(
        f"the weight {names[int((~finite).nonzero()[0])]} is not finite after update {update}: "
        "lower learning_rate or weight_decay, or clip gradients with max_grad_norm; no checkpoint "
        "was written with it"
    )


def _local(weight: Tensor) -> Tensor:
    """The part of a sharded weight that this process holds."""
    weight = weight.detach()
    local: Tensor = weight.to_local() if hasattr(weight, "to_local") else weight
    return local
