"""Studies and searches on three Ray nodes of this machine, one of which is lost."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from rich.console import Console

from smoothtune.config.tuning import load_tune
from smoothtune.errors import ConfigError
from smoothtune.study.config import load_study
from smoothtune.study.pool import Where
from smoothtune.study.ray_pool import RayPool
from smoothtune.study.records import Records
from smoothtune.study.run import run_study
from smoothtune.tune.run import run_tune

ray_ignored = pytest.mark.filterwarnings("ignore")  # Ray's own


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


@pytest.fixture
def cpus_of_head() -> int:
    """CPUs for cells on the head of the cluster."""
    return 1


@pytest.fixture
def three_nodes(monkeypatch, cpus_of_head: int) -> Iterator[Any]:
    """A cluster of a head and two nodes with a CPU each."""
    pytest.importorskip("ray")
    import ray
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.setenv("RAY_worker_niceness", "0")  # else other work on the machine starves them
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": cpus_of_head})
    for _ in range(2):
        cluster.add_node(num_cpus=1)
    yield cluster
    ray.shutdown()
    cluster.shutdown()


@contextmanager
def losing_a_node(cluster, when: Callable[[], bool]) -> Iterator[list[Any]]:
    """Kill a node that is in a cell, once there is a reason; the list holds it."""
    over, lost = threading.Event(), []

    def lose_a_node() -> None:
        while not over.wait(0.02):
            others = cluster.worker_nodes
            if when() and (busy := [node for node in others if runs_a_cell(node)]):
                cluster.remove_node(busy[0], allow_graceful=False)
                lost.append(busy[0])
                return

    thread = threading.Thread(target=lose_a_node)
    thread.start()
    try:
        yield lost
    finally:
        over.set()
        thread.join()


def killed_and_done(folder: Path) -> tuple[int, list[str]]:
    log = Records(folder).log()
    finished = [line["cell"] for line in log if line["event"] == "done"]
    return Counter(line["event"] for line in log)["killed"], finished


@pytest.mark.slow
@ray_ignored
def test_a_node_that_is_lost_while_it_runs_a_cell_costs_no_cell(
    write, tmp_path: Path, three_nodes
) -> None:
    study = load_study(write("methods: [lnsr]\nmore_epochs: null\nseeds: [0, 1, 2]\n"))
    folder, console = tmp_path / "ray", Console(quiet=True)
    with losing_a_node(three_nodes, lambda: True) as lost:
        content = run_study(study, folder, ray=three_nodes.address, console=console)
    local = run_study(study, tmp_path / "local", jobs=1, console=console)
    killed, finished = killed_and_done(folder)
    assert (len(lost), killed >= 1) == (1, True)
    assert {row["status"] for row in content["rows"]} == {"done"}
    assert scores(content) == scores(local)
    assert len(finished) == len(set(finished)) == 6


@pytest.mark.slow
@ray_ignored
@pytest.mark.parametrize("cpus_of_head", [0])
def test_a_cell_goes_on_at_another_node_from_its_checkpoint(
    write, tmp_path: Path, three_nodes
) -> None:
    file = write(
        "methods: [plain]\nmore_epochs: null\nseeds: [0]\nsave_strategy: steps\nsave_steps: 100\n"
    )
    file.write_text(file.read_text().replace("max_steps: 3", "max_steps: 1000"))
    folder, console, kept = tmp_path / "ray", Console(quiet=True), tmp_path / "shared"
    study = load_study(file)

    def has_one() -> bool:
        return any(kept.glob("*/checkpoints/*/manifest.json"))

    with losing_a_node(three_nodes, has_one) as lost:
        content = run_study(
            study, folder, ray=three_nodes.address, checkpoint_dir=kept, console=console
        )
    assert len(lost) == 1
    (row,) = content["rows"]
    record = Records(folder).read(row["cell"])
    assert 100 <= record.result.cost.resumed_from_step < 1000
    assert not kept.exists()
    local = run_study(study, tmp_path / "local", jobs=1, console=console)
    assert scores(content) == scores(local)


@pytest.mark.slow
@ray_ignored
def test_two_cells_share_a_gpu(monkeypatch, tmp_path: Path) -> None:
    """Ray gives out as many GPUs as it is told that there are."""
    ray = pytest.importorskip("ray")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    ray.init(num_cpus=4, num_gpus=1, include_dashboard=False)
    try:
        pool = RayPool(tmp_path, Where(ray="auto", gpus_per_run=0.5), keep_models=False)
        assert pool.size == 2
        assert pool.task._default_options["num_gpus"] == 0.5
    finally:
        ray.shutdown()


@pytest.mark.slow
@ray_ignored
def test_a_search_on_a_cluster_finds_what_one_machine_finds(
    inputs: Path, tmp_path: Path, three_nodes
) -> None:
    def search(name: str) -> Any:
        options = {
            "task": "quality",
            "text_columns": ["text"],
            "data": str(inputs / "data"),
            "model": str(inputs / "model"),
            "per_device_train_batch_size": 8,
            "epochs": (1.0,),
            "learning_rates": (1e-3, 3e-2),
            "budget": 4,
            "folds": 2,
            "confirm_runs": 3,
            "seed": 3,
            "output_dir": str(tmp_path / name),
        }
        return load_tune(None, [], options, ["r3f"])

    console = Console(quiet=True)
    with losing_a_node(three_nodes, lambda: True) as lost:
        content = run_tune(search("ray"), ray=three_nodes.address, console=console)
    local = run_tune(search("local"), jobs=1, console=console)
    killed, finished = killed_and_done(tmp_path / "ray")
    assert (len(lost), killed >= 1) == (1, True)
    assert len(finished) == len(set(finished))
    assert content["trials"] == local["trials"]
    assert (tmp_path / "ray" / "best.yaml").is_file()


def test_models_cannot_be_kept_on_a_cluster(write, tmp_path: Path) -> None:
    study = load_study(write("methods: [plain]\nkeep_models: true\nseeds: [0]\n"))
    with pytest.raises(ConfigError, match="does not work with --ray"):
        run_study(study, tmp_path / "out", ray="auto", console=Console(quiet=True))
