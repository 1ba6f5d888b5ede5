from dataclasses import replace
from typing import Any

import pytest

from smoothtune.tasks.presets import TASKS, describe_task

GLUE = {name: task for name, task in TASKS.items() if task.hub_id == "nyu-mll/glue"}


def test_presets_are_the_nine_tasks_of_glue_squad_and_adversarial_sets() -> None:
    names = {"cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte", "wnli"}
    assert set(GLUE) == names
    assert all(task.name == task.hub_config == name for name, task in GLUE.items())
    others = {name: task.hub_id for name, task in TASKS.items() if name not in GLUE}
    adversarial = {name for name in others if name.startswith(("adv_", "anli_"))}
    assert {name: others[name] for name in set(others) - adversarial} == {
        "squad": "rajpurkar/squad",
        "squad_v2": "rajpurkar/squad_v2",
    }
    assert {others[name] for name in adversarial} == {"AI-Secure/adv_glue", "facebook/anli"}
    assert {name.removeprefix("adv_") for name in adversarial if name[:3] == "adv"} <= {
        *names,
        "mnli_mismatched",
    }
    assert all(task.name == name for name, task in TASKS.items())


def test_kind_and_size_of_the_output() -> None:
    scores = [name for name, task in TASKS.items() if task.head.problem_type == "regression"]
    assert scores == ["stsb"]
    assert {name: task.num_labels for name, task in GLUE.items() if task.num_labels != 2} == {
        "stsb": 1,
        "mnli": 3,
    }


def test_described_classes() -> None:
    task = describe_task(
        text_columns=["a", "b"], label_column="c", label_names=["no", "yes", "maybe"]
    )
    assert (task.num_labels, task.metrics[0]) == (3, "accuracy")
    assert task.head.problem_type == "single_label_classification"
    assert task.text_columns == ("a", "b")


def test_described_regression() -> None:
    task = describe_task(text_columns="a", label_names=())
    assert (task.num_labels, task.metrics[0]) == (1, "pearson")
    assert task.head.problem_type == "regression"


def test_unknown_kind_says_what_to_do() -> None:
    with pytest.raises(ValueError, match="with_labels"):
        _ = describe_task(text_columns="a").num_labels


@pytest.mark.parametrize(
    ("columns", "label", "names", "message"),
    [
        ([], "label", None, "one text column or two"),
        (["a", "b", "c"], "label", None, "one text column or two"),
        (["a", "a"], "label", None, "different columns"),
        ("label", "label", None, "different columns"),
        ("a", "label", ["only"], "at least two"),
    ],
)
def test_impossible_tasks(
    columns: list[str], label: str, names: list[str] | None, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        describe_task(text_columns=columns, label_column=label, label_names=names)


@pytest.mark.parametrize(
    ("task_type", "said", "message"),
    [
        ("question-answering", {"label_column": "gold"}, "rename yours"),
        ("token-classification", {"text_columns": ["a", "b"]}, "one column of words"),
        ("multiple-choice", {"text_columns": "a"}, "and the choice columns"),
    ],
)
def test_impossible_tasks_of_other_types(task_type: str, said: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        describe_task("mine", task_type, **said)


def test_a_name_with_other_columns_or_type_is_no_preset() -> None:
    assert describe_task("rte") is TASKS["rte"]
    assert describe_task("rte", text_columns="a").text_columns == ("a",)
    assert describe_task("squad_v2", doc_stride=9) == replace(TASKS["squad_v2"], doc_stride=9)
    assert describe_task("rte", "token-classification").rows.columns == ("tokens", "tags")
