"""Files that are nearly right: mutations of a text, of its bytes, of JSON and of tables."""

from __future__ import annotations

import copy
import datetime
import decimal
import json
import random
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

SCALARS = [
    *("1e-5", "1_000", "0x10", "010", "1:30", "+3", "3.0", "-0", "5.", "1e400", ".inf", ".nan"),
    *("~", "no", "yes", "on", "true", "True", '"3"', "'no'", "[3]", "{a: 3}", "2026-01-01", "''"),
    *("!!int 3", "&x 3", "9" * 30, "3 # three", "|\n  3\n", "a: 3", "1 000", "½", "٣", "3\u200b"),
    *("[[[[[[3]]]]]]", "@3", "`3`", "%3", "- 3", '"\\x003"', "3\u00a0", "0.1e1", "4294967296"),
]
"""Values of YAML, as they are written, in the place of another one."""
PIECES = (b"\0", b'"', b",", b"\n", b"\r", b"\t", b"\xff", b"\xef\xbb\xbf", b"null", b"1e999", b"'")
LABELS: list[list[Any]] = [
    [0, 1],
    [1, 2],
    [0.0, 1.0],
    [0.25, 1.75],
    [True, False],
    ["0", "1"],
    ["007", "8"],
    ["nan", "poor"],
    ["fine ", "fine"],
    ["Fine", "fine"],
    ["1,5", "2"],
    ["2026-01-01", "2026-01-02"],
    ["=1+1", "@x"],
    ["é", "e\u0301"],
    [-100, 1],
    [10**20, 1],
    [None, "poor"],
    [float("nan"), 1.5],
    [[1], [0]],
    ["yes", "no"],
    ["TRUE", "FALSE"],
    ["1e0", "0"],
]
"""Two labels of rows in turn."""


def in_bytes(content: bytes, draw: random.Random) -> bytes:
    """Bytes changed, removed, repeated, inserted or cut off."""
    changed = bytearray(content)
    for _ in range(draw.choice((1, 1, 2, 4))):
        at = draw.randrange(len(changed) + 1)
        match draw.randrange(5):
            case 0:
                changed[at : at + 1] = bytes([draw.randrange(256)])
            case 1:
                del changed[at : at + draw.randrange(1, 30)]
            case 2:
                changed[at:at] = changed[at : at + draw.randrange(1, 30)]
            case 3:
                changed[at:at] = draw.choice(PIECES)
            case 4:
                del changed[at:]
    return bytes(changed)


def as_a_whole(text: str) -> list[bytes]:
    """The same text in other encodings and with other line ends; nothing; twice."""
    return [
        b"",
        b"\xef\xbb\xbf" + text.encode(),
        text.replace("\n", "\r\n").encode(),
        text.replace("\n", "\r").encode(),
        text.encode("utf-16"),
        text.encode("utf-16-be"),
        (text + "# ä\n").encode("latin-1", "replace"),
        text.replace(" ", "\u00a0").encode(),
        text.replace(" ", "\t").encode(),
        (text + text).encode(),
        text.rstrip().encode(),
        text.encode() + b"\0",
        text.replace('"', "\u201c").encode(),
        b"\n\n\n" + text.encode(),
    ]


def of_yaml(text: str, draw: random.Random) -> bytes:
    """A key or a value of the file is another, is missing or stands twice; or bytes differ."""
    lines = text.splitlines()
    at = draw.randrange(len(lines))
    key, _, _ = lines[at].partition(":")
    match draw.randrange(9):
        case 0 | 1 | 2 | 3:
            lines[at] = f"{key}: {draw.choice(SCALARS)}"
        case 4:
            lines.insert(draw.randrange(len(lines) + 1), lines[at])
        case 5:
            del lines[at]
        case 6:
            changed = draw.choice((key.upper(), key + "s", key[:-1], f'"{key}"', key.strip(), "<<"))
            lines[at] = lines[at].replace(key, changed, 1)
        case 7:
            other = draw.randrange(len(lines))
            lines[at], lines[other] = lines[other], lines[at]
        case 8:
            return in_bytes(text.encode(), draw)
    return ("\n".join(lines) + "\n").encode()


def paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The places in plain data."""
    if path:
        yield path
    items = (
        value
        if isinstance(value, dict)
        else dict(enumerate(value if isinstance(value, list) else ()))
    )
    for key, item in items.items():
        yield from paths(item, (*path, key))


def of_json(content: dict[str, Any], draw: random.Random) -> str:
    """A field is another value, is missing, renamed or stands twice; or is not JSON's."""
    changed = copy.deepcopy(content)
    *parents, last = draw.choice(list(paths(changed)))
    inside = changed
    for part in parents:
        inside = inside[part]
    value = inside[last]
    values = [None, True, -1, 0, 0.5, 10**30, "", "x", "../x", [], {}, [value], {"a": value}]
    values += [float("nan"), float("inf"), str(value), "\ud800", "\x1b[2J", 1e308, "1" * 5000]
    if isinstance(value, float | int) and not isinstance(value, bool):
        values += [value + 0.125, -value, value + 1] * 4
    match draw.randrange(5):
        case 0 | 1 | 2:
            inside[last] = draw.choice(values)
        case 3:
            del inside[last]
        case 4 if isinstance(inside, dict):
            inside[f"{last}_"] = inside.pop(last)
    text = json.dumps(changed)
    if draw.random() < 0.1:  # twice, the second time the other one
        text = text[:-1] + ", " + json.dumps(content)[1:]
    return text


Rows = list[dict[str, Any]]


def of_rows(rows: Rows, draw: random.Random) -> Rows:
    """Labels or texts are others, in all rows or in one; columns are missing, more, or renamed."""
    rows = copy.deepcopy(rows)
    row = draw.choice(rows)
    match draw.randrange(7):
        case 0 | 1 | 2:
            labels = draw.choice(LABELS)
            for number, each in enumerate(rows):
                each["label"] = labels[number % 2]
        case 3:
            row["label"] = draw.choice([label for labels in LABELS for label in labels])
        case 4:
            row["text"] = draw.choice(
                [
                    *(
                        "",
                        " ",
                        "\u200b",
                        "a\nb",
                        'a "quoted" b',
                        "a, b",
                        "=1+1",
                        "\x1b[2Ja",
                        "x" * 9000,
                    )
                ]
                + [None, 3, 1.5, True, ["a"], {"a": "b"}]  # type: ignore[list-item]
            )
        case 5:
            for each in rows:
                each["text"], each["label"] = each["label"], each["text"]
        case 6:
            key = draw.choice(("text", "label", "Text", "label ", "", "prediction", "a.b"))
            for each in rows:
                each[key] = each.pop(draw.choice(("text", "more"))) if "more" in each else 3
    return rows


def as_csv(rows: Rows, sep: str = ",") -> bytes:
    """As programs write it."""
    import csv
    import io

    text = io.StringIO()
    names = list(dict.fromkeys(name for row in rows for name in row))
    writer = csv.DictWriter(text, names, delimiter=sep, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode("utf-8", "surrogatepass")


def as_jsonl(rows: Rows, draw: random.Random) -> bytes:
    """Lines, sometimes with a name that stands twice, of other forms, or one list of all rows."""
    lines = [json.dumps(row, ensure_ascii=draw.random() < 0.5) for row in rows]
    match draw.randrange(6):
        case 0:
            at = draw.randrange(len(lines))
            lines[at] = lines[at][:-1] + ', "label": "other"}'
        case 1:
            at = draw.randrange(len(lines))
            lines.insert(at, draw.choice(("", "null", "[]", "3", "{}", '{"text": "a"', "// a")))
        case 2:
            return f"[{','.join(lines)}]".encode("utf-8", "surrogatepass")
    return "\n".join(lines).encode("utf-8", "surrogatepass")


def _labels_of(kind: pa.DataType, first: Any, second: Any) -> Callable[[int], pa.Array]:
    return lambda count: pa.array([(first, second)[i % 2] for i in range(count)], kind)


TYPED = [
    _labels_of(pa.decimal128(5, 2), decimal.Decimal("1.50"), decimal.Decimal("2.00")),
    _labels_of(pa.decimal128(5, 0), decimal.Decimal("0"), decimal.Decimal("1")),
    _labels_of(pa.timestamp("us"), datetime.datetime(2026, 1, 1), datetime.datetime(2026, 1, 2)),
    _labels_of(pa.date32(), datetime.date(2026, 1, 1), datetime.date(2026, 1, 2)),
    _labels_of(pa.bool_(), True, False),
    _labels_of(pa.int8(), 0, 1),
    _labels_of(pa.uint64(), 0, 2**64 - 1),
    _labels_of(pa.uint64(), 0, 1),
    _labels_of(pa.float16(), 0.5, 1.5),
    _labels_of(pa.float32(), 0.1, 3e38),
    _labels_of(pa.float64(), 1e300, 1.5),
    _labels_of(pa.list_(pa.int64()), [0], [1]),
    _labels_of(pa.list_(pa.string()), ["a"], []),
    _labels_of(pa.struct({"a": pa.int64()}), {"a": 0}, {"a": 1}),
    _labels_of(pa.map_(pa.string(), pa.int64()), [("a", 1)], [("b", 2)]),
    _labels_of(pa.binary(), b"a", b"b"),
    _labels_of(pa.large_string(), "a", "b"),
    _labels_of(pa.string_view(), "a", "b"),
    _labels_of(pa.null(), None, None),
    _labels_of(pa.duration("s"), datetime.timedelta(1), datetime.timedelta(2)),
    lambda count: _labels_of(pa.string(), "a", "b")(count).dictionary_encode(),
    lambda count: _labels_of(pa.int64(), 7, 9)(count).dictionary_encode(),
    lambda count: pa.DictionaryArray.from_arrays(
        pa.array([i % 2 for i in range(count)], pa.int8()), pa.array(["b", "a"])
    ),
]
"""Columns of Arrow by their number of rows."""


def as_parquet(rows: Rows, draw: random.Random) -> bytes:
    """A table, the labels or texts of which may be of another type; or bytes of it are others."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    columns: dict[str, Any] = {}
    for name in names:
        values = [row.get(name) for row in rows]
        try:
            columns[name] = pa.array(values)
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
            columns[name] = pa.array([None if v is None else str(v) for v in values])
    if draw.random() < 0.6:
        columns[draw.choice(("label", "label", "label", "text"))] = draw.choice(TYPED)(len(rows))
    sink = pa.BufferOutputStream()
    options = draw.choice(({}, {"compression": "zstd"}, {"row_group_size": 5}, {"version": "1.0"}))
    try:
        pq.write_table(pa.table(columns), sink, **options)
    except pa.ArrowNotImplementedError:
        pq.write_table(pa.table({"text": ["a"], "label": ["b"]}), sink)
    content = sink.getvalue().to_pybytes()
    return in_bytes(content, draw) if draw.random() < 0.15 else content
