import hashlib
import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from datasets import Dataset

from smoothtune.data.arrow import CHUNK, distinct, numbers, stored_column
from smoothtune.data.columns import fingerprint, select_texts, text_problems

TEXTS = [
    "plain",
    'a "quote"',
    "back\\slash",
    "é",
    "tab\t",
    "line\n",
    "",
    "日本",
    "😀",
    "\x7f",
    "\x1c",
]


def reference(rows: list[list[Any]]) -> str:
    return hashlib.sha256("".join(f"{json.dumps(row)}\n" for row in rows).encode()).hexdigest()


@pytest.mark.parametrize(
    "columns",
    [
        {"text": TEXTS, "labels": range(-5, 6)},
        {"text": TEXTS, "text_pair": TEXTS[::-1], "example_id": range(11)},
        {"text": ["a", "b"], "labels": [0.1, 1e-9]},
        {"text": ["a", None], "labels": [True, None]},
        {"text": ["a", "b"], "labels": [[1], []]},
        {"text": [f"row {row}" for row in range(CHUNK + 1)], "example_id": range(CHUNK + 1)},
    ],
)
def test_fingerprint_is_the_sha256_of_rows_as_json(columns: dict[str, Any]) -> None:
    lists = {name: list(values) for name, values in columns.items()}
    rows = [list(row) for row in zip(*lists.values(), strict=True)]
    dataset = Dataset.from_dict(lists)
    assert fingerprint(dataset) == reference(rows)
    assert fingerprint(dataset.select(range(len(rows) - 1, -1, -1))) == reference(rows[::-1])


def test_chosen_texts_with_labels() -> None:
    raw = Dataset.from_dict({"text": TEXTS, "other": TEXTS[::-1]})
    labels = np.arange(22, dtype=np.float32).reshape(11, 2)
    chosen = select_texts(raw, ["text", "other"], np.array([7, 0, 8]), labels)
    assert chosen.to_dict() == {
        "text": ["日本", "plain", "😀"],
        "text_pair": ["é", "\x1c", "back\\slash"],
        "labels": [[14, 15], [0, 1], [16, 17]],
        "example_id": [7, 0, 8],
    }
    assert select_texts(raw, ["text"], np.arange(11))["text"][:] == TEXTS


@pytest.mark.parametrize(
    ("chunks", "kind", "values", "codes"),
    [
        ([["a", "b", None], ["b", "c"]], pa.string(), ["a", "b", None, "c"], [0, 1, 2, 1, 3]),
        ([[2, 2], [7]], pa.int64(), [2, 7], [0, 0, 1]),
        ([[True], [False, True]], pa.bool_(), [True, False], [0, 1, 0]),
        ([[None, None]], pa.null(), [None], [0, 0]),
        ([[["x"], []], [["x"]]], pa.list_(pa.string()), [["x"], []], [0, 1, 0]),
        ([], pa.string(), [], []),
    ],
)
def test_distinct_values(chunks: list, kind: pa.DataType, values: list, codes: list) -> None:
    found, rows = distinct(pa.chunked_array(chunks, kind))
    assert found == values
    assert rows.tolist() == codes


def test_stored_columns_are_in_the_order_of_the_rows_and_not_formatted() -> None:
    def fail(rows: Any) -> None:
        raise AssertionError("read")

    dataset = Dataset.from_dict({"length": range(5), "text": list("abcde")})
    dataset = dataset.with_transform(fail).select([4, 0, 3])
    assert numbers(dataset, "length").tolist() == [4, 0, 3]
    assert stored_column(dataset, "text").to_pylist() == ["e", "a", "d"]


def test_texts_without_ascii_may_be_blank() -> None:
    dataset = Dataset.from_dict({"text": ["日本", "a", "\u2003\x1c", "😀", None, "é", " "]})
    assert text_problems(dataset, ["text"]) == [
        "row 2, column 'text': '\\u2003\\x1c' is an empty text; drop the row (--drop-missing) or "
        "fill it in (likewise row 6: ' ')",
        "row 4, column 'text': None is a missing text; drop the row (--drop-missing) or fill it in",
    ]
