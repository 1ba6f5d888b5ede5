"""Adversarial word substitutions: the main metric when the k worst words are exchanged.

A greedy black-box attack: words are ranked by how much the loss rises when one is masked; one after
another is exchanged for the neighbor in the model's own word embeddings that raises the loss most,
until the prediction is wrong or k words were tried; a word that no neighbor makes worse stays. Only
words of one token are exchanged, for such words. Meaning and grammar are not checked, so a flip may
be right: compare models, not with 1.

Reference: the ranking and the greedy order are those of Jin, Jin, Zhou, Szolovits: Is BERT Really
Robust?, AAAI 2020, whose synonyms and checks need models of their own.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from datasets import Dataset
from scipy.special import log_softmax
from transformers import PreTrainedTokenizerBase

from smoothtune.evaluation.disturbance import CHANGED, disturbance_curve
from smoothtune.evaluation.predictor import Predictor
from smoothtune.functional.neighbors import nearest
from smoothtune.nn.architecture import embedding_table
from smoothtune.report.curves import Curve
from smoothtune.tasks.metrics import binary_cross_entropy

MAX_WORDS, NUM_NEIGHBORS, MAX_RANKED = 3, 8, 32
"""Words that may be exchanged, neighbors tried for each, words ranked: at most 1 + 32 + 3 * 8
queries for an example."""
CONTINUES, BEGINS = "##", ("Ġ", "▁")  # marks of WordPiece; of byte-level BPE and SentencePiece


class Vocabulary(NamedTuple):
    """Which tokens are words."""

    words: np.ndarray
    """(V,) tokens that can be a whole word: letters only, and no special token."""
    parts: np.ndarray
    """(V,) tokens that go on with the word before them."""


def vocabulary(tokenizer: PreTrainedTokenizerBase, vocab_size: int) -> Vocabulary:
    """Sort the tokens that the model has embeddings for."""
    names = {i: name for name, i in tokenizer.get_vocab().items() if i < vocab_size}
    special = set(tokenizer.all_special_ids)
    marked = [mark for mark in BEGINS if any(name.startswith(mark) for name in names.values())]
    words, parts = (np.zeros(vocab_size, dtype=bool) for _ in range(2))
    for i, name in names.items():
        if i in special:
            continue
        begins = name.startswith(tuple(marked)) if marked else not name.startswith(CONTINUES)
        text = name[1:] if marked and begins else name
        words[i] = begins and text.isalpha()
        parts[i] = text.isalnum() if marked and not begins else name.startswith(CONTINUES)
    return Vocabulary(words, parts)


def word_positions(ids: Sequence[int], vocab: Vocabulary) -> list[int]:
    """Positions of words of one token."""
    continued = np.append(vocab.parts[list(ids)], False)[1:]
    return np.flatnonzero(vocab.words[list(ids)] & ~continued).tolist()


def substitution_curve(
    predictor: Predictor,
    rows: Dataset,
    *,
    vocab_size: int,
    max_words: int = MAX_WORDS,
    num_neighbors: int = NUM_NEIGHBORS,
) -> Curve:
    """Main metric against the number of words that the attack has tried to exchange.

    Returns:
        The metric, the `area` under it, `queries`, forward passes for an example, and of the
        examples that are attacked the share that has a word to exchange.
    """
    attack = _Attack(predictor, rows, vocabulary(predictor.tokenizer, vocab_size), num_neighbors)
    attacked, order = attack.standing(), attack.ranking()

    def scores(tried: Sequence[float]) -> Iterator[list[float]]:
        for count in map(int, tried):
            if count:
                attack.exchange(count, order)
            yield [predictor.main_metric(attack.predictions, rows)]

    curve = disturbance_curve(
        scores,
        predictor.task.main_metric,
        "with adversarial words",
        x_label="words tried",
        line="word substitutions",
        levels=range(max_words + 1),
    )
    curve.numbers["queries"] = attack.queries / len(rows)
    if attacked.any():
        curve.numbers[CHANGED] = sum(map(bool, order)) / int(attacked.sum())
    return curve


class _Attack:
    """Texts as they are exchanged, with the predictions and losses of the model."""

    def __init__(
        self, predictor: Predictor, rows: Dataset, vocab: Vocabulary, num_neighbors: int
    ) -> None:
        self.predictor, self.rows, self.vocab = predictor, rows, vocab
        self.is_regression = predictor.task.head.problem_type == "regression"
        self.ids = [list(row) for row in rows["input_ids"][:]]
        self.labels, self.queries = np.asarray(rows["labels"][:]), 0
        everyone = np.arange(len(rows))
        self.predictions, self.losses = self._query("texts as they are", everyone, self.ids)
        self.neighbors = self._neighbors(num_neighbors)

    def _neighbors(self, count: int) -> dict[int, list[int]]:
        """Words in the place of each word of the texts."""
        table = embedding_table(self.predictor.model).detach().float()
        candidates = torch.from_numpy(self.vocab.words).to(table.device)
        count = min(count, int(candidates.sum()) - 1)
        words = sorted({ids[i] for ids in self.ids for i in word_positions(ids, self.vocab)})
        if not words or count < 1:
            return {}
        token_ids = torch.tensor(words, device=table.device)
        neighbors = nearest(token_ids, table, count, candidates=candidates, metric="cosine")
        return dict(zip(words, neighbors.tolist(), strict=True))

    def _query(
        self, title: str, owners: Sequence[int] | np.ndarray, texts: list[list[int]]
    ) -> tuple[np.ndarray, np.ndarray]:
        """(M, W) predictions for texts, and (M,) their losses by the labels of `owners`."""
        rows = self.rows.select(owners, keep_in_memory=True).remove_columns("input_ids")
        rows = rows.add_column("input_ids", texts)
        self.predictor.progress.start(title, self.predictor.num_batches(rows))
        self.queries += len(rows)
        predictions, labels = self.predictor.predict(rows), self.labels[owners]
        if self.is_regression:
            return predictions, (predictions[:, 0] - labels) ** 2
        if labels.ndim == 2:
            return predictions, binary_cross_entropy(predictions, labels).mean(axis=1)
        losses = -log_softmax(predictions, axis=1)[np.arange(len(labels)), labels]
        return predictions, losses

    def standing(self) -> np.ndarray:
        """(N,) examples to attack: those that are right, in all labels; all of a regression."""
        if self.is_regression:
            return np.ones(len(self.rows), dtype=bool)
        if self.labels.ndim == 2:
            right: np.ndarray = ((self.predictions > 0) == self.labels).all(axis=1)
            return right
        return self.predictions.argmax(1) == self.labels

    def ranking(self) -> list[list[int]]:
        """Positions of every example's words, the one first that raises the loss most if masked."""
        tokenizer, standing = self.predictor.tokenizer, self.standing()
        names = (tokenizer.mask_token_id, tokenizer.unk_token_id, tokenizer.eos_token_id)
        mask = next(i for i in (*names, tokenizer.pad_token_id) if i is not None)
        positions: list[list[int]] = []
        owners: list[int] = []
        texts: list[list[int]] = []
        for row, ids in enumerate(self.ids):
            draw = np.random.default_rng([self.predictor.seed, row])
            words = word_positions(ids, self.vocab) if standing[row] and self.neighbors else []
            positions.append(sorted(draw.permutation(words)[:MAX_RANKED].tolist()))
            owners += [row] * len(positions[row])
            texts += [_exchanged(ids, position, mask) for position in positions[row]]
        if not owners:
            return positions
        rises = iter(self._query("importance of words", owners, texts)[1])
        return [
            [position for _, position in sorted((-next(rises), position) for position in words)]
            for words in positions
        ]

    def exchange(self, number: int, ranking: list[list[int]]) -> None:
        """Exchange the word of this rank, from 1, in texts that stand, where the loss rises."""
        standing = self.standing()
        owners: list[int] = []
        texts: list[list[int]] = []
        for row, words in enumerate(ranking):
            if standing[row] and number <= len(words):
                ids, position = self.ids[row], words[number - 1]
                others = self.neighbors[ids[position]]
                owners += [row] * len(others)
                texts += [_exchanged(ids, position, other) for other in others]
        if not owners:
            return
        predictions, losses = self._query(f"word {number}", owners, texts)
        for index, row in enumerate(owners):
            if losses[index] > self.losses[row]:
                self.losses[row], self.ids[row] = losses[index], texts[index]
                self.predictions[row] = predictions[index]


def _exchanged(ids: list[int], position: int, token: int) -> list[int]:
    return [*ids[:position], token, *ids[position + 1 :]]
