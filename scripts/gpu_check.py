"""Compare every method on a GPU with the CPU, where it was developed. Run by `make gpu-check`.

    python scripts/gpu_check.py [--device cuda] [--output-dir gpu-check] [--method NAME ...]
                                [--jobs N]

On tiny random models, so the processor limits it: `--jobs` methods at a time.

* agreement: the gradient of one update in float64, the same draws, on both devices;
* repeatability: four float32 updates with dropout, twice; the weights bit for bit;
* environments: bf16, fp16 with a scaler and activation checkpointing, where the support table has
  them, beside float32 on the same device;
* NCCL: two updates of a process on each card, of unequal batches, beside one process. Where the
  processes fail, that is what is told of them; the rest holds all the same.

Writes gpu-check.json and gpu-check.md with what differs; exits with 1 if anything does. With
`--device cpu` it checks the CPU against itself, which shows that the script works.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from tables import table
from torch import nn

from smoothtune import CWGNC, L2SP, LNSR, METHODS, R3F, Objective
from smoothtune.core.regularizer import Penalty
from smoothtune.core.support import problems
from smoothtune.nn.hf_versions import enable_checkpointing
from smoothtune.testing import all_in_float64, fixed_draws, tiny_batch, tiny_model, with_weight

ARCHITECTURES = ("bert", "llama")
MODES = ("bf16 autocast", "fp16 and scaler", "activation checkpointing")
AGREES, NEAR = 1e-6, 0.05
"""Largest relative difference of gradients: in float64, and of 16-bit passes."""
NCCL_SECONDS = 120
"""After which processes that wait for one another are given up."""


def gradient(
    name: str,
    architecture: str,
    device: torch.device,
    mode: str = "",
    dtype: torch.dtype = torch.float32,
) -> torch.Tensor:
    """The gradient of one update, flat, on the CPU; draws depend on the position alone."""
    model = tiny_model(architecture, dtype=dtype).to(device)
    if mode == "activation checkpointing":
        enable_checkpointing(model)
    half = {"bf16 autocast": torch.bfloat16, "fp16 and scaler": torch.float16}.get(mode)
    around = torch.autocast(device.type, dtype=half) if half else nullcontext()
    scaler = torch.amp.GradScaler(device.type, init_scale=1024.0, enabled=half == torch.float16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    objective = Objective(with_weight(METHODS[name]()))
    batch = {key: value.to(device) for key, value in tiny_batch().items()}
    with fixed_draws(), mock.patch.object(torch.Tensor, "normal_", normal_of_the_cpu):
        objective.bind(model, optimizer, 10)
        with around:
            loss = objective(model, batch)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
    grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]
    objective.detach()
    return torch.cat([grad.flatten() for grad in grads]).double().cpu()


def normal_of_the_cpu(
    weight: torch.Tensor, mean: float = 0.0, std: float = 1.0, generator: None = None
) -> torch.Tensor:
    """In place of `Tensor.normal_`, with which weights start again; devices draw other numbers."""
    draws = np.random.default_rng(weight.numel()).normal(mean, std, tuple(weight.shape))
    return weight.copy_(torch.as_tensor(draws))


def difference(one: torch.Tensor, other: torch.Tensor) -> float:
    """Of two gradients, relative to the first; infinite where one is not finite."""
    gap = ((one - other).norm() / one.norm()).item()
    return gap if gap == gap else float("inf")


def agreement(names: list[str], device: torch.device) -> list[dict[str, Any]]:
    """Each method's float64 gradient on the device beside the CPU's."""
    found = []
    for name in names:
        for architecture in ARCHITECTURES:
            with all_in_float64():
                pair = [
                    gradient(name, architecture, place, dtype=torch.float64)
                    for place in (torch.device("cpu"), device)
                ]
            gap = difference(*pair)
            row = {"check": "agreement", "what": f"{name}, {architecture}", "difference": gap}
            found.append(row | {"ok": gap < AGREES})
    return found


def repeatability(names: list[str], device: torch.device) -> list[dict[str, Any]]:
    """Two trainings from the same seed."""
    found = []
    for name in names:
        one, other = (weights_after(name, device) for _ in range(2))
        gap = (one - other).abs().max().item()
        row = {"check": "repeatability", "what": name, "difference": gap}
        found.append(row | {"ok": torch.equal(one, other)})
    return found


def weights_after(name: str, device: torch.device) -> torch.Tensor:
    """Weights after four updates with dropout and the method's default fields."""
    model = tiny_model("bert", dropout=0.1, dtype=torch.float32).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    objective = Objective(METHODS[name](ramp_start=0) if has_term(name) else METHODS[name]())
    objective.bind(model, optimizer, 4)
    batch = {key: value.to(device) for key, value in tiny_batch().items()}
    torch.manual_seed(5)
    for _ in range(4):
        objective(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()
    objective.detach()
    return torch.cat([p.detach().flatten() for p in model.parameters()]).cpu()


def has_term(name: str) -> bool:
    """Whether the method adds a term to the task loss."""
    return issubclass(METHODS[name], Penalty)


def in_environments(names: list[str], device: torch.device) -> list[dict[str, Any]]:
    """Each method's gradient in 16 bits and with recomputed activations, beside float32's."""
    found = []
    for name in names:
        exact = gradient(name, "bert", device)
        for mode in MODES:
            if problems(name, with_weight(METHODS[name]()), {mode}):
                continue
            gap = difference(exact, gradient(name, "bert", device, mode))
            limit = 1e-4 if mode == "activation checkpointing" else NEAR
            row = {"check": mode, "what": name, "difference": gap}
            found.append(row | {"ok": gap < limit})
    return found


def checks_of(name: str, kind: str) -> list[dict[str, Any]]:
    """What is checked of one method; where it ends in an error, that."""
    torch.set_num_threads(1)
    device, found = torch.device(kind), []
    for check in (agreement, repeatability, in_environments):
        try:
            found += check([name], device)
        except Exception as error:  # the other methods are to be checked all the same
            told = f"{name}, {type(error).__name__}: {' '.join(str(error).split())[:200]}"
            title = check.__name__.replace("_", " ")
            found.append({"check": title, "what": told, "difference": float("inf"), "ok": False})
    return found


def all_checks(names: list[str], kind: str, jobs: int) -> list[dict[str, Any]]:
    """What is checked of each method, by check."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(jobs, len(names)), mp_context=context) as pool:
        found = [row for rows in pool.map(checks_of, names, [kind] * len(names)) for row in rows]
    order = list(dict.fromkeys(row["check"] for row in found))
    return sorted(found, key=lambda row: order.index(row["check"]))


def nccl(device: torch.device) -> list[dict[str, Any]]:
    """A process on each card, or two on the CPU, beside one process with all rows."""
    count = torch.cuda.device_count() if device.type == "cuda" else 2
    found = []
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={count}"]
        command += ["--standalone", __file__, "--worker", folder, "--device", device.type]
        one_thread = os.environ | {"OMP_NUM_THREADS": "1"}
        try:
            subprocess.run(command, check=True, env=one_thread, timeout=NCCL_SECONDS)
        except subprocess.SubprocessError as error:  # NCCL may fail where the methods do not
            row = {"check": f"{count} processes", "what": f"{type(error).__name__}"}
            return [row | {"difference": float("inf"), "ok": False}]
        for name, one in one_process(device).items():
            many = torch.load(Path(folder) / f"{name}.pt", weights_only=True)
            gap = difference(one, many)
            row = {"check": f"{count} processes", "what": name, "difference": gap}
            found.append(row | {"ok": gap < 1e-4})
    return found


DISTRIBUTED = {"lnsr": LNSR, "r3f": R3F, "l2_sp": L2SP, "cwgnc": CWGNC}


def one_process(device: torch.device) -> dict[str, torch.Tensor]:
    """Weights after two updates on all rows, by method."""
    return {name: two_updates(name, device, slice(None)) for name in DISTRIBUTED}


def two_updates(name: str, device: torch.device, rows: slice) -> torch.Tensor:
    """Weights after two updates with SGD; in a process group, of its average gradient."""
    model: nn.Module = tiny_model("bert", dtype=torch.float32).to(device)
    inner = model
    if torch.distributed.is_initialized():
        ids = [device.index] if device.type == "cuda" else None
        model = nn.parallel.DistributedDataParallel(model, device_ids=ids)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    objective = Objective(with_weight(DISTRIBUTED[name]())).bind(model, optimizer, 2)
    batch = {key: value.to(device) for key, value in tiny_batch(rows=rows).items()}
    for _ in range(2):
        with fixed_draws():
            objective(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()
    objective.detach()
    return torch.cat([p.detach().flatten() for p in inner.parameters()]).double().cpu()


def worker(folder: str, kind: str) -> None:
    """What each process of `nccl` does: its share of the four rows."""
    torch.distributed.init_process_group("nccl" if kind == "cuda" else "gloo")
    rank, count = torch.distributed.get_rank(), torch.distributed.get_world_size()
    device = torch.device(kind, rank) if kind == "cuda" else torch.device("cpu")
    if kind == "cuda":
        torch.cuda.set_device(device)
    share = max(1, 4 // count)
    rows = slice(share * (rank % 4), share * (rank % 4 + 1))
    for name in DISTRIBUTED:
        weights = two_updates(name, device, rows)
        if rank == 0:
            torch.save(weights, Path(folder) / f"{name}.pt")
        torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def report(content: dict[str, Any]) -> str:
    """The same as Markdown: what differs first."""
    checks = content["checks"]
    wrong = [row for row in checks if not row["ok"]]
    kinds_of = list(dict.fromkeys(row["check"] for row in checks))
    counts = [
        [
            kind,
            str(sum(row["check"] == kind for row in checks)),
            str(sum(row["check"] == kind and not row["ok"] for row in checks)),
            f"{max(row['difference'] for row in checks if row['check'] == kind):.1e}",
        ]
        for kind in kinds_of
    ]
    differing = [[row["check"], row["what"], f"{row['difference']:.1e}"] for row in wrong]
    return "\n".join(
        [
            "# Methods on this device",
            "",
            f"`python scripts/gpu_check.py --device {content['device']}`: {content['name']}, torch "
            f"{content['torch']}, {content['seconds']:.0f} s.",
            "",
            f"{len(wrong)} of {len(checks)} checks differ." if wrong else "Nothing differs.",
            "",
            table(["check", "made", "differ", "largest difference"], counts),
            *([table(["check", "what", "difference"], differing)] if wrong else []),
        ]
    )


def main() -> None:
    """Make all checks, and write them."""
    parser = argparse.ArgumentParser(description="Compare methods on a GPU with the CPU.")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--output-dir", type=Path, default=Path("gpu-check"))
    parser.add_argument("--method", action="append", choices=list(METHODS))
    jobs = min(8, max(1, (os.cpu_count() or 1) // 2))
    parser.add_argument("--jobs", type=int, default=jobs, help="methods checked at once")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        worker(arguments.worker, arguments.device)
        return
    if arguments.device == "cuda" and not torch.cuda.is_available():
        sys.exit("torch sees no GPU here; --device cpu checks the script itself")
    started = time.monotonic()
    device = torch.device(arguments.device)
    names = arguments.method or list(METHODS)
    checks = [*all_checks(names, device.type, arguments.jobs), *nccl(device)]
    gpu = device.type == "cuda"
    content = {
        "device": device.type,
        "name": torch.cuda.get_device_name() if gpu else platform.processor() or "CPU",
        "torch": torch.__version__,
        "checks": checks,
        "seconds": time.monotonic() - started,
    }
    arguments.output_dir.mkdir(parents=True, exist_ok=True)
    (arguments.output_dir / "gpu-check.json").write_text(json.dumps(content, indent=1) + "\n")
    text = report(content)
    (arguments.output_dir / "gpu-check.md").write_text(text)
    print(text)
    sys.exit(any(not row["ok"] for row in checks))


if __name__ == "__main__":
    main()
