"""What a machine has room for: runs at once, and GPUs for them."""

from __future__ import annotations

import os

MEMORY_PER_CELL = 1.5e9
"""Bytes that a process takes beside its model, on a GPU as in the machine's memory."""
COPIES_OF_MODEL = 6
"""Weights, gradients, two moments of the optimizer, and activations of about twice the weights."""


def visible_gpus() -> list[str]:
    """The GPUs of this machine, by the names that CUDA_VISIBLE_DEVICES gives or may give them."""
    import torch

    count = torch.cuda.device_count()
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    return (named.split(",") if named else [str(i) for i in range(count)])[:count]


def default_jobs(weight_bytes: int) -> int:
    """How many cells this machine can run at once, by cores and by memory that is free.

    With GPUs both their memory and the machine's count: a run has its context, its weights and what
    they pass through in both.

    `weight_bytes` are those of the largest model.
    """
    import psutil
    import torch

    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    each = COPIES_OF_MODEL * weight_bytes + MEMORY_PER_CELL
    room = psutil.virtual_memory().available // each
    if gpus := torch.cuda.device_count():
        room = min(room, sum(torch.cuda.mem_get_info(i)[0] // each for i in range(gpus)))
    return max(1, min(cores, int(room)))
