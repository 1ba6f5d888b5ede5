"""Tables for papers: methods x tasks by hand, and LaTeX that a reader takes apart again."""

import re

import pytest

from smoothtune.report.page import Section, Table, page_text
from smoothtune.report.tables import (
    Summary,
    averages_and_ranks,
    latex_table,
    latex_text,
    score_grid,
)


def mean(value: float, sd: float | None = 0.01) -> Summary:
    return Summary(5, value, sd, value, value)


SCORES = {
    "plain": {"a": mean(0.80), "b": mean(0.60)},
    "good": {"a": mean(0.85), "b": mean(0.60)},
    "half": {"a": mean(0.90, None)},
}


AB = {"a": "Task A", "b": "Task B"}


def test_grid_has_means_average_and_rank() -> None:
    found = score_grid(SCORES, AB)
    assert found.head == ["method", "Task A", "Task B", "average", "mean rank"]
    # ranks of plain and good: 2 and 1 on a, both 1.5 on b; half lacks a task
    assert found.rows == [
        ["plain", "80.0 ± 1.0", "60.0 ± 1.0", "70.0", "1.8"],
        ["good", "85.0 ± 1.0", "60.0 ± 1.0", "72.5", "1.2"],
        ["half", "90.0", "–", "–", "–"],
    ]
    assert found.bold == {(2, 1), (0, 2), (1, 2), (1, 3), (1, 4)}


def test_the_same_scores_in_another_order_are_as_good() -> None:
    scores = [0.1, 0.2, 0.3], [0.3, 0.2, 0.1]
    one, other = map(Summary.of, scores)
    assert one.mean != other.mean  # but for rounding
    found = score_grid({"one": {"a": one, "b": one}, "other": {"a": other, "b": other}}, AB)
    assert found.rows[0][1:] == found.rows[1][1:]
    assert found.bold == {(row, column) for row in (0, 1) for column in (1, 2, 3, 4)}


def test_one_task_has_no_average() -> None:
    found = score_grid(SCORES, {"a": "Task A"})
    assert (found.head, found.bold) == (["method", "Task A"], {(2, 1)})


def test_no_method_with_all_tasks() -> None:
    assert averages_and_ranks({"a": {"x": 0.1}, "b": {"y": 0.2}}) == ({}, {})


HOSTILE = r"\input{x} & 5 % $y$ #1 a_b {c} ~d ^e <f> |g|"


def test_latex_has_the_cells_and_no_command_of_a_name() -> None:
    text = latex_table(Table(["method", "x, %"], [[HOSTILE, "-0.5 ± 0.1"]], frozenset({(0, 1)})))
    lines = text.splitlines()
    assert lines[1:4] == [r"\begin{tabular}{lr}", r"\toprule", r"method & x, \% \\"]
    assert lines[4] == r"\midrule"
    first, last = re.split(r"(?<!\\)&", lines[5])
    assert last == r" \textbf{$-$0.5 $\pm$ 0.1} \\"
    # only known commands, and no character that still means something
    assert set(re.findall(r"\\[a-z]+", first)) <= {
        *(r"\textbackslash", r"\textasciitilde", r"\textasciicircum"),
        *(r"\textless", r"\textgreater", r"\textbar"),
    }
    assert not re.search(r"(?<!\\)[%$#_~^&]", re.sub(r"\\text[a-z]+\{\}", "", first))
    assert r"\input{" not in first


def test_caption_and_label_make_a_float() -> None:
    text = latex_table(Table(["a"], [["b"]]), caption="50 % more", label="tab:x")
    assert r"\caption{50 \% more}" in text
    assert text.index(r"\begin{table}") < text.index(r"\label{tab:x}") < text.index("tabular")
    assert text.index(r"\resizebox") < text.index("tabular")  # no wider than the text
    assert text.splitlines()[0].endswith(r"\usepackage{booktabs,graphicx}")


def test_no_name_is_an_argument_of_the_line_above() -> None:
    lines = latex_table(Table(["method"], [["plain"], ["[ours]"], ["*best"]])).splitlines()
    assert lines[5:8] == [r"plain \\", r"{}[ours] \\", r"{}*best \\"]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [("-0.5 [-1, +2]", "$-$0.5 [$-$1, +2]"), ("l2-2", "l2-2"), ("–", "--"), ("1e-5", "1e-5")],
)
def test_minus_signs(text: str, wanted: str) -> None:
    assert latex_text(text) == wanted


def test_pages_show_bold_cells() -> None:
    table = Table(["m", "x", "y"], [["<a>", "1", "2"]], frozenset({(0, 2)}))
    markdown = page_text("md", "title", [Section("scores", [table])])
    assert "| 1 | **2** |" in markdown


def test_a_column_alone_is_no_head_of_its_rows() -> None:
    page = page_text("html", "title", [Section("departures", [Table(["departures"], [["one"]])])])
    assert "<td>one</td>" in page
