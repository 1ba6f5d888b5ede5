"""The main metric on corrupted text.

`corrupt_tokens` acts on token ids, the others on text. Each damages exactly round(rate * n)
positions (halves up), n the positions that can be damaged: ordinary tokens, words, or words of two
letters or more. Special tokens are never changed, and rows have no padding yet. White space stays:
a decoder that reads the last token tells "a film. " from "a film."
"""

import re
import string
from collections.abc import Callable, Collection, Iterator, Sequence

import numpy as np
from datasets import Dataset

from smoothtune.data.columns import TEXTS, fingerprint
from smoothtune.evaluation.disturbance import CHANGED, disturbance_curve
from smoothtune.evaluation.predictor import Predictor
from smoothtune.report.curves import Curve

RATES = (0.0, 0.05, 0.1, 0.2)
FURTHER_RATES = (0.3, 0.5, 0.7, 1.0)
"""Rates that follow until the metric has lost 10 points."""
JUDGED_RATE = 0.1
"""At which the share of rows that change is counted: of short texts the nearest number is 0."""


def exactly(rate: float, count: int) -> int:
    """round(rate * count), halves up.

    >>> exactly(0.1, 25), exactly(0.1, 24)
    (3, 2)
    """
    return int(rate * count + 0.5 + 1e-9)


def corrupt_tokens(
    input_ids: Sequence[int],
    rate: float,
    rng: np.random.Generator,
    *,
    special: Collection[int],
    ordinary: np.ndarray,
) -> list[int]:
    """Other tokens, drawn uniformly, at random places.

    Args:
        input_ids: (T,) one example without padding.
        rate: share of the ordinary tokens that become another one, 0 to 1.
        rng: draws.
        special: ids that are left alone.
        ordinary: ids to draw from, at least two.

    Returns:
        (T,) the ids; exactly round(rate * ordinary tokens) differ.
    """
    ids = list(input_ids)
    positions = [position for position, token in enumerate(ids) if token not in special]
    for position in rng.permutation(positions)[: exactly(rate, len(positions))]:
        replacement = int(rng.choice(ordinary))
        while replacement == ids[position]:
            replacement = int(rng.choice(ordinary))
        ids[position] = replacement
    return ids


def typos(text: str, rate: float, rng: np.random.Generator) -> str:
    """One typing error each in a share of the words with two letters or more.

    Two neighboring characters change places, or one is doubled, left out, or exchanged for
    another letter, each with a chance of 1/4; swapping two equal ones is drawn again.
    """
    words, gaps = _words(text)
    positions = [position for position, word in enumerate(words) if sum(map(str.isalpha, word)) > 1]
    for position in rng.permutation(positions)[: exactly(rate, len(positions))]:
        word = words[position]
        while words[position] == word:
            words[position] = _mistype(word, rng)
    return _text(words, gaps)


def _mistype(word: str, rng: np.random.Generator) -> str:
    at = int(rng.integers(len(word) - 1))
    before, here, after = word[:at], word[at], word[at + 1 :]
    other = string.ascii_lowercase[rng.integers(26)]
    return (
        before + after[0] + here + after[1:],
        before + here + here + after,
        before + after,
        before + other + after,
    )[rng.integers(4)]


def drop_words(text: str, rate: float, rng: np.random.Generator) -> str:
    """Leave a share of the words out; one always stays."""
    words, gaps = _words(text)
    count = max(min(exactly(rate, len(words)), len(words) - 1), 0)
    gone = set(rng.permutation(len(words))[:count].tolist())
    remaining = [index for index in range(len(words)) if index not in gone]
    between = [gaps[index] for index in remaining[1:]]
    return _text([words[index] for index in remaining], [gaps[0], *between, gaps[-1]])


def swap_words(text: str, rate: float, rng: np.random.Generator) -> str:
    """Exchange random pairs of words: round(rate * words / 2) pairs, so twice as many words move.

    Two equal words may be exchanged, which changes nothing.
    """
    words, gaps = _words(text)
    pairs = exactly(rate / 2, len(words))
    positions = rng.permutation(len(words))[: 2 * pairs].tolist()
    for first, second in zip(positions[:pairs], positions[pairs:], strict=False):
        words[first], words[second] = words[second], words[first]
    return _text(words, gaps)


def _words(text: str) -> tuple[list[str], list[str]]:
    """The n words of a text, and the n + 1 pieces of white space before, between and after them."""
    return re.findall(r"\S+", text), re.split(r"\S+", text)


def _text(words: list[str], gaps: list[str]) -> str:
    return "".join(f"{gap}{word}" for gap, word in zip(gaps, words, strict=False)) + gaps[-1]


TEXT_DAMAGE: dict[str, Callable[[str, float, np.random.Generator], str]] = {
    "typos": typos,
    "dropped words": drop_words,
    "swapped words": swap_words,
}
"""Damage of texts by its name."""


def token_corruption_curve(
    predictor: Predictor,
    rows: Dataset,
    *,
    vocab_size: int,
    rates: Sequence[float] = RATES,
    further: Sequence[float] = (),
    num_samples: int = 3,
) -> Curve:
    """Main metric against the share of tokens that became random ones.

    Args:
        predictor: the model.
        rows: tokenized examples with labels, without padding.
        vocab_size: rows of the model's embedding matrix.
        rates: shares, 0 to 1, rising from 0.
        further: larger ones, see `disturbance_curve`.
        num_samples: samples for every rate above 0.
    """
    special = set(predictor.tokenizer.all_special_ids)
    vocabulary = set(predictor.tokenizer.get_vocab().values())
    ordinary = np.array(sorted(token for token in vocabulary - special if token < vocab_size))

    def damaged(rate: float, rng: np.random.Generator) -> Dataset:
        ids = [
            corrupt_tokens(row, rate, rng, special=special, ordinary=ordinary)
            for row in rows["input_ids"][:]
        ]
        return rows.remove_columns("input_ids").add_column("input_ids", ids)

    return _curve(predictor, rows, "random tokens", damaged, rates, num_samples, further)


def text_corruption_curve(
    predictor: Predictor,
    texts: Dataset,
    damage: str,
    *,
    max_seq_length: int,
    rates: Sequence[float] = RATES,
    num_samples: int = 3,
) -> Curve:
    """Main metric against the share of damaged words.

    Args:
        predictor: the model.
        texts: examples with text, for pairs text_pair, and labels.
        damage: a name in `TEXT_DAMAGE`.
        max_seq_length: inputs are cut to so many tokens.
        rates: shares, 0 to 1, rising from 0.
        num_samples: samples for every rate above 0.
    """

    def damaged(rate: float, rng: np.random.Generator) -> Dataset:
        return damaged_texts(predictor, texts, damage, rate, rng, max_seq_length=max_seq_length)[1]

    return _curve(predictor, texts, damage, damaged, rates, num_samples)


def damaged_texts(
    predictor: Predictor,
    texts: Dataset,
    damage: str,
    rate: float,
    rng: np.random.Generator,
    *,
    max_seq_length: int,
) -> tuple[Dataset, Dataset]:
    """Damaged texts, and the same tokenized; arguments as of `text_corruption_curve`."""
    examples = texts.to_list()
    for example in examples:
        for name in TEXTS:
            if name in example:
                example[name] = TEXT_DAMAGE[damage](example[name], rate, rng)
    changed = Dataset.from_list(examples)
    rows = predictor.task.rows.tokenize(
        changed, predictor.tokenizer, max_seq_length, fingerprint(changed)
    )
    return changed, rows


def _curve(
    predictor: Predictor,
    rows: Dataset,
    name: str,
    damaged: Callable[[float, np.random.Generator], Dataset],
    rates: Sequence[float],
    num_samples: int,
    further: Sequence[float] = (),
) -> Curve:
    ids: dict[float, list[list[list[int]]]] = {}

    def scores(some: Sequence[float]) -> Iterator[list[float]]:
        counts = [num_samples if rate else 1 for rate in some]
        predictor.progress.start(name, sum(counts) * predictor.num_batches(rows))
        for rate, count in zip(some, counts, strict=True):
            draws = (np.random.default_rng([predictor.seed, sample]) for sample in range(count))
            changed = [damaged(rate, rng) for rng in draws]
            if rate in (0, JUDGED_RATE):
                ids[rate] = [each["input_ids"][:] for each in changed]
            yield [predictor.main_metric(predictor.predict(each), each) for each in changed]

    curve = disturbance_curve(
        scores,
        predictor.task.main_metric,
        f"with {name}",
        x_label=f"{name} (share)",
        line=name,
        levels=rates,
        further=further,
        num_samples=num_samples,
    )
    if JUDGED_RATE in ids:
        pairs = [pair for each in ids[JUDGED_RATE] for pair in zip(ids[0][0], each, strict=True)]
        curve.numbers[CHANGED] = float(np.mean([before != after for before, after in pairs]))
    return curve
