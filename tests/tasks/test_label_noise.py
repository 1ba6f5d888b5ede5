"""Wrong labels in training rows."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

from helpers.hub_server import make_tokenizer
from smoothtune.config.run import RunConfig
from smoothtune.errors import DataError
from smoothtune.run.inputs import read_inputs
from smoothtune.tasks.label_noise import with_label_noise
from smoothtune.tasks.prepare import Prepared, prepare
from smoothtune.tasks.presets import describe_task

NAMES = ("no", "yes", "perhaps")


def prepared(folder: Path, names: tuple[str, ...] = NAMES) -> Prepared:
    for split, rows in (("train", 60), ("validation", 6)):
        labels = np.arange(rows) % 3
        frame = pd.DataFrame({"text": [f"the cat {row}" for row in range(rows)], "label": labels})
        frame.to_parquet(folder / f"{split}.parquet")
    task = describe_task(text_columns="text", label_names=names)
    return prepare(folder, task, make_tokenizer())


def test_a_share_of_the_rows_has_another_class(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    clean = prepared(tmp_path)
    before = np.array(clean.train["labels"][:])
    capsys.readouterr()
    some, more = (with_label_noise(clean, share, seed=3) for share in (0.1, 0.3))
    wrong = [np.flatnonzero(before != np.array(each.train["labels"][:])) for each in (some, more)]
    assert [len(rows) for rows in wrong] == [6, 18]
    assert set(wrong[0]) < set(wrong[1])
    steps = (np.array(more.train["labels"][:]) - before)[wrong[1]] % 3
    assert set(steps) == {1, 2}  # both of the other classes
    assert some.train.column_names == clean.train.column_names
    assert some.train.features == clean.train.features
    assert capsys.readouterr().err == ""  # no bar of a cast
    assert some.train["input_ids"][:] == clean.train["input_ids"][:]
    assert some.validation["labels"][:] == clean.validation["labels"][:]
    counts = np.bincount(more.train["labels"][:], minlength=3)
    assert list(more.report.splits["train"].labels.values()) == counts.tolist()
    assert "30% of the labels replaced" in str(more.report)
    prints = {each.fingerprint for each in (clean, some, more, with_label_noise(clean, 0.1, 4))}
    assert len(prints) == 4


def test_scores_have_no_other_class(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="label_noise needs one class for each row"):
        with_label_noise(prepared(tmp_path, names=()), 0.1, seed=0)


def test_a_run_reads_it(inputs: Path) -> None:
    fields = {"text_columns": ["text"], "model": str(inputs / "model"), "output_dir": "unset"}
    fields |= {"task": "own", "data": str(inputs / "data")}
    console = Console(quiet=True)
    noisy = read_inputs(RunConfig(**fields, label_noise=0.5), console).prepared.train
    clean = read_inputs(RunConfig(**fields), console).prepared.train
    differ = np.array(noisy["labels"][:]) != np.array(clean["labels"][:])
    assert differ.sum() == round(0.5 * len(clean))
