"""Windows of long contexts, and the answer's place among their tokens."""

import os
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from datasets import Dataset, load_dataset
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import pre_tokenizers, processors

from helpers.tiny_folder import tiny_bert, tiny_gpt2
from smoothtune.errors import DataError, ModelError
from smoothtune.models.load import load_base
from smoothtune.tasks.question_answering import windows as module
from smoothtune.tasks.question_answering.task import QuestionAnswering
from smoothtune.tasks.question_answering.windows import locate

CONTEXT = "the film was very good and the plot was not bad"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return load_base(str(tiny_bert(tmp_path_factory.mktemp("bert")))).tokenizer


def examples(*rows):
    """Rows of (question, context, answers, starts)."""
    questions, contexts, answers, starts = zip(*rows, strict=True)
    columns = {
        "question": questions,
        "context": contexts,
        "answers": answers,
        "answer_start": starts,
        "example_id": range(len(rows)),
    }
    return Dataset.from_dict({name: list(values) for name, values in columns.items()})


def windows(tokenizer, *rows, length=32, stride=2):
    task = QuestionAnswering("spans", doc_stride=stride)
    return task.rows.tokenize(examples(*rows), tokenizer, length, f"{rows} {stride}")


def test_a_short_context_is_one_window(tokenizer) -> None:
    start = CONTEXT.index("very good")
    (row,) = windows(tokenizer, ("the plot", CONTEXT, ["very good"], [start]))
    assert row["length"] == len(row["input_ids"]) == 1 + 2 + 1 + 11 + 1
    assert row["context_start"] == 4
    words = tokenizer.convert_ids_to_tokens(
        row["input_ids"][row["start_positions"] : row["end_positions"] + 1]
    )
    assert words == ["very", "good"]
    assert row["holds_answer"]
    texts = [CONTEXT[a:b] for a, b in zip(row["offset_start"], row["offset_end"], strict=True)]
    assert texts == CONTEXT.split()


def test_every_window_points_at_the_answer_or_at_the_first_token(tokenizer) -> None:
    start = CONTEXT.index("plot")
    rows = windows(tokenizer, ("the plot", CONTEXT, ["plot was"], [start]), length=11, stride=3)
    held = 0
    for row in rows:
        tokens = tokenizer.convert_ids_to_tokens(row["input_ids"])
        found = tokens[row["start_positions"] : row["end_positions"] + 1]
        inside = "plot was" in " ".join(tokens[row["context_start"] : -1])
        assert found == (["plot", "was"] if inside else ["[CLS]"])
        assert row["holds_answer"] == inside
        held += inside
    assert len(rows) == 3  # 11 words in windows of 6 that share 3: 0-5, 3-8, 6-10
    assert held == 2


def test_a_context_is_kept_once(tokenizer) -> None:
    """A thousand contracts, each in every one of its windows, are more than Arrow's 2 GiB."""
    rows = windows(tokenizer, *[("plot", CONTEXT, [], [])] * 2, length=11, stride=3)
    assert rows["context"][:] == [CONTEXT, ""] * 2


def test_an_answer_longer_than_a_window_is_in_none(tokenizer) -> None:
    rows = windows(tokenizer, ("plot", CONTEXT, [CONTEXT[:44]], [0]), length=11, stride=3)
    assert not any(rows["holds_answer"][:])
    assert set(rows["start_positions"][:]) == {0}


def test_no_answer_points_at_the_first_token(tokenizer) -> None:
    (row,) = windows(tokenizer, ("plot", CONTEXT, [], []))
    assert (row["start_positions"], row["end_positions"], row["holds_answer"]) == (0, 0, False)


def test_a_question_that_leaves_no_room_is_named(tokenizer) -> None:
    rows = [("film", CONTEXT, [], []), ("good " * 8, CONTEXT, [], [])]
    with pytest.raises(DataError, match=r"row 1: the question has 8 tokens.*lower doc_stride"):
        windows(tokenizer, *rows, length=14, stride=3)
    assert windows(tokenizer, *rows, length=15, stride=3)


@pytest.mark.parametrize(("length", "stride"), [(32, 2), (11, 3), (9, 2)])
@pytest.mark.parametrize("pieces", ["words", "bytes", "no specials"])
def test_windows_are_those_of_a_call_of_the_tokenizer(pieces, length, stride, tokenizer) -> None:
    if pieces != "words":
        tokenizer = type(tokenizer).from_pretrained(tokenizer.name_or_path)
        backend = tokenizer.backend_tokenizer
        if pieces == "bytes":  # as RoBERTa cuts and joins
            backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
            backend.post_processor = processors.RobertaProcessing(("[SEP]", 2), ("[CLS]", 1))
        else:
            backend.post_processor = processors.TemplateProcessing(single="$A", pair="$A $B:1")
    tokenizer.model_input_names = ["input_ids", "token_type_ids", "attention_mask"]
    contexts = [CONTEXT, "a film", CONTEXT, " good  plot"]
    questions = ["film", " the plot", "was", "a"]
    rows = windows(
        tokenizer,
        *((q, c, [], []) for q, c in zip(questions, contexts, strict=True)),
        length=length,
        stride=stride,
    )
    called = tokenizer(
        [question.lstrip() for question in questions],
        contexts,
        truncation="only_second",
        max_length=length,
        stride=stride,
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
    )
    assert rows["example_id"][:] == called["overflow_to_sample_mapping"]
    for name in tokenizer.model_input_names:
        assert rows[name][:] == called[name]
    for number, row in enumerate(rows):
        inside = [sequence == 1 for sequence in called.sequence_ids(number)]
        offsets = np.array(called["offset_mapping"][number])[inside]
        assert row["context_start"] == inside.index(True)
        assert list(zip(row["offset_start"], row["offset_end"], strict=True)) == [
            *map(tuple, offsets)
        ]


def test_left_padding_is_refused(tmp_path) -> None:
    left = load_base(str(tiny_gpt2(tmp_path))).tokenizer
    left.padding_side = "left"
    with pytest.raises(ModelError, match="pads on the right"):
        windows(left, ("film", CONTEXT, [], []))


def test_workers_give_the_same_rows(tokenizer, monkeypatch) -> None:
    monkeypatch.setattr("smoothtune.tasks.question_answering.windows.MIN_CACHED_QUESTIONS", 1)
    rows = [("plot", CONTEXT, ["film"], [4]), ("film", CONTEXT, ["bad"], [44])] * 4
    task = QuestionAnswering("spans", doc_stride=2)
    alone, several = (
        task.rows.tokenize(examples(*rows), tokenizer, 9, f"workers {count}", count)
        for count in (None, 2)
    )
    assert alone.to_dict() == several.to_dict()


def test_a_large_split_is_tokenized_once(tokenizer, monkeypatch) -> None:
    monkeypatch.setattr("smoothtune.tasks.question_answering.windows.MIN_CACHED_QUESTIONS", 1)
    encode, calls = module._encode, []
    monkeypatch.setattr(module, "_encode", lambda *x: calls.append(len(x[0])) or encode(*x))
    rows = [("plot", CONTEXT, ["film"], [4]), ("film", CONTEXT, ["bad"], [44])] * 4
    first = windows(tokenizer, *rows).to_dict()
    assert calls == [1, 8]  # one row shows the tokenizer's state
    assert windows(tokenizer, *rows).to_dict() == first
    assert calls == [1, 8, 1]
    assert len(windows(tokenizer, *rows, stride=3)) == 8
    assert calls == [1, 8, 1, 1, 8]


@st.composite
def cut_texts(draw):
    """A text cut into tokens with gaps, and a part of it."""
    text = draw(st.text("ab ", min_size=3, max_size=20))
    edges = sorted(draw(st.sets(st.integers(0, len(text)), min_size=2, max_size=8)))
    tokens = [(a, b) for a, b in zip(edges, edges[1:], strict=False) if text[a:b].strip()]
    start = draw(st.integers(0, len(text) - 1))
    end = draw(st.integers(start + 1, len(text)))
    return text, tokens, start, text[start:end]


@given(cut_texts())
def test_the_least_tokens_that_cover_an_answer(drawn) -> None:
    text, tokens, start, answer = drawn
    if not tokens or not answer.strip():
        return
    begins, ends = np.array(tokens).T
    place = locate(answer, start, begins, ends)
    inside = [i for i in range(start, start + len(answer)) if not text[i].isspace()]
    used = [n for n, (a, b) in enumerate(tokens) if a <= inside[-1] and b > inside[0]]
    if used:
        assert place == (used[0], used[-1], True)
    else:
        assert not place.is_complete


@pytest.mark.slow
@pytest.mark.skipif("SMOOTHTUNE_DATA" not in os.environ, reason="SMOOTHTUNE_DATA is not set")
@pytest.mark.parametrize(("max_seq_length", "doc_stride"), [(384, 128), (96, 16)])
def test_every_answer_of_squad_is_mapped_exactly(max_seq_length, doc_stride) -> None:
    """All 10,570 development questions: in each window the answer's tokens, or the first token."""
    file = Path(os.environ["SMOOTHTUNE_DATA"]) / "squad" / "validation.parquet"
    raw = load_dataset("parquet", data_files=str(file), split="train")
    assert len(raw) == 10_570
    tokenizer = load_base("minilm").tokenizer
    rows = windows(
        tokenizer,
        *(
            (
                row["question"],
                row["context"],
                row["answers"]["text"],
                row["answers"]["answer_start"],
            )
            for row in raw
        ),
        length=max_seq_length,
        stride=doc_stride,
    )
    seen, held = Counter(), set()
    for row in rows:
        answers = raw[row["example_id"]]["answers"]
        text, start = answers["text"][0], answers["answer_start"][0]
        begins, ends = row["offset_start"], row["offset_end"]
        inside = begins[0] <= start and start + len(text) <= ends[-1]
        assert inside == row["holds_answer"]
        if not inside:
            assert row["start_positions"] == row["end_positions"] == 0
            continue
        held.add(row["example_id"])
        first = row["start_positions"] - row["context_start"]
        last = row["end_positions"] - row["context_start"]
        # These tokens cover the answer, and with one less at either end they would not.
        assert begins[first] <= start < ends[first]
        assert begins[last] < start + len(text) <= ends[last]
        recovered = raw[row["example_id"]]["context"][begins[first] : ends[last]]
        assert text in recovered
        seen["exact" if recovered == text else "widened to whole tokens"] += 1
    assert sum(seen.values()) >= len(held)
    # Two windows share doc_stride tokens, so only an answer with more of them can be in none.
    outside = [row["answers"]["text"][0] for row in raw.select(sorted({*range(len(raw))} - held))]
    assert len(held) + len(outside) == 10_570
    lengths = [len(tokenizer(text, add_special_tokens=False)["input_ids"]) for text in outside]
    assert all(length > doc_stride for length in lengths)
    assert bool(outside) == (doc_stride == 16)
