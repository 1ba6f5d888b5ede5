"""Cells on a Ray cluster: the nodes train, this process keeps the records.

Every cell is a task in a worker process of its own, which ends with it. A worker that is killed, or
a node that is lost, costs the cells that ran there, and the study tries these once more. Nodes need
smoothtune, and data and models under the same paths; they write nothing into the study's folder.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from smoothtune.errors import ConfigError, Problem
from smoothtune.study.pool import ONE_THREAD, SAFE_PATH, Ended
from smoothtune.study.records import Cell, Records, Status


def compute_on_node(cell: Cell) -> tuple[Status, Any]:
    """Run a cell on a node.

    Returns:
        How it ended, with the record's content, or with the message of an error.
    """
    from smoothtune.study.worker import attempt

    with tempfile.TemporaryDirectory(prefix="smoothtune-cell-") as work:
        return attempt(cell, Path(work))


class RayPool:
    """A `Pool` on a Ray cluster.

    Args:
        folder: the study's, on this machine.
        address: of the cluster, "auto" for the one of this machine.
        jobs: cells that run at once; None: one for every CPU of the cluster.
        keep_models: not possible here.

    Raises:
        ConfigError: Ray is not installed or cannot be reached, or models are to be kept.
    """

    def __init__(self, folder: Path, address: str, jobs: int | None, keep_models: bool) -> None:
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
                ray.init(address=address, log_to_driver=False)
            except (ConnectionError, RuntimeError, ValueError) as error:
                message = f"no Ray cluster at {address}: {error}"
                raise ConfigError([Problem("--ray", "", message)]) from error
        fresh = ray.remote(
            num_cpus=1, max_retries=0, max_calls=1, runtime_env={"env_vars": ONE_THREAD | SAFE_PATH}
        )
        self.task = fresh(compute_on_node)
        self.size = jobs or max(1, int(ray.cluster_resources().get("CPU", 1)))
        self.running: dict[Any, Cell] = {}

    def start(self, cell: Cell) -> None:
        """Start a cell."""
        self.records.note("start", cell.id)
        self.running[self.task.remote(cell)] = cell

    def ended(self, seconds: float) -> list[Ended]:
        """Cells that have ended, after waiting for one at most this long."""
        references, _ = self.ray.wait(list(self.running), num_returns=1, timeout=seconds)
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
        return Ended(cell, status, "" if status == "done" else found)

    def stop(self) -> None:
        """End all cells."""
        for reference in self.running:
            self.ray.cancel(reference, force=True)
        self.running.clear()
