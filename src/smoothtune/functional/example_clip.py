"""A bound on what one example counts in a mean over examples.

Squared derivatives are heavy-tailed: those of a few sentences may be ten thousand times those of
the others, above all in decoders, and would rule their whole update.
"""

import torch
import torch.distributed as dist
from torch import Tensor

MEMORY = 10  # updates


class ExampleClip:
    """Scales values down to a multiple of their own running mean.

    The mean after update t is taken over the n positive values of all its batches and processes:

        m_t = m_{t-1} + max(1/10, 1/t) (1/n sum_i min(v_i, multiple * m_{t-1}) - m_{t-1})

    One value moves it little, however large; values that all grow move it fast. m_1 is their
    geometric mean. What holds in an update follows from those before it, so it is the same however
    the update is cut into batches. `mean` () is m_t, and `count` () is t, of updates with values.
    """

    def __init__(self, multiple: float):
        self.multiple = multiple
        self.mean = self.count = torch.zeros(())  # on the device, once there are values
        self._sums: list[Tensor] = []  # (2,) of every batch of this update: a sum, and n

    def factors(self, values: Tensor) -> Tensor:
        """(B,) constants that scale values and their gradients; 0 before there is a mean.

        Values (B,) are 0 or more; those that are 0 (rows without tokens) do not count.
        """
        values = values.detach()
        counted = values > 0
        bound = self.multiple * self.mean.to(values)
        taken = torch.where(self.count.to(values) > 0, values.clamp(max=bound), values.log())
        total = torch.where(counted, taken, 0).sum()
        self._sums.append(torch.stack([total, counted.sum().to(total)]))
        return torch.where(counted, (bound / values).clamp(max=1), counted.to(values))

    def finish(self, device: torch.device) -> None:
        """At an update, in every process: take up what `factors` has seen in it."""
        distributed = dist.is_available() and dist.is_initialized()
        if not self._sums and not distributed:
            return
        sums = torch.stack(self._sums).sum(0) if self._sums else torch.zeros(2, device=device)
        self._sums.clear()
        if distributed:
            sums = sums.float()
            dist.all_reduce(sums)
        total, n = sums
        mean, self.count = self.mean.to(sums), self.count.to(sums) + (n > 0)
        step = (1 / self.count).clamp(min=1 / MEMORY)
        moved = mean + step * (total / n - mean)
        now = torch.where(self.count == 1, (total / n).exp(), moved)
        self.mean = torch.where(n > 0, now, mean)

    def state_dict(self) -> dict[str, Tensor]:
        """Mean and count."""
        return {"mean": self.mean, "count": self.count}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore what `state_dict` returned; an update that has begun is forgotten."""
        self._sums.clear()
        self.mean, self.count = state["mean"].clone(), state["count"].clone()
