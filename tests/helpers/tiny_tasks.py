"""Tiny data sets of every kind of task, as Parquet or JSON Lines files."""

import json
import random
from pathlib import Path

from helpers.tiny_folder import WORDS


def write(folder: Path, **splits: list[dict]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in splits.items():
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / f"{name}.jsonl").write_text(lines)
    return folder


def squad_row(index: int, draw: random.Random, *, answerable: bool = True) -> dict:
    """The answer is the word after "very"."""
    words = draw.choices(["film", "plot", "the", "a", "was", "and"], k=draw.randint(4, 9))
    place = draw.randint(0, len(words) - 1)
    answer = draw.choice(["good", "bad", "not"])
    words[place:place] = ["very", answer] if answerable else ["very"]
    context = " ".join(words)
    text, start = [answer], [context.index("very") + 5]
    return {
        "id": f"q{index}",
        "context": context,
        "question": "the film",
        "answers": {
            "text": text if answerable else [],
            "answer_start": start if answerable else [],
        },
    }


def squad_data(folder: Path, rows: int = 32, *, unanswerable: bool = False) -> Path:
    draw = random.Random(0)
    splits = {
        name: [squad_row(i, draw, answerable=not unanswerable or i % 3 > 0) for i in range(rows)]
        for name in ("train", "validation")
    }
    return write(folder, **splits)


def tag_data(folder: Path, rows: int = 24) -> Path:
    """Names: "good film" and "bad plot"; the tags are text."""
    draw = random.Random(0)

    def sentence() -> dict:
        tokens, tags = [], []
        for _ in range(draw.randint(2, 4)):
            if draw.random() < 0.5:
                pair = draw.choice([["good", "film"], ["bad", "plot"]])
                kind = "F" if pair[0] == "good" else "P"
                tokens, tags = tokens + pair, [*tags, f"B-{kind}", f"I-{kind}"]
            tokens, tags = [*tokens, draw.choice(WORDS[4:7])], [*tags, "O"]
        return {"tokens": tokens, "tags": tags}

    return write(
        folder, **{name: [sentence() for _ in range(rows)] for name in ("train", "validation")}
    )


def choice_data(folder: Path, rows: int = 24) -> Path:
    """The right ending is the one with "good"."""
    draw = random.Random(0)

    def row() -> dict:
        label = draw.randrange(3)
        endings = [
            " ".join(draw.choices(["plot", "a", "was"], k=draw.randint(1, 3))) for _ in "abc"
        ]
        endings[label] = f"very good {endings[label]}"
        return {
            "context": "the film",
            "start": "was",
            "ending0": endings[0],
            "ending1": endings[1],
            "ending2": endings[2],
            "endings": endings,
            "label": label,
            "answer": "ABC"[label],
        }

    return write(folder, **{name: [row() for _ in range(rows)] for name in ("train", "validation")})


def topic_rows(rows: int = 24, seed: int = 0) -> list[dict]:
    """A row's labels are those of "good", "film" and "not" that its text has; it may have none."""
    draw = random.Random(seed)
    texts = [" ".join(draw.choices(WORDS, k=draw.randint(1, 4))) for _ in range(rows)]
    names = ("good", "film", "not")
    return [{"text": text, "labels": [n for n in names if n in text.split()]} for text in texts]


def topic_csv(folder: Path, separator: str = ";", **splits: list[dict]) -> Path:
    """The same as CSV, labels with a separator."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in splits.items():
        lines = [f"{row['text']},{separator.join(row['labels'])}" for row in rows]
        (folder / f"{name}.csv").write_text("\n".join(["text,labels", *lines, ""]))
    return folder


def topic_data(folder: Path) -> Path:
    """The same as lists."""
    return write(folder, train=topic_rows(48), validation=topic_rows(12, seed=1))
