"""A small generated sentiment data set, in which negation and contrast decide the label.

No single word gives the label away: adjectives occur negated ("far from dull"), and of two
contrasting clauses the main one decides ("although the plot was dull, the acting was superb").
Half of the validation adjectives do not occur in training, and some training labels are wrong.
"""

import random

ASPECTS = (
    *("acting", "plot", "soundtrack", "dialogue", "ending", "pacing", "humour", "story"),
    *("food", "service", "room", "view", "breakfast", "staff", "location", "design"),
)
GOOD = ["superb", "charming", "delightful", "clever", "warm", "brilliant", "splendid", "fresh"]
BAD = ["dull", "awful", "clumsy", "tedious", "bland", "dreadful", "shallow", "stale"]
NEW_GOOD = [
    *("excellent", "wonderful", "lovely", "impressive"),
    *("enjoyable", "outstanding", "pleasant", "graceful"),
]
NEW_BAD = [
    *("terrible", "boring", "poor", "disappointing"),
    *("miserable", "unpleasant", "lifeless", "annoying"),
]
NEGATIONS = ("not", "far from", "anything but", "never")
INTENSIFIERS = ("", "really ", "quite ", "simply ")
FORMS = (
    "{main}",
    "{main}",
    "although {other}, {main}",
    "{other}, but {main}",
    "{main}, even though {other}",
)
LABEL_NOISE = 0.1
"""Share of training labels that are wrong."""

LABELS = ("negative", "positive")

Row = dict[str, str]


def sentiment(train_rows: int = 400, validation_rows: int = 300) -> tuple[list[Row], list[Row]]:
    """Train and validation rows, the same at every call; no sentence occurs twice.

    A row has a ``sentence`` and a ``label``, one of `LABELS`. A tenth of the labels of the train
    rows is wrong.
    """
    draw = random.Random(0)
    seen: set[str] = set()
    train = _rows(draw, train_rows, (BAD, GOOD), seen)
    validation = _rows(draw, validation_rows, (BAD + NEW_BAD, GOOD + NEW_GOOD), seen)
    for row in draw.sample(train, round(LABEL_NOISE * train_rows)):
        row["label"] = LABELS[1 - LABELS.index(row["label"])]
    return train, validation


def _rows(
    draw: random.Random, count: int, words: tuple[list[str], list[str]], seen: set[str]
) -> list[Row]:
    rows: list[Row] = []
    while len(rows) < count:
        label = len(rows) % 2
        sentence = _sentence(draw, label, words)
        if sentence not in seen:
            seen.add(sentence)
            rows.append({"sentence": sentence, "label": LABELS[label]})
    return rows


def _sentence(draw: random.Random, label: int, words: tuple[list[str], list[str]]) -> str:
    first, second = draw.sample(ASPECTS, 2)
    main = _clause(draw, first, label, words)
    other = _clause(draw, second, 1 - label, words)
    text = draw.choice(FORMS).format(main=main, other=other)
    return text[0].upper() + text[1:] + "."


def _clause(
    draw: random.Random, aspect: str, label: int, words: tuple[list[str], list[str]]
) -> str:
    if draw.random() < 0.25:
        return f"the {aspect} was {draw.choice(NEGATIONS)} {draw.choice(words[1 - label])}"
    return f"the {aspect} was {draw.choice(INTENSIFIERS)}{draw.choice(words[label])}"
