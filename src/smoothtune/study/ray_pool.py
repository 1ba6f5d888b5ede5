"""Cells on a Ray cluster: the nodes train, this process keeps the records.

Every cell is a task in a worker process of its own, which ends with it. A worker that is killed, or
a node that is lost, costs the cells that ran there, and the study tries these once more, on any
node, from their newest checkpoint if they keep some. Nodes need smoothtune, and data and models
under the same paths; they write nothing into the study's folder.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from smoothtune.errors import ConfigError, Problem
from smoothtune.results import CellContent
from smoothtune.study.pool import ONE_THREAD, SAFE_PATH, Ended, Where
from smoothtune.study.records import Cell, Records, Status, forget


def compute_on_node(
    cell: Cell, checkpoints: Path | None, gpus: float | None
) -> tuple[Status, CellContent | str]:
    """Run a cell on a node, with its share of a GPU's memory where it shares one.

    Returns:
        How it ended, with the record's content, or with the message of an error.
    """
    import torch

    from smoothtune.study.worker import attempt

    if gpus and gpus < 1 and torch.cuda.is_available():
        torch.cuda.set_per_process_memory_fraction(gpus)
    with tempfile.TemporaryDirectory(prefix="smoothtune-cell-") as work:
        return attempt(cell, Path(work), checkpoints)


def cells_at_once(resources: Mapping[str, float], gpus: float | None) -> int:
    """How many cells a cluster runs at once, with a CPU each.

    Args:
        resources: of the cluster, by Ray's names.
        gpus: for each cell; less than one is a part of one GPU. None or 0: it has none.

    Raises:
        ConfigError: no cell has room on the GPUs.
    """
    cpus, there = int(resources.get("CPU", 1)), int(resources.get("GPU", 0))
    if not gpus:
        return max(1, cpus)
    room = there * int(1 / gpus + 1e-9) if gpus < 1 else int(there / gpus)
    if not room:
        message = f"the cluster has {there} GPUs, no room for a run with {gpus:g}"
        raise ConfigError([Problem("--gpus-per-run", "", message)])
    return max(1, min(cpus, room))


class RayPool:
    """A `Pool` on a Ray cluster.

    Args:
        folder: the study's, on this machine.
        where: the cluster, and what its cells may use.
        keep_models: not possible here.

    Raises:
        ConfigError: Ray is not installed or cannot be reached, it has too few GPUs, or models are
            to be kept.
    """

    def __init__(self, folder: Path, where: Where, keep_models: bool) -> None:
        if keep_models:
            message = "does not work with --ray: leave it out, or run with --jobs"
            raise ConfigError([Problem("", "keep_models", message)])
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        try:
            import ray
        except ImportError as error:
            message = 'needs Ray: pip install "smoothtune[ray]"'
            raise ConfigError([Problem("--ray", "", message)]) from error
        self.ray, self.records = ray, Records(folder)
        if not ray.is_initialized():
            try:
                ray.init(address=where.ray, log_to_driver=False)
            except (ConnectionError, RuntimeError, ValueError) as error:
                message = f"no Ray cluster at {where.ray}: {error}"
                raise ConfigError([Problem("--ray", "", message)]) from error
        self.gpus, self.checkpoints = where.gpus_per_run, where.checkpoint_dir
        fresh = ray.remote(
            num_cpus=1,
            num_gpus=self.gpus or 0,
            max_retries=0,
            max_calls=1,
            runtime_env={"env_vars": ONE_THREAD | SAFE_PATH},
        )
        self.task = fresh(compute_on_node)
        self.size = where.jobs or cells_at_once(ray.cluster_resources(), self.gpus)
        self.running: dict[Any, Cell] = {}

    def start(self, cell: Cell) -> None:
        """Start a cell.

        Raises:
            ConfigError: it is to keep checkpoints, and there is no folder for them.
        """
        if cell.config.save_strategy != "no" and self.checkpoints is None:
            message = (
                "on a cluster, checkpoints go into a folder that all nodes see: name it with "
                "--checkpoint-dir, or leave save_strategy out"
            )
            raise ConfigError([Problem("", "save_strategy", message)])
        self.records.note("start", cell.id)
        self.running[self.task.remote(cell, self.checkpoints, self.gpus)] = cell

    def ended(self, seconds: float, stopped: Callable[[], bool]) -> list[Ended]:
        """As `Pool.ended`."""
        references, _ = self.ray.wait(list(self.running), num_returns=1, timeout=seconds)
        if stopped():
            return []
        return [self._judge(reference, self.running.pop(reference)) for reference in references]

    def _judge(self, reference: Any, cell: Cell) -> Ended:
        status: Status
        try:
            status, found = self.ray.get(reference)
        except self.ray.exceptions.OutOfMemoryError as error:
            status, found = "out of memory", str(error)
        except self.ray.exceptions.RayError as error:
            status, found = "killed", f"{type(error).__name__}: the worker or its node was lost"
        self.records.end(cell, status, found)
        if self.checkpoints is not None:
            forget(cell, status, self.checkpoints)
        return Ended(cell, status, found if isinstance(found, str) else "")

    def stop(self) -> None:
        """End all cells."""
        for reference in self.running:
            self.ray.cancel(reference, force=True)
        self.running.clear()
