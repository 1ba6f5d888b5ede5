"""A study on three Ray nodes of this machine, one of which is lost."""

import os
import threading
from collections import Counter
from pathlib import Path

import psutil
import pytest
from rich.console import Console

from smoothtune.errors import ConfigError
from smoothtune.study.config import load_study
from smoothtune.study.records import Records
from smoothtune.study.run import run_study


def scores(content: dict) -> dict:
    return {(row["method"], row["seed"]): row["score"] for row in content["rows"]}


def runs_a_cell(node) -> bool:
    """Whether a worker of a Ray node is in the task of a cell."""
    raylet = psutil.Process(node.all_processes["raylet"][0].process.pid)
    try:
        lines = [" ".join(worker.cmdline()) for worker in raylet.children(recursive=True)]
    except psutil.NoSuchProcess:
        return False
    return any("compute_on_node" in line for line in lines)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # Ray's own
def test_a_node_that_is_lost_while_it_runs_a_cell_costs_no_cell(
    write, tmp_path: Path, monkeypatch
) -> None:
    pytest.importorskip("ray")
    import ray
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    study = load_study(write("methods: [lnsr]\nmore_epochs: null\nseeds: [0, 1, 2]\n"))
    folder = tmp_path / "ray"
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    nodes = [cluster.add_node(num_cpus=1) for _ in range(2)]
    over, lost = threading.Event(), []

    def lose_a_node() -> None:
        while not over.wait(0.05):
            if busy := [node for node in nodes if runs_a_cell(node)]:
                cluster.remove_node(busy[0], allow_graceful=False)
                lost.append(busy[0])
                return

    thread = threading.Thread(target=lose_a_node)
    thread.start()
    try:
        with open(os.devnull, "w") as nothing:
            console = Console(file=nothing)
            content = run_study(study, folder, ray=cluster.address, console=console)
            local = run_study(study, tmp_path / "local", jobs=1, console=console)
    finally:
        over.set()
        thread.join()
        ray.shutdown()
        cluster.shutdown()
    assert len(lost) == 1
    events = Counter(line["event"] for line in Records(folder).log())
    assert events["killed"] >= 1
    assert {row["status"] for row in content["rows"]} == {"done"}
    assert scores(content) == scores(local)
    finished = [line["cell"] for line in Records(folder).log() if line["event"] == "done"]
    assert len(finished) == len(set(finished)) == 6


def test_models_cannot_be_kept_on_a_cluster(write, tmp_path: Path) -> None:
    study = load_study(write("methods: [plain]\nkeep_models: true\nseeds: [0]\n"))
    with pytest.raises(ConfigError, match="does not work with --ray"):
        run_study(study, tmp_path / "out", ray="auto", console=Console(quiet=True))
