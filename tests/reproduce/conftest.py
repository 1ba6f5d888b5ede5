"""A study with made records."""

import os
from pathlib import Path

import pytest
from rich.console import Console

from helpers.made_records import made_cells, write_record
from helpers.study_files import write  # noqa: F401
from smoothtune.study.config import Study
from smoothtune.study.plan import Plan
from smoothtune.study.records import STUDY


@pytest.fixture
def reproduced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Writes made records of a study and the pages of its reproduction."""

    def write_pages(study: Study, skip=lambda cell: False, **metrics):
        from smoothtune.reproduce.page import write_reproduction

        cells = made_cells(study)
        monkeypatch.setattr(Plan, "choices", lambda self, records: {})
        monkeypatch.setattr(Plan, "final", lambda self, choices: cells)
        (tmp_path / STUDY).write_text("{}")
        for cell in cells:
            if not skip(cell):
                write_record(tmp_path, study, cell, **metrics)
        with open(os.devnull, "w") as nothing:
            return write_reproduction(study, tmp_path, Console(file=nothing))

    return write_pages
