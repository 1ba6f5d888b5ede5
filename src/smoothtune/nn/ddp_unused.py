"""Backward passes that reach every weight, for which DDP waits before it reduces gradients.

An unlabeled batch has terms alone, and those on hidden states do not reach the head. DDP would then
raise in the next forward, or leave gradients that differ between processes.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel


def unreached(value: Tensor, weights: Iterable[nn.Parameter]) -> set[nn.Parameter]:
    """The weights to which a backward from a value brings no gradient.

    >>> w, v = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    >>> unreached((2 * w).sum(), [w, v]) == {v}
    True
    """
    reached, seen, waiting = set(), set(), [value.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if type(node).__name__ == "AccumulateGrad":
            reached.add(node.variable)  # type: ignore[attr-defined]
        waiting += [below for below, _ in node.next_functions]
    return {weight for weight in weights if weight not in reached}


class UnusedWeights:
    """Lets every weight of a DDP model take part in a backward, and be as if it had not."""

    def __init__(self) -> None:
        self._unreached: set[nn.Parameter] | None = None  # by no batch of the update so far

    def zero_gradients(self, model: nn.Module, total: Tensor, labeled: bool) -> Tensor:
        """() the same value, with a gradient of zero for weights that it does not reach.

        Args:
            model: as the loop holds it.
            total: () what will be back-propagated.
            labeled: whether it holds the task loss, which reaches all that the model uses.
        """
        if labeled or not isinstance(model, DistributedDataParallel):
            self._unreached = set()
            return total
        if not torch.is_grad_enabled():
            return total
        unused = unreached(total, (w for w in model.parameters() if w.requires_grad))
        for weight in model.parameters():  # in one order in every process
            if weight in unused:
                total = total + 0 * weight.flatten()[:1].sum()
        self._unreached = unused if self._unreached is None else self._unreached & unused
        return total

    def zero_loss(self, model: nn.Module) -> Tensor:
        """() zero, for a batch that is to move no weight; the forward of DDP has run.

        DDP and gradient scalers wait for gradients: these, which are zero, are gone before the
        update, unless another of its batches has some.

        Args:
            model: as the loop holds it.
        """
        weights = [weight for weight in model.parameters() if weight.requires_grad]
        self._unreached = set(weights) if self._unreached is None else self._unreached
        return torch.stack([0 * weight.flatten()[:1].sum().float() for weight in weights]).sum()

    def forget(self) -> None:
        """Before an update: weights that no batch reached have no gradient, as without DDP."""
        for weight in self._unreached or ():
            weight.grad = None  # else momentum and weight decay would move them
        self._unreached = None
