"""Random numbers of the methods, kept apart from those of plain training.

A method draws inside `stream(...)`: a generator seeded from (run seed, method, call). So the task's
dropout masks and the order of the data are the same with and without a method, methods do not
disturb one another, and a resumed run needs no more than the counter of calls. A forward replayed
inside `replay(state)` sees the dropout masks it saw before.
"""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor

State = tuple[Tensor, Tensor | None]  # CPU generator, accelerator generator


def get_state(device: torch.device) -> State:
    """State of the global generators that a forward on `device` draws from."""
    accelerator = None if device.type == "cpu" else torch.get_device_module(device)
    return torch.get_rng_state(), accelerator and accelerator.get_rng_state(device)


def set_state(device: torch.device, state: State) -> None:
    """Set the global generators to what `get_state` returned."""
    torch.set_rng_state(state[0])
    if state[1] is not None:
        torch.get_device_module(device).set_rng_state(state[1], device)


def same(one: State, other: State | None) -> bool:
    """Whether two states are equal."""
    pairs = zip(one, other or (None, None), strict=True)
    return all(torch.equal(a, b) if a is not None and b is not None else a is b for a, b in pairs)


@contextmanager
def isolated(device: torch.device) -> Iterator[None]:
    """Leave the global generators as they were found, also after an exception."""
    before = get_state(device)
    try:
        yield
    finally:
        set_state(device, before)


@contextmanager
def replay(device: torch.device, state: State) -> Iterator[None]:
    """Draw again what was drawn after `state`; the global generators stay as they were."""
    with isolated(device):
        set_state(device, state)
        yield


@contextmanager
def stream(
    device: torch.device, seed: int, name: str, call: int, *, every_process: bool = False
) -> Iterator[None]:
    """Draw from a generator of its own for this method (name) and call, in a run with this seed.

    Args:
        device: whose generator is drawn from.
        seed: of the run.
        name: of the method.
        call: counter of its draws.
        every_process: the same draws in every process, as for the weights, which they share; else
            each process has its own.
    """
    distributed = dist.is_available() and dist.is_initialized() and not every_process
    rank = dist.get_rank() if distributed else 0
    key = f"{seed}/{name}/{call}/{rank}".encode()
    with isolated(device):
        _seed(device, int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "big") >> 1)
        yield


def _seed(device: torch.device, seed: int) -> None:
    """Only the generators in use: torch.manual_seed writes a stack trace for each absent device."""
    torch.default_generator.manual_seed(seed)
    if device.type != "cpu":
        module = torch.get_device_module(device)
        getattr(module, "manual_seed_all", module.manual_seed)(seed)


def normal_like(x: Tensor) -> Tensor:
    """Standard normal draws of the shape and type of `x`."""
    return torch.randn_like(x, requires_grad=False)


def uniform_like(x: Tensor) -> Tensor:
    """Draws from U(-1, 1) of the shape and type of `x`."""
    return torch.empty_like(x, requires_grad=False).uniform_(-1, 1)


def keep_mask(shape: tuple[int, ...], p: float, like: Tensor) -> Tensor:
    """Draws from Bernoulli(1 - p), of the type of `like`."""
    wide = torch.promote_types(like.dtype, torch.float32)  # 16 bits would round 0.999 to 1
    drawn = torch.bernoulli(torch.full(shape, 1 - p, dtype=wide, device=like.device))
    return drawn.to(like.dtype)
