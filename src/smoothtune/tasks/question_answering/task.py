"""Extractive question answering: the answer is a span of the context."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch.nn.functional as F
from datasets import Dataset, Features, Sequence, Value
from torch import Tensor
from transformers import AutoModelForQuestionAnswering, PreTrainedTokenizerBase

from smoothtune.data.collator import Collator
from smoothtune.data.columns import rows_with_problems, text_problems
from smoothtune.data.summary import SplitReport, lengths_of
from smoothtune.errors import DataError
from smoothtune.tasks.base import Description, Kind, Spans, Task, TokenizeOptions, check_columns
from smoothtune.tasks.question_answering.spans import n_best_spans
from smoothtune.tasks.question_answering.squad import exact_match, normalize_answer, token_f1
from smoothtune.tasks.question_answering.windows import tokenize_windows

START, END, SCORE, NULL, LOG_PROBABILITY = range(5)
CHUNK = 1024  # windows decoded at once: all pairs of starts and ends are held in memory


class QuestionAnswering(Kind):
    """A row is a window of a context; predictions are the best span of each window, (N, 5).

    They are the span's first character and the one after its last, its score, the score of no
    answer, and the span's log-probability. Metrics are shares, 0 to 1.
    """

    auto_model = AutoModelForQuestionAnswering
    what = "question-answering model"
    label_inputs = ("start_positions", "end_positions")
    outputs = ("start_logits", "end_logits")
    max_seq_length = 384
    texts = ("question", "context")
    not_for = {
        "corruption": "damage of the context moves or destroys the answers themselves",
    }

    def describe(self, said: Description) -> Task:
        """See `squad_task`."""
        if said.text_columns or said.label_column:
            raise ValueError(
                "question answering reads the columns id, question, context and answers, as SQuAD "
                "has them: rename yours, and name no columns"
            )
        return squad_task(said.name, spans=Spans(**said.spans))

    def check(self, splits: Mapping[str, Dataset], task: Task, source: str) -> dict[str, None]:
        """Check texts, and that every answer stands where it is said to."""
        problems = []
        for name, split in splits.items():
            check_columns(split, (*self.texts, "answers"), f"{source}, split {name!r}")
            found = [p for column in self.texts for p in text_problems(column, split[column][:])]
            if not found:
                found = _answer_problems(split, task.spans.version_2_with_negative)
            problems += [f"{source}, split {name!r}: {problem}" for problem in found]
        if problems:
            raise DataError("\n".join(problems))
        return dict.fromkeys(splits)

    def select(self, raw: Dataset, task: Task, indices: np.ndarray, labels: None) -> Dataset:
        """Columns question, context, answers, answer_start, example_id."""
        rows = raw.select_columns([*self.texts, "answers"]).select(indices, keep_in_memory=True)
        answers = rows["answers"][:]
        return Dataset.from_dict(
            {
                "question": rows["question"][:],
                "context": rows["context"][:],
                "answers": [list(answer["text"]) for answer in answers],
                "answer_start": [list(answer["answer_start"]) for answer in answers],
                "example_id": indices,
            },
            features=Features(
                {
                    "question": Value("string"),
                    "context": Value("string"),
                    "answers": Sequence(Value("string")),
                    "answer_start": Sequence(Value("int32")),
                    "example_id": Value("int64"),
                }
            ),
        )

    def tokenize(
        self,
        examples: Dataset,
        task: Task,
        tokenizer: PreTrainedTokenizerBase,
        options: TokenizeOptions,
        content: str,
    ) -> Dataset:
        """See `tokenize_windows`."""
        return tokenize_windows(
            examples,
            tokenizer,
            task.spans,
            max_seq_length=options.max_seq_length,
            content=content,
            num_proc=options.num_proc,
        )

    def report(
        self,
        task: Task,
        examples: Dataset,
        rows: Dataset,
        tokenizer: PreTrainedTokenizerBase,
        max_seq_length: int,
    ) -> SplitReport:
        """Questions, windows, and the questions whose answer is in no window."""
        ids = np.asarray(rows["example_id"][:])
        held = len(np.unique(ids[np.asarray(rows["holds_answer"][:], bool)]))
        answerable = sum(bool(answers) for answers in examples["answers"][:])
        labels: dict[str, float] = {
            "windows": len(rows),
            "answers outside every window": answerable - held,
        }
        if task.spans.version_2_with_negative:
            labels["no answer"] = len(examples) - answerable
        return SplitReport(
            rows=len(examples),
            source_rows=len(examples),
            labels=labels,
            lengths=lengths_of(np.asarray(rows["length"][:])),
            truncated=int((np.unique(ids, return_counts=True)[1] > 1).sum()),
        )

    def collator(self, tokenizer: PreTrainedTokenizerBase) -> Collator:
        """Pads with the tokenizer."""
        return Collator(tokenizer, label_columns=self.label_inputs)

    def head(self, task: Task) -> dict[str, Any]:
        """Start and end."""
        return {"num_labels": 2}

    def fit_outputs(self, config: Any, task: Task) -> None:
        """Nothing to match."""

    def loss(
        self, task: Task, outputs: Mapping[str, Tensor], batch: Mapping[str, Tensor]
    ) -> Tensor:
        """Mean cross entropy of start and end."""
        start = F.cross_entropy(outputs["start_logits"], batch["start_positions"])
        return (start + F.cross_entropy(outputs["end_logits"], batch["end_positions"])) / 2

    def width(self, task: Task, rows: Dataset) -> int:
        """Five numbers."""
        return 5

    def predictions(
        self, task: Task, outputs: Mapping[str, np.ndarray], rows: Dataset
    ) -> np.ndarray:
        """The best span of every window; score -inf where a window has none."""
        starts, ends = outputs["start_logits"], outputs["end_logits"]
        parts = [
            _best(task, starts[i : i + CHUNK], ends[i : i + CHUNK], rows[i : i + CHUNK])
            for i in range(0, len(rows), CHUNK)
        ]
        return np.concatenate(parts)

    def example_ids(self, rows: Dataset) -> np.ndarray:
        """(E,) questions in the order of their first windows."""
        return np.asarray(list(dict.fromkeys(rows["example_id"][:])))

    def evidence_columns(self, task: Task) -> list[str]:
        """The score of every question."""
        return ["exact_match", "f1"]

    def evidence(self, task: Task, predictions: np.ndarray, rows: Dataset) -> np.ndarray:
        """(E, 2) the best score of a question over its accepted answers."""
        answered = self.answers(task, predictions, rows)
        gold = _first_rows(rows)
        accepted = rows.select_columns("answers")
        return np.array(
            [
                _scores(text, accepted[int(row)]["answers"])
                for text, row in zip(answered, gold, strict=True)
            ]
        )

    def answers(self, task: Task, predictions: np.ndarray, rows: Dataset) -> list[str]:
        """The answer to every question, "" for none, in the order of `example_ids`."""
        chosen, score, null = _over_windows(predictions, rows)
        contexts, spans = rows.select_columns("context"), predictions[chosen]
        none = ~np.isfinite(score)
        if task.spans.version_2_with_negative:
            none |= null - score > task.spans.null_score_diff_threshold
        return [
            ""
            if empty
            else contexts[int(row)]["context"][int(span[START]) : int(span[END])].strip()
            for row, span, empty in zip(chosen, spans, none, strict=True)
        ]

    def scores(self, task: Task, evidence: np.ndarray) -> dict[str, float]:
        """F1 and exact match."""
        return {"f1": float(evidence[:, 1].mean()), "exact_match": float(evidence[:, 0].mean())}

    def baseline(self, task: Task, rows: Dataset) -> float:
        """F1 of always giving the most frequent answer, or none, whichever is better."""
        accepted = rows.select_columns("answers").select(_first_rows(rows))["answers"][:]
        counts = Counter(t for texts in accepted for t in {*map(normalize_answer, texts)})
        constants = ["", *(text for text, _ in counts.most_common(1))]
        return max(float(np.mean([_scores(c, texts)[1] for texts in accepted])) for c in constants)

    def confidence(
        self, task: Task, predictions: np.ndarray, rows: Dataset
    ) -> tuple[np.ndarray, np.ndarray]:
        """Probability of the span within its window, and whether it is an exact match."""
        chosen, score, _ = _over_windows(predictions, rows)
        probability = np.where(np.isfinite(score), np.exp(predictions[chosen, LOG_PROBABILITY]), 0)
        return probability, self.evidence(task, predictions, rows)[:, 0]


def _answer_problems(split: Dataset, may_be_empty: bool) -> list[str]:
    def problem(answers: Any, context: str) -> str:
        if not isinstance(answers, dict) or not {"text", "answer_start"} <= set(answers):
            return "is no mapping with the lists text and answer_start"
        texts, starts = answers["text"], answers["answer_start"]
        if texts is None or starts is None or len(texts) != len(starts):
            return "does not have as many text as answer_start"
        if not texts and not may_be_empty:
            return "is empty; for unanswerable questions set version_2_with_negative"
        for text, start in zip(texts, starts, strict=True):
            if not text.strip():
                return "holds an empty text; leave the answer out"
            if context[start : start + len(text)] != text:
                return "holds a text that does not stand at its answer_start in the context"
        return ""

    answers = split["answers"][:]
    return rows_with_problems("answers", answers, map(problem, answers, split["context"][:]))


def _best(task: Task, starts: np.ndarray, ends: np.ndarray, rows: dict[str, list]) -> np.ndarray:
    first = np.asarray(rows["context_start"])
    count = np.array([len(offsets) for offsets in rows["offset_start"]])
    positions = np.arange(starts.shape[1])
    context = (positions >= first[:, None]) & (positions < (first + count)[:, None])
    cls_index, windows = np.asarray(rows["cls_index"]), np.arange(len(first))
    found = n_best_spans(
        starts,
        ends,
        context,
        cls_index,
        n_best_size=task.spans.n_best_size,
        max_answer_length=task.spans.max_answer_length,
    )
    characters = [
        (rows["offset_start"][row][start], rows["offset_end"][row][end]) if fits else (0, 0)
        for row, start, end, fits in zip(
            windows,
            found.start[:, 0] - first,
            found.end[:, 0] - first,
            np.isfinite(found.score[:, 0]),
            strict=True,
        )
    ]
    null = starts[windows, cls_index].astype(np.float64) + ends[windows, cls_index]
    return np.column_stack([characters, found.score[:, 0], null, found.log_probability[:, 0]])


def _first_rows(rows: Dataset) -> np.ndarray:
    """(E,) the first window of every question."""
    _, first = np.unique(np.asarray(rows["example_id"][:]), return_index=True)
    return np.sort(first)


def _over_windows(
    predictions: np.ndarray, rows: Dataset
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(E,) the window with the best span of each question, its score, and the least null score."""
    ids = np.asarray(rows["example_id"][:])
    _, first, group = np.unique(ids, return_index=True, return_inverse=True)
    question = first.argsort().argsort()[group]  # groups are by rising id, questions by place
    score, null = np.full(len(first), -np.inf), np.full(len(first), np.inf)
    np.maximum.at(score, question, predictions[:, SCORE])
    np.minimum.at(null, question, predictions[:, NULL])
    is_best = np.flatnonzero(predictions[:, SCORE] == score[question])
    chosen = np.full(len(first), len(ids))
    np.minimum.at(chosen, question[is_best], is_best)
    return chosen, score, null


def _scores(text: str, accepted: list[str]) -> tuple[float, float]:
    gold = [answer for answer in accepted if normalize_answer(answer)] or [""]
    return (
        max(exact_match(text, answer) for answer in gold),
        max(token_f1(text, answer) for answer in gold),
    )


def squad_task(name: str, *, hub_id: str | None = None, spans: Spans | None = None) -> Task:
    """Describes a data set in the form of SQuAD.

    Its columns are question, context, answers with the lists text and answer_start (in
    characters), and id.

    Args:
        name: name of the task in results and reports.
        hub_id: data set on the hub, ``org/name``.
        spans: how contexts are cut and answers read.

    Returns:
        The task.
    """
    return Task(
        name,
        ("question", "context"),
        "answers",
        (),
        ("f1", "exact_match"),
        hub_id,
        task_type="question-answering",
        spans=spans or Spans(),
    )
