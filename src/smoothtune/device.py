"""What runs are computed on: its name, for times, and what it is slow at."""

import platform
from collections.abc import Mapping
from typing import Any

import torch

SLOW_BFLOAT16 = (
    "bf16: this processor has no bfloat16 arithmetic, so steps and evaluations take many times as "
    "long as in float32; set bf16: false"
)


def device_name(device: torch.device) -> str:
    """The accelerator by name; a processor with its vector instructions and PyTorch's threads.

    Times of runs for which this differs are not compared.
    """
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    processor = _processor().get("cpu_name") or platform.machine()
    threads = torch.get_num_threads()
    instructions = torch.backends.cpu.get_cpu_capability()
    name = f"{processor}, {instructions}, {threads} {'thread' if threads == 1 else 'threads'}"
    return name if device.type == "cpu" else f"{device.type}, {name}"


def slow_at_bfloat16() -> bool:
    """Whether models are computed on a processor for which PyTorch has no fast bfloat16 kernels.

    Those of x86 need AVX-512 or AVX-NE-CONVERT. What others than x86 have is not known here.
    """
    capabilities = _processor()
    return (
        not torch.accelerator.is_available()
        and capabilities.get("architecture") == "x86_64"
        and not (capabilities.get("avx512_bw") or capabilities.get("avx_ne_convert"))
    )


def _processor() -> Mapping[str, Any]:
    if hasattr(torch.cpu, "get_capabilities"):
        return torch.cpu.get_capabilities()
    # of torch 2.6, which knows no names
    wide = torch.cpu._is_avx512_supported()
    return {"architecture": platform.machine(), "avx512_bw": wide}
