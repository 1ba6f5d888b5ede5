import gc
import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

from pathlib import Path

import datasets
import pytest
import torch

from helpers.tiny_folder import tiny_bert, tiny_data


def pytest_collection_finish():
    """The trainer collects garbage in every run, which need not look at all that is imported."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _one_thread_and_own_caches(monkeypatch, tmp_path_factory):
    torch.set_num_threads(1)
    torch.manual_seed(0)
    folder = tmp_path_factory.getbasetemp()
    monkeypatch.setenv("SMOOTHTUNE_CACHE", str(folder / "cache"))
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", folder / "datasets")


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny model and data for it."""
    folder = tmp_path_factory.mktemp("inputs")
    tiny_bert(folder / "model")
    tiny_data(folder / "data")
    return folder
