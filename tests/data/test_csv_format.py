"""Separators and encodings of CSV files as office programs write them."""

from pathlib import Path

import pytest

from smoothtune.data.csv_format import fitting_encoding, fitting_separator
from smoothtune.data.sources import fitting_form, load_rows, load_splits
from smoothtune.errors import DataError
from smoothtune.tasks import describe_task

ROWS = "text;label\nDas Café war gut, sehr gut;pos\nÄrger;neg\n"


def write(file: Path, text: str, encoding: str = "utf-8") -> Path:
    file.write_bytes(text.encode(encoding))
    return file


def test_separator_and_encoding_are_read_as_given(tmp_path: Path) -> None:
    file = write(tmp_path / "train.csv", ROWS, "cp1252")
    expected = {"text": ["Das Café war gut, sehr gut", "Ärger"], "label": ["pos", "neg"]}
    assert load_splits(file, sep=";", encoding="cp1252")["train"].to_dict() == expected
    assert load_rows(file, sep=";", encoding="cp1252").to_dict() == expected
    assert load_splits(tmp_path, sep=";", encoding="latin-1")["train"].to_dict() == expected
    wide = write(tmp_path / "wide.csv", ROWS, "utf-16-le")
    assert fitting_form(wide) == {"encoding": "utf-16-le", "sep": ";"}
    assert load_rows(wide, sep=";", encoding="utf-16-le").to_dict() == expected
    wide.unlink()
    task = describe_task(text_columns="text", sep=";", encoding="cp1252")
    assert task.load_splits(file)["train"].to_dict() == expected


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        (
            ROWS.encode("cp1252"),
            {},
            r"line 2 is not utf-8; it reads as cp1252, 'Das Café war gut, s': ",
        ),
        (
            ROWS.encode("utf-16"),
            {},
            r"line 1 is not utf-8; it reads as utf-16, .*: give enc",
        ),
        (ROWS.encode("utf-16-le"), {}, "is utf-16-le without a mark .*; give encoding: utf-16-le"),
        (ROWS.encode("utf-16-be"), {}, "is utf-16-be without a mark .*; give encoding: utf-16-be"),
        (ROWS.encode(), {}, r'columns seem to be separated by \';\': give sep: ";"'),
        (ROWS.replace(";", "\t").encode(), {}, r'separated by \'\\t\' \(a tab\): give sep: "\\t"'),
        (
            ROWS.encode(),
            {"sep": ";", "encoding": "cp1252"},
            r"is UTF-8.*'Das CafÃ©.*give encoding: utf-8",
        ),
        (b"text,label\na, b,pos\n", {}, r"line 2 has 3 columns and the header 2; a text"),
        (
            b"text,label\na,pos\na, b,pos\n",
            {},
            r"line 3 has 3 columns and the header 2; a text that",
        ),
        (
            b"My rows;;\ntext;label;nr\na;pos;1\n",
            {"sep": ";"},
            "3 columns hold texts, and 'My rows' is their only name: give each .* title .*, delete",
        ),
        (
            b"My rows\ntext;label\na;pos\nb, c;neg\n",
            {"sep": ";"},
            "line 2 has 2 columns and the header 1.* If a title stands above .*, delete it",
        ),
        (b"PK\x03\x04\xff", {}, "it is an Excel workbook: name it .xlsx"),
        (b"", {}, "cannot be read as csv: it has no columns$"),
    ],
)
def test_what_does_not_fit_is_named_with_what_does(
    tmp_path: Path, content: bytes, options: dict, message: str
) -> None:
    file = tmp_path / "train.csv"
    file.write_bytes(content)
    with pytest.raises(DataError, match=f"(?s)train.csv: .*{message}"):
        load_splits(file, **options)
    with pytest.raises(DataError, match=f"(?s)train.csv: .*{message}"):
        load_rows(file, **options)


def test_the_separator_below_a_title(tmp_path: Path) -> None:
    file = write(tmp_path / "train.csv", "My rows\ntext;label\na, b;pos\nb;neg\n")
    assert fitting_separator(file) == ";"


def test_a_comma_in_every_text_is_no_separator_below_a_title(tmp_path: Path) -> None:
    file = write(tmp_path / "f.csv", "text;label\ngood, part 1;pos\nbad, part 2;neg\n")
    assert fitting_separator(file) == ";"


def test_one_column_that_holds_a_separator(tmp_path: Path) -> None:
    file = write(tmp_path / "train.csv", "text;label\na;pos\nb;neg\n")
    task = describe_task(text_columns="text")
    train = task.load_splits(file)["train"]
    with pytest.raises(DataError, match="are 'text;label'; they seem to be separated by ';': give"):
        task.with_labels(train)


@pytest.mark.parametrize(
    ("text", "sep"),
    [
        ("a,b\n1,2\n", ","),
        ('a;b\n"x;y";2\n"1,5";3\n', ";"),
        ("a\tb\tc\n1,2\t3\t4\n", "\t"),
        ("a|b\nx|y\n", "|"),
        ("text\none\ntwo, three\n", None),
        ("text;label\none;two;three\n", None),
        ("text;label\none\u2028two;1\n", ";"),
    ],
)
def test_separator_that_fits(tmp_path: Path, text: str, sep: str | None) -> None:
    assert fitting_separator(write(tmp_path / "f.csv", text)) == sep


def test_encoding_that_fits() -> None:
    assert fitting_encoding("Ärger “".encode("cp1252")) == "cp1252"
    assert fitting_encoding("ä".encode()) == "utf-8"
    assert fitting_encoding("ä".encode("utf-16")) == "utf-16"
    assert fitting_encoding("text;Ä".encode("utf-16-be")) == "utf-16-be"
    assert fitting_encoding(b"x\0y;label\na;b\n") == "utf-8"
    assert fitting_encoding(b"\xff\x00\x81") is None
