"""A study on two Ray nodes of this machine, one of which is lost."""

import os
import threading
from pathlib import Path

import pytest
from rich.console import Console

from smoothtune.errors import ConfigError
from smoothtune.study.config import load_study
from smoothtune.study.records import Records
from smoothtune.study.run import run_study


def done(folder: Path) -> int:
    return sum(line["event"] == "done" for line in Records(folder).log())


def scores(content: dict) -> dict:
    return {(row["method"], row["seed"]): row["score"] for row in content["rows"]}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # Ray's own
def test_a_lost_node_costs_its_cells_only(write, tmp_path: Path, monkeypatch) -> None:
    pytest.importorskip("ray")
    import ray
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    study = load_study(write("methods: [lnsr]\nmore_epochs: null\nseeds: [0, 1]\n"))
    folder = tmp_path / "ray"
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    second = cluster.add_node(num_cpus=1)

    over = threading.Event()

    def lose_a_node() -> None:
        while not done(folder) and not over.wait(0.1):
            pass
        cluster.remove_node(second, allow_graceful=False)

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
    assert {row["status"] for row in content["rows"]} == {"done"}
    assert scores(content) == scores(local)
    finished = [line["cell"] for line in Records(folder).log() if line["event"] == "done"]
    assert len(finished) == len(set(finished)) == 4


def test_models_cannot_be_kept_on_a_cluster(write, tmp_path: Path) -> None:
    study = load_study(write("methods: [plain]\nkeep_models: true\nseeds: [0]\n"))
    with pytest.raises(ConfigError, match="does not work with --ray"):
        run_study(study, tmp_path / "out", ray="auto", console=Console(quiet=True))
