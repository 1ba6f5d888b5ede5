"""`smoothtune train` in several gloo processes that shard the model with FSDP2."""

import shutil

import pytest

from helpers.launched import (
    SHARDED_RESUMED,
    SHARDED_RUNS,
    assert_same,
    config_of,
    make_inputs,
    result_of,
    train_fixed,
)
from helpers.processes import on_processes
from smoothtune.errors import CheckpointError

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    make_inputs(folder)
    return folder


@pytest.fixture(scope="module")
def one(tiny, tmp_path_factory):
    """Folder of the runs of one process."""
    folder = tmp_path_factory.mktemp("one")
    for name in SHARDED_RUNS:
        train_fixed(config_of(name, tiny, folder / name, processes=1))
    return folder


@pytest.fixture(scope="module")
def two(tiny, tmp_path_factory):
    """Folder of the runs of two processes, two batches an update."""
    folder = tmp_path_factory.mktemp("two")
    on_processes(2, "fsdp_train_worker.py", tiny, folder, "2")
    return folder


@pytest.fixture(scope="module")
def four(tiny, two, tmp_path_factory):
    """Folder of the runs of four processes, which go on with those of two."""
    folder = tmp_path_factory.mktemp("four")
    shutil.copytree(two / "stopped", folder / "begun")
    on_processes(4, "fsdp_train_worker.py", tiny, folder, "1")
    return folder


@pytest.mark.parametrize("name", SHARDED_RUNS)
@pytest.mark.parametrize("processes", ["two", "four"])
def test_several_processes_equal_one(processes, name, one, request):
    folder = request.getfixturevalue(processes)
    assert_same(one / name, folder / name)
    assert result_of(folder / name)["world_size"] == {"two": 2, "four": 4}[processes]
    assert {p.name for p in (one / name).iterdir()} == {p.name for p in (folder / name).iterdir()}


@pytest.mark.parametrize("name", SHARDED_RESUMED)
def test_a_run_of_two_processes_goes_on_in_four(name, one, four):
    assert_same(one / name, four / "begun" / name)


def test_shards_do_not_go_on_as_whole_weights(two, tiny, tmp_path):
    stopped = shutil.copytree(two / "stopped" / "lnsr", tmp_path / "out")
    with pytest.raises(CheckpointError, match="weights in parts 'FSDP2', here None"):
        train_fixed(config_of("lnsr", tiny, stopped, processes=1), resume=True)
