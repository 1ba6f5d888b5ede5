"""Seconds to turn SQuAD's development questions into features, against transformers' example.

    python benchmarks/squad_preprocessing.py --data FOLDER [--processes 2] [--rounds 3]

FOLDER holds squad/validation.parquet. The stock way is a restatement of what the question-answering
example of transformers does before an evaluation: `Dataset.map` in so many processes, rows padded
to 384 tokens, offsets set to None outside the context. Ours gives the start and end of the answers
on top. Nothing is read from a cache, and the ways take turns. Prints a table of wall-clock seconds
and of processor seconds of all processes, which other load on the machine hardly changes.
"""

import argparse
import os
import statistics
import tempfile
import time
import uuid
from pathlib import Path

import datasets
from datasets import load_dataset

LENGTH, STRIDE = 384, 128


def stock_features(batch, tokenizer):
    """Windows padded to one length, with the example's id and the offsets of the context."""
    encoded = tokenizer(
        [question.lstrip() for question in batch["question"]],
        batch["context"],
        truncation="only_second",
        max_length=LENGTH,
        stride=STRIDE,
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
        padding="max_length",
    )
    source = encoded.pop("overflow_to_sample_mapping")
    encoded["example_id"] = [batch["id"][row] for row in source]
    for window, offsets in enumerate(encoded["offset_mapping"]):
        sequences = encoded.sequence_ids(window)
        encoded["offset_mapping"][window] = [
            pair if sequences[token] == 1 else None for token, pair in enumerate(offsets)
        ]
    return encoded


def stock(raw, tokenizer, processes):
    """As the example does it."""
    return raw.map(
        stock_features,
        fn_kwargs={"tokenizer": tokenizer},
        batched=True,
        num_proc=processes,
        remove_columns=raw.column_names,
        load_from_cache_file=False,
    )


def ours(raw, tokenizer, processes):
    """From checked rows to windows, as `smoothtune train` and `evaluate` do it."""
    import numpy as np

    from smoothtune.tasks.presets import TASKS

    task = TASKS["squad"]
    task.rows.check({"validation": raw}, "squad")
    examples = task.rows.select(raw, np.arange(len(raw)), None)
    return task.rows.tokenize(examples, tokenizer, LENGTH, uuid.uuid4().hex, processes)


def main():
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()

    from smoothtune.models.load import load_base

    datasets.disable_progress_bars()
    file = arguments.data / "squad" / "validation.parquet"
    with tempfile.TemporaryDirectory() as cache:
        datasets.config.HF_DATASETS_CACHE = Path(cache)
        raw = load_dataset("parquet", data_files=str(file), split="train", cache_dir=cache)
        ways = {
            f"transformers' example, {arguments.processes} processes": (stock, arguments.processes),
            "smoothtune, one process": (ours, None),
            f"smoothtune, {arguments.processes} processes": (ours, arguments.processes),
        }
        seconds = {name: [] for name in ways}
        processor = {name: [] for name in ways}
        for _ in range(arguments.rounds):
            for name, (way, processes) in ways.items():
                tokenizer = load_base("minilm").tokenizer
                start, used = time.perf_counter(), sum(os.times()[:4])
                rows = way(raw, tokenizer, processes)
                seconds[name].append(time.perf_counter() - start)
                processor[name].append(sum(os.times()[:4]) - used)
                assert len(rows) == 10_784 or len(raw) != 10_570
        print(
            f"{len(raw)} questions, {LENGTH} tokens, stride {STRIDE}, {arguments.rounds} rounds\n"
        )
        print("| | seconds, median | range | processor seconds |\n|---|---|---|---|")
        for name, values in seconds.items():
            middle = statistics.median(values)
            cpu = statistics.median(processor[name])
            print(f"| {name} | {middle:.1f} | {min(values):.1f} to {max(values):.1f} | {cpu:.1f} |")


if __name__ == "__main__":
    main()
