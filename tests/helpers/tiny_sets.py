"""A folder of data sets with the names and columns of the hub, of a few made-up rows each."""

import json
import random
from pathlib import Path

from datasets import Dataset

from helpers.tiny_folder import WORDS

PAIRS = {
    "mrpc": ("sentence1", "sentence2"),
    "rte": ("sentence1", "sentence2"),
    "stsb": ("sentence1", "sentence2"),
    "qqp": ("question1", "question2"),
    "qnli": ("question", "sentence"),
    "mnli": ("premise", "hypothesis"),
    "adv_mnli": ("premise", "hypothesis"),
    "adv_qqp": ("question1", "question2"),
    "adv_rte": ("sentence1", "sentence2"),
    **{f"anli_r{part}": ("premise", "hypothesis") for part in (1, 2, 3)},
}
SINGLE = {"cola": "sentence", "sst2": "sentence", "adv_sst2": "sentence"}
TWEETS = "tweets_hate_speech_detection"
QUESTIONS = ("squad", "mrqa_duorc", "mrqa_race", "mrqa_relation_extraction")


def tiny_sets(folder: Path, rows: int = 24) -> Path:
    """Write JSONL files of all of them."""
    draw = random.Random(0)

    def text() -> str:
        return " ".join(draw.choices(WORDS, k=draw.randint(2, 6)))

    def write(name: str, split: str, make) -> None:
        path = folder / name / f"{split}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = [json.dumps(make(index)) for index in range(rows)]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")

    for name in (*PAIRS, *SINGLE):
        columns = PAIRS.get(name) or (SINGLE[name],)
        classes = 3 if "nli" in name and name != "qnli" else 2

        def row(index: int, columns=columns, classes=classes, name=name) -> dict:
            label = draw.uniform(0, 5) if name == "stsb" else index % classes
            return {column: text() for column in columns} | {"label": label, "idx": index}

        held = "dev_" + name[-2:] if name.startswith("anli") else "validation"
        splits = ["train", "validation_matched" if name == "mnli" else held]
        for split in splits[name.startswith(("adv", "anli")) :]:
            write(name, split, row)
    write(TWEETS, "train", lambda index: {"tweet": f"{text()} {index}", "label": index % 2})
    for site in ("amazon", "imdb", "yelp"):
        sentences = [{"sentence": f"{text()} {i}", "label": i % 2} for i in range(rows)]
        place = folder / "uci_sentiment_labelled" / f"{site}.parquet"
        place.parent.mkdir(exist_ok=True)
        Dataset.from_list(sentences).to_parquet(str(place))

    def question(index: int) -> dict:
        words = draw.choices(WORDS, k=8)
        start = len(" ".join(words[:3])) + 1
        answer = {"text": [words[3]], "answer_start": [start]}
        asked = f"what {words[0]} {index}"
        context = " ".join(words)
        return {"id": str(index), "title": "", "context": context, "question": asked} | {
            "answers": answer
        }

    for name in QUESTIONS:
        for split in ("train", "validation"):
            write(name, split, question)
    return folder
