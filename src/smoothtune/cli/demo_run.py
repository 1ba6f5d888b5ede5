"""One run of the demo: train, and measure with and without noise. Imports torch."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from tqdm import tqdm
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from smoothtune.config.run import RunConfig
from smoothtune.core.forward import ForwardPass
from smoothtune.data.demo_sentences import Row
from smoothtune.functional.noise import gaussian
from smoothtune.run.train import fit

NOISE_RATIO = 0.3
"""Norm of the noise relative to that of each word embedding."""


def train_and_measure(config: RunConfig, rows: list[Row]) -> tuple[float, float, float, float]:
    """Train a run, and keep nothing of it but its figures.

    Args:
        config: the run.
        rows: ``sentence`` and ``label`` of its validation examples.

    Returns:
        Accuracy, Brier score, accuracy under noise, and seconds of training.
    """
    torch.set_num_threads(1)
    tqdm.set_lock(threading.RLock())  # its own is a semaphore, which the end of the process leaks
    folder = Path(config.output_dir)
    trained = fit(config, folder, resumable=False, console=Console(quiet=True))
    metrics = trained.result.metrics
    noisy = noisy_accuracy(trained.model, trained.base.tokenizer, rows, NOISE_RATIO)
    seconds = trained.result.cost.train_seconds
    return metrics["accuracy"], metrics["brier"], noisy, seconds


def noisy_accuracy(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, rows: list[Row], ratio: float
) -> float:
    """Accuracy of a model with Gaussian noise on its word embeddings.

    Args:
        model: a trained classifier.
        tokenizer: its tokenizer.
        rows: ``sentence`` and ``label`` of each example.
        ratio: norm of the Gaussian noise relative to each token's embedding.

    Returns:
        Share of correct predictions, 0 to 1; the noise is the same at every call.
    """
    model.eval()
    labels: Any = model.config.id2label
    correct = 0
    with torch.no_grad(), torch.random.fork_rng():
        torch.manual_seed(0)
        for start in range(0, len(rows), 64):
            chunk = rows[start : start + 64]
            texts = [row["sentence"] for row in chunk]
            batch = dict(tokenizer(texts, padding=True, return_tensors="pt"))
            clean = ForwardPass(model, batch, points=["word"])
            noise = gaussian(clean.embeddings("word"), clean.mask, ratio)
            predicted = clean.at(noise, "word").logits.argmax(-1).tolist()
            names = [labels[index] for index in predicted]
            correct += sum(name == row["label"] for name, row in zip(names, chunk, strict=True))
    return correct / len(rows)
