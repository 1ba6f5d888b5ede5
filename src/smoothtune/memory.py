"""Peak memory of this process, and glibc settings that keep freed memory between steps."""

import ctypes
import gc
import platform
import sys
from pathlib import Path

import torch

# of glibc's malloc.h, see mallopt(3)
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_NEVER = -1  # no int is large enough: graphs of long rows take more than 2 GiB


def keep_freed_memory() -> bool:
    """Make glibc keep freed memory for the next step, in this process from now on.

    By default glibc returns large freed blocks to the system after each step, and the next step
    pays a page fault for every page of them: a few per cent of a CPU step with methods that run
    several forwards. `smoothtune train`, `study` and `cost` call this; in a script of your own,
    call it, or start the script with ``MALLOC_TRIM_THRESHOLD_=1000000000000
    MALLOC_MMAP_THRESHOLD_=1000000000``.

    Returns:
        True if the C library is glibc and accepted both settings.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    return all([mallopt(_M_TRIM_THRESHOLD, _NEVER), mallopt(_M_MMAP_THRESHOLD, 2**30)])


def measurable() -> bool:
    """Whether `PeakMemory` works here: Linux, or CUDA."""
    return torch.cuda.is_available() or sys.platform == "linux"


def reset_peak() -> None:
    """Begin to measure `peak` again: collect garbage, and give freed memory back to the system."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
        return
    ctypes.CDLL(None).malloc_trim(0)  # freed memory that is kept would hide the rise
    Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM


def peak() -> int:
    """Bytes at the peak since `reset_peak`: CUDA allocations, or the resident set on Linux."""
    return torch.cuda.max_memory_allocated() if torch.cuda.is_available() else _status("VmHWM")


class PeakMemory:
    """Peak memory above what is in use now: CUDA allocations, or the resident set on Linux."""

    def __init__(self) -> None:
        reset_peak()
        on_gpu = torch.cuda.is_available()
        self.start = torch.cuda.memory_allocated() if on_gpu else _status("VmRSS")

    def rise(self) -> int:
        """Bytes by which the peak since the start exceeds the memory in use then."""
        return peak() - self.start


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(name))


def peak_memory() -> dict[str, int]:
    """Bytes: the largest resident size of this process, and of its CUDA allocations if any."""
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    peak = {"peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit}
    if torch.cuda.is_available():
        peak["peak_cuda_bytes"] = torch.cuda.max_memory_allocated()
    return peak
