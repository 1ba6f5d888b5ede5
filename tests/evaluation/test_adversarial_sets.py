"""AdvGLUE and ANLI: presets by hub id, and folders of the same columns."""

import dataclasses

import pytest

from helpers.tiny_sets import tiny_sets
from smoothtune.config.evaluation import OtherData
from smoothtune.errors import DataError
from smoothtune.evaluation.transfer import as_task, source_of
from smoothtune.tasks import TASKS

HUB = {
    "adv_sst2": ("AI-Secure/adv_glue", "adv_sst2", ("sentence",), "sst2"),
    "adv_qqp": ("AI-Secure/adv_glue", "adv_qqp", ("question1", "question2"), "qqp"),
    "adv_mnli": ("AI-Secure/adv_glue", "adv_mnli", ("premise", "hypothesis"), "mnli"),
    "adv_qnli": ("AI-Secure/adv_glue", "adv_qnli", ("question", "sentence"), "qnli"),
    "adv_rte": ("AI-Secure/adv_glue", "adv_rte", ("sentence1", "sentence2"), "rte"),
    "anli_r2": ("facebook/anli", None, ("premise", "hypothesis"), "mnli"),
}


@pytest.mark.parametrize("name", HUB)
def test_presets(name: str) -> None:
    hub, config, columns, like = HUB[name]
    task = TASKS[name]
    assert (task.hub_id, task.hub_config, task.text_columns) == (hub, config, columns)
    assert task.label_names == TASKS[like].label_names
    assert source_of(OtherData(name)) == hub
    read = as_task(OtherData(name), TASKS[like])
    assert (read.hub_id, read.hub_config) == (hub, config)


def test_folders_of_the_same_columns(tmp_path) -> None:
    """The split of each is found, under the name that it has on the hub."""
    sets = tiny_sets(tmp_path / "sets")
    for name, split in (("adv_sst2", "validation"), ("anli_r3", "validation_r3")):
        other = OtherData(str(sets / name), preset=name)
        task = as_task(other, TASKS["sst2" if name == "adv_sst2" else "mnli"])
        splits = task.load_splits(source_of(other), need_train=False)
        assert task.validation_split == split
        assert list(splits) == [split]
        assert set(task.rows.columns) <= set(splits[split].column_names)


def test_a_set_for_another_kind_of_question() -> None:
    with pytest.raises(DataError, match="which does not fit task sst2"):
        as_task(OtherData("adv_mnli"), TASKS["sst2"])
    with pytest.raises(DataError, match="unknown preset 'adv_sst'; did you mean 'adv_sst2'"):
        as_task(dataclasses.replace(OtherData("x"), preset="adv_sst"), TASKS["sst2"])
