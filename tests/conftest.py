"""Fixtures of all tests.

Nothing heavy is imported at the top: pytest-xdist reads this file in a process that runs no test,
before it starts those that do.
"""

import gc
import multiprocessing
import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import hypothesis
import pytest

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
INSTALL = "this test needs a browser: apt-get install chromium, or playwright install chromium"


hypothesis.settings.register_profile("no deadline", deadline=None)  # machines are busy
hypothesis.settings.load_profile("no deadline")


@pytest.hookimpl(wrapper=True)
def pytest_collect_file():
    """Of tests no doctests, which `--doctest-modules` would look for."""
    return [found for found in (yield) if type(found).__name__ != "DoctestModule"]


def pytest_collection_finish():
    """Collecting garbage need not look at all that is imported."""
    import accelerate.utils.memory
    import torch

    # the Trainer collects garbage in every run, which takes longer than a tiny one
    accelerate.utils.memory.gc = SimpleNamespace(collect=lambda: None)
    for device in (torch.cuda, torch.xpu, torch.mtia):  # format the stack at every seed
        device.traceback = SimpleNamespace(format_stack=list)
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000)


@pytest.fixture(autouse=True)
def _one_thread_and_own_caches(monkeypatch, tmp_path_factory):
    import datasets
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    folder = tmp_path_factory.getbasetemp()
    monkeypatch.setenv("SMOOTHTUNE_CACHE", str(folder / "cache"))
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", folder / "datasets")


@pytest.fixture(autouse=True)
def _files_need_not_outlive_the_machine(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda file: None)


@pytest.fixture(autouse=True)
def _tiny_batches_share_masks(monkeypatch):
    """As batches of a usual size do."""
    from smoothtune.core import terms

    monkeypatch.setattr(terms, "MASKS_FROM", 0)


@pytest.fixture(autouse=True)
def _compilation_and_precision_end_with_a_test():
    from smoothtune.nn.hf_versions import settings_of_one_run

    with settings_of_one_run():
        yield


@pytest.fixture
def no_plots(monkeypatch):
    """Plots take more time than all that they show."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)


@pytest.fixture
def forked(monkeypatch):
    """Runs of studies and demos are forks of this process; a server would import everything."""
    from smoothtune.cli import demo
    from smoothtune.study import pool

    fork = multiprocessing.get_context("fork")
    monkeypatch.setattr(multiprocessing, "get_context", lambda method: fork)
    for module in (pool, demo):
        monkeypatch.setattr(module, "start_server", lambda: None)


@pytest.fixture(autouse=True, scope="session")
def _signals_arrive():
    """A suite in the background of a shell ignores SIGINT, and so would all that it starts."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny model and data for it."""
    from helpers.tiny_folder import tiny_bert, tiny_data

    folder = tmp_path_factory.mktemp("inputs")
    tiny_bert(folder / "model")
    tiny_data(folder / "data")
    return folder


@pytest.fixture(scope="module")
def browser() -> Iterator:
    """A headless browser."""
    from playwright.sync_api import Error, sync_playwright

    found = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    with sync_playwright() as playwright:
        try:
            started = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        except Error as error:
            pytest.fail(f"{INSTALL}\n{error}")
        yield started
        started.close()
