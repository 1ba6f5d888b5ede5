from pathlib import Path

import datasets
import pytest


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    cache: Path = tmp_path_factory.getbasetemp() / "datasets"
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", cache)
