"""Rows of CSV: every cell is a text, and a stray quote loses no row."""

import os
from pathlib import Path

import pytest

from smoothtune.data.locations import row_locator
from smoothtune.data.sources import load_rows, load_splits
from smoothtune.errors import DataError


def write(file: Path, text: str) -> Path:
    file.write_bytes(text.encode())
    return file


def test_cells_are_the_texts_that_stand_there(tmp_path: Path) -> None:
    file = write(tmp_path / "a.csv", "text,id,label\n2012,007,x\nTrue,1e3,\n NA ,1.50,y\n")
    expected = {"text": ["2012", "True", " NA "], "id": ["007", "1e3", "1.50"]}
    for rows in (load_splits(file)["train"], load_rows(file)):
        assert rows.to_dict() == expected | {"label": ["x", "", "y"]}


def test_line_ends_quotes_and_separators_inside_quotes(tmp_path: Path) -> None:
    text = 'label,text\r\n\r\npos,"say ""hi"", then\r\ngo"\r\nneg,6" wide\r\npos,\n'
    rows = load_splits(write(tmp_path / "a.csv", text))["train"]
    assert rows["text"][:] == ['say "hi", then\r\ngo', '6" wide', ""]
    assert rows["label"][:] == ["pos", "neg", "pos"]
    assert [row_locator(rows)(row) for row in range(3)] == ["line 3", "line 5", "line 6"]


@pytest.mark.parametrize("encoding", [None, "utf-8", "UTF8"])
def test_a_mark_at_the_beginning_is_no_text(tmp_path: Path, encoding: str | None) -> None:
    file = write(tmp_path / "a.csv", "\ufefftext,n\na,1\n")
    assert load_rows(file, encoding=encoding).column_names == ["text", "n"]


def test_a_text_longer_than_the_limit_of_csv(tmp_path: Path) -> None:
    long = "a" * 200_000
    assert load_rows(write(tmp_path / "a.csv", f"text,n\n{long},1\n"))["text"][:] == [long]


SWALLOWED = {
    "closed inside a text": (
        'text,label\nx 1,p\n"x 2,p\nx 3,n\n"x 4,n\nx 5,p\n',
        r"line 3: a double quote opens .* closed inside a text in line 5.* odd .*: 3, 5$",
    ),
    "never closed": ('text,label\nx 1,p\n"x 2,p\nx 3,n\n', r"line 3: .* is never closed"),
    "closed at the end of a text": (
        'text,label\nx 1,p\n"x 2,p\nx 3,n\nx 4",n\nx 5,p\n',
        r"one text of lines 3 to 5, and these look like rows",
    ),
    "of two lines": ('text,label\nx 1,p\n"x 2,p\nx 3",n\n', "one text of lines 3 to 4"),
    "after the label": (
        'label,text\nn,x 1\np,"x 2\nn,x 3\np,x 4"\nn,x 5\n',
        "one text of lines 3 to 5",
    ),
    "scores": ('text,label\nx 1,0.5\n"x 2,0.25\nx 3",0.75\n', "one text of lines 3 to 4"),
    "within a text": ('text,label\n"Great" film,p\nx,n\n', "line 2: .* closed inside a text"),
}


@pytest.mark.parametrize("case", SWALLOWED)
def test_a_stray_quote_is_refused(tmp_path: Path, case: str) -> None:
    content, message = SWALLOWED[case]
    file = write(tmp_path / "a.csv", content)
    for read in (load_splits, load_rows):
        with pytest.raises(DataError, match=message):
            read(file)


def test_tab_separated_rows_have_no_quoting(tmp_path: Path) -> None:
    file = write(tmp_path / "a.tsv", 'text\tlabel\n"x 1\tp\nx 2"\tn\n')
    assert load_splits(file)["train"]["text"][:] == ['"x 1', 'x 2"']


def test_texts_of_several_lines_are_read(tmp_path: Path) -> None:
    text = 'text,label\n"Dear all, hello\nI am, as ever, yours\nA, B",pos\n"x\ny, z",neg\nq,pos\n'
    rows = load_splits(write(tmp_path / "a.csv", text))["train"]
    assert rows["text"][:] == ["Dear all, hello\nI am, as ever, yours\nA, B", "x\ny, z", "q"]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", "text,label,label\na,1,2\n"),
        ("a.tsv", "text\tlabel\ttext\na\t1\tb\n"),
        ("a.jsonl", '{"text": "a", "label": 1, "text": "b"}\n'),
    ],
)
def test_two_columns_of_one_name_are_refused(tmp_path: Path, name: str, content: str) -> None:
    with pytest.raises(DataError, match=r"line 1: 2 columns are named '(text|label)'"):
        load_splits(write(tmp_path / name, content))


@pytest.mark.parametrize("suffix", [".csv", ".jsonl"])
def test_rows_are_those_that_the_file_holds_now(tmp_path: Path, suffix: str) -> None:
    """Also where another content has the name, the size and the time of change of the old."""
    form = "text,label\n{}\n" if suffix == ".csv" else '{{"text": "{}"}}\n'
    file = write(tmp_path / f"a{suffix}", form.format("old"))
    before = file.stat()
    assert load_rows(file)["text"][:] == ["old"]
    write(file, form.format("new"))
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert load_rows(file)["text"][:] == ["new"]
    assert load_splits(file)["train"]["text"][:] == ["new"]
