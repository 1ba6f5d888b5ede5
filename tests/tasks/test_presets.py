import pytest

from smoothtune.tasks.presets import TASKS
from smoothtune.tasks.text_classification import custom_task

GLUE = {name: task for name, task in TASKS.items() if task.hub_id == "nyu-mll/glue"}


def test_presets_are_the_nine_tasks_of_glue_and_squad() -> None:
    names = {"cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte", "wnli"}
    assert set(GLUE) == names
    assert all(task.name == task.hub_config == name for name, task in GLUE.items())
    assert {name: task.hub_id for name, task in TASKS.items() if name not in GLUE} == {
        "squad": "rajpurkar/squad",
        "squad_v2": "rajpurkar/squad_v2",
    }
    assert all(task.name == name for name, task in TASKS.items())


def test_kind_and_size_of_the_output() -> None:
    assert [name for name, task in TASKS.items() if task.regression] == ["stsb"]
    assert {name: task.num_labels for name, task in GLUE.items() if task.num_labels != 2} == {
        "stsb": 1,
        "mnli": 3,
    }


def test_custom_task_with_label_names() -> None:
    task = custom_task(["a", "b"], "c", label_names=["no", "yes", "maybe"])
    assert (task.num_labels, task.regression, task.metrics[0]) == (3, False, "accuracy")
    assert task.text_columns == ("a", "b")


def test_custom_regression() -> None:
    task = custom_task("a", label_names=())
    assert (task.num_labels, task.regression, task.metrics[0]) == (1, True, "pearson")


def test_unknown_kind_says_what_to_do() -> None:
    with pytest.raises(ValueError, match="infer_labels"):
        _ = custom_task("a").num_labels


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
        custom_task(columns, label, label_names=names)
