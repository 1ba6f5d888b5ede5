"""Extractive question answering: the answer is a span of the context."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch.nn.functional as F
from datasets import Dataset, Value
from datasets import Sequence as ListOf
from torch import Tensor
from transformers import AutoModelForQuestionAnswering, PreTrainedTokenizerBase

from smoothtune.data.columns import rows_with_problems, typed_columns
from smoothtune.data.tokenizing import Encoder
from smoothtune.tasks.base import Task
from smoothtune.tasks.head import Head
from smoothtune.tasks.question_answering.spans import (
    END,
    LOG_PROBABILITY,
    NO_ANSWER,
    START,
    best_spans,
    best_windows,
)
from smoothtune.tasks.question_answering.squad import best_scores, normalize_answer
from smoothtune.tasks.question_answering.windows import window_encoder
from smoothtune.tasks.reader import Reader
from smoothtune.tasks.scorer import Scorer

DECODED_AT_ONCE = 1024  # windows: all pairs of starts and ends are held in memory


@dataclass(frozen=True)
class WindowReader(Reader):
    """A row is a window of a context.

    Data is in the form of SQuAD: columns question, context, and answers with the lists text and
    answer_start (in characters).
    """

    input_columns = ("question", "context")
    when_too_long = "read in overlapping windows"

    task: QuestionAnswering

    def check_description(self) -> None:
        """The columns are those of SQuAD."""
        if self.columns != ("question", "context", "answers"):
            raise ValueError(
                "question answering reads the columns id, question, context and answers, as SQuAD "
                "has them: rename yours, and name no columns"
            )

    def label_names(self, train: Dataset, where: str) -> tuple[str, ...]:
        """None: answers are spans."""
        return ()

    def _check_rows(self, split: Dataset) -> tuple[None, list[str]]:
        """No labels; every answer must be found at its answer_start."""
        problems = self._input_problems(split)
        return None, problems or _answer_problems(split, self.task.version_2_with_negative)

    def select(self, raw: Dataset, indices: np.ndarray, labels: None) -> Dataset:
        """Columns question, context, answers (none if `raw` has none), answer_start, example_id."""
        columns = [column for column in self.columns if column in raw.column_names]
        rows = raw.select_columns(columns).select(indices, keep_in_memory=True)
        answers: list[dict[str, list]] = [{"text": [], "answer_start": []}] * len(rows)
        if self.task.label_column in columns:
            answers = rows["answers"][:]
        starts = [list(answer["answer_start"]) for answer in answers]
        return typed_columns(
            question=(Value("string"), rows["question"][:]),
            context=(Value("string"), rows["context"][:]),
            answers=(ListOf(Value("string")), [list(answer["text"]) for answer in answers]),
            answer_start=(ListOf(Value("int32")), starts),
            example_id=(Value("int64"), indices),
        )

    def encoder(self, tokenizer: PreTrainedTokenizerBase, max_seq_length: int) -> Encoder:
        """Overlapping windows of the contexts, see `window_encoder`."""
        return window_encoder(tokenizer, max_seq_length, self.task.doc_stride)

    def label_counts(self, examples: Dataset, rows: Dataset) -> dict[str, float]:
        """Windows, questions whose answer is in no window, and questions without answer."""
        ids, answered = np.asarray(rows["example_id"][:]), np.asarray(rows["holds_answer"][:], bool)
        answerable = sum(bool(answers) for answers in examples["answers"][:])
        counts: dict[str, float] = {
            "windows": len(rows),
            "answers outside every window": answerable - len(np.unique(ids[answered])),
        }
        if self.task.version_2_with_negative:
            counts["no answer"] = len(examples) - answerable
        return counts


@dataclass(frozen=True)
class SpanHead(Head):
    """Predictions are the best span of each window, see `best_spans`."""

    label_inputs = ("start_positions", "end_positions")
    outputs = ("start_logits", "end_logits")

    task: QuestionAnswering

    def config(self) -> dict[str, Any]:
        """Two outputs per token: start and end."""
        return {"num_labels": 2}

    def fit_outputs(self, config: Any) -> None:
        """All models have the same outputs."""

    def loss(self, outputs: Mapping[str, Tensor], batch: Mapping[str, Tensor]) -> Tensor:
        """Mean cross entropy of start and end."""
        start = F.cross_entropy(outputs["start_logits"], batch["start_positions"])
        return (start + F.cross_entropy(outputs["end_logits"], batch["end_positions"])) / 2

    def prediction_width(self, rows: Dataset) -> int:
        """The six columns of `best_spans`."""
        return 6

    def predictions(self, outputs: Mapping[str, np.ndarray], rows: Dataset) -> np.ndarray:
        """The best span of every window."""
        starts = range(0, len(rows), DECODED_AT_ONCE)
        parts = [slice(start, start + DECODED_AT_ONCE) for start in starts]
        spans = [
            best_spans(
                outputs["start_logits"][part],
                outputs["end_logits"][part],
                rows[part],
                n_best_size=self.task.n_best_size,
                max_answer_length=self.task.max_answer_length,
            )
            for part in parts
        ]
        return np.concatenate(spans)


@dataclass(frozen=True)
class SpanScorer(Scorer):
    """The statistics of a question are its metrics, shares from 0 to 1."""

    num_label_statistics = 0

    task: QuestionAnswering

    def example_ids(self, rows: Dataset) -> np.ndarray:
        """(E,) questions in the order of their first windows."""
        return np.asarray(list(dict.fromkeys(rows["example_id"][:])))

    def statistic_names(self) -> list[str]:
        """The score of every question."""
        return ["exact_match", "f1"]

    def example_statistics(self, predictions: np.ndarray, rows: Dataset) -> np.ndarray:
        """(E, 2) the best score of a question over its accepted answers."""
        pairs = zip(self.answers(predictions, rows), _of_questions(rows, "answers"), strict=True)
        return np.array([best_scores(*pair) for pair in pairs])

    def answers(self, predictions: np.ndarray, rows: Dataset) -> list[str]:
        """The answer to every question, "" for none, in the order of `example_ids`."""
        windows, is_empty = self._best(predictions, rows)
        contexts, spans = _of_questions(rows, "context"), predictions[windows]
        return [
            "" if empty else context[int(span[START]) : int(span[END])].strip()
            for context, span, empty in zip(contexts, spans, is_empty, strict=True)
        ]

    def _best(self, predictions: np.ndarray, rows: Dataset) -> tuple[np.ndarray, np.ndarray]:
        """(E,) the window of the best span of every question, and whether there is no answer."""
        windows, score, null = best_windows(predictions, np.asarray(rows["example_id"][:]))
        is_empty = ~np.isfinite(score)
        if self.task.version_2_with_negative:
            is_empty |= null - score > self.task.null_score_diff_threshold
        return windows, is_empty

    def scores(self, statistics: np.ndarray) -> dict[str, float]:
        """F1 and exact match."""
        exact_match, f1 = statistics.T
        return {"f1": float(f1.mean()), "exact_match": float(exact_match.mean())}

    def baseline(self, rows: Dataset) -> float:
        """F1 of always predicting the most frequent answer, or no answer, whichever is better."""
        accepted = _of_questions(rows, "answers")
        counts = Counter(t for texts in accepted for t in {*map(normalize_answer, texts)})
        constants = ["", *(text for text, _ in counts.most_common(1))]
        return max(
            float(np.mean([best_scores(constant, texts)[1] for texts in accepted]))
            for constant in constants
        )

    def confidence(self, predictions: np.ndarray, rows: Dataset) -> tuple[np.ndarray, np.ndarray]:
        """Probability of the span, or of no answer, within its window, and its exact match."""
        windows, is_empty = self._best(predictions, rows)
        span, no_answer = predictions[windows][:, [LOG_PROBABILITY, NO_ANSWER]].T
        if not self.task.version_2_with_negative:  # an empty answer is the lack of any span
            no_answer = np.full(len(windows), -np.inf)
        probability = np.exp(np.where(is_empty, no_answer, span))
        return probability, self.example_statistics(predictions, rows)[:, 0]


@final
@dataclass(frozen=True)
class QuestionAnswering(Task):
    """A span of a context answers a question."""

    task_type = "question-answering"
    reader_class = WindowReader
    head_class = SpanHead
    scorer_class = SpanScorer
    auto_model = AutoModelForQuestionAnswering
    model_noun = "question-answering model"
    peft_type = "QUESTION_ANS"
    hub_task = "question-answering"
    default_max_seq_length = 384
    similar_lengths = False
    unsupported_parts = {
        "corruption": "corrupting the context moves or destroys the answers",
        "substitution": "exchanged words may be those of the answer",
    }

    text_columns: tuple[str, ...] = ("question", "context")
    label_column: str = "answers"
    label_names: tuple[str, ...] | None = ()
    doc_stride: int = 128
    """Tokens that two windows of one context share."""
    n_best_size: int = 20
    """Number of best start and end tokens that are combined."""
    max_answer_length: int = 30
    """Longest answer in tokens."""
    version_2_with_negative: bool = False
    """Whether questions may have no answer, as in SQuAD 2.0."""
    null_score_diff_threshold: float = 0.0
    """Predict no answer if its score is above the best answer's by more than this."""

    def default_metrics(self, label_names: tuple[str, ...]) -> tuple[str, ...]:
        """F1 and exact match, as in SQuAD."""
        return ("f1", "exact_match")


def _of_questions(rows: Dataset, column: str) -> list[Any]:
    """(E,) the column's value in the first window of every question, in the windows' order."""
    _, first = np.unique(np.asarray(rows["example_id"][:]), return_index=True)
    return rows.select_columns(column).select(np.sort(first), keep_in_memory=True)[column][:]


def _answer_problems(split: Dataset, may_be_empty: bool) -> list[str]:
    def problem(answers: Any, context: str) -> str:
        mapping = answers if isinstance(answers, dict) else {}
        texts, starts = mapping.get("text"), mapping.get("answer_start")
        if not isinstance(texts, list) or not isinstance(starts, list):
            return "is not a mapping with the lists text and answer_start"
        if len(texts) != len(starts):
            return "does not have as many text as answer_start"
        if not texts and not may_be_empty:
            return "is empty; for unanswerable questions set version_2_with_negative"
        for text, start in zip(texts, starts, strict=True):
            if not isinstance(text, str) or not text.strip():
                return "holds an empty text, or none at all; leave the answer out"
            if type(start) is not int or start < 0 or context[start : start + len(text)] != text:
                return "holds a text that is not at its answer_start, in characters of the context"
        return ""

    answers = split["answers"][:]
    return rows_with_problems(split, "answers", answers, map(problem, answers, split["context"][:]))
