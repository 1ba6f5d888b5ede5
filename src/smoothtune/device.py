"""What a run was timed on."""

from __future__ import annotations

import platform
from pathlib import Path

import torch


def device_name(device: torch.device) -> str:
    """The accelerator by name; a processor with its vector instructions and PyTorch's threads.

    Times are compared only between runs for which this is the same.

    Args:
        device: that of the model.
    """
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    threads = torch.get_num_threads()
    instructions = torch.backends.cpu.get_cpu_capability()
    name = f"{_processor()}, {instructions}, {threads} {'thread' if threads == 1 else 'threads'}"
    return name if device.type == "cpu" else f"{device.type}, {name}"


def _processor() -> str:
    """The processor's model, as far as the system says."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8", errors="replace").splitlines()
    except OSError:  # not Linux
        lines = []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or platform.machine()
