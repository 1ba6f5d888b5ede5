"""Does a cheap proxy hold the bound? Ratios of two gradients, whole and of a part of the model.

With the clean and the perturbed rows in one pass there would be one backward pass, if the ratio of
the term's gradient to the task's could be had from a part of it: the states at the top, or the
weights of one block. In every update of a training the exact ratio is taken, and those of the
parts. A proxy is used as it would be: its mean factor to the exact ratio is measured in every tenth
update, and holds for the next ones. What would have been applied is the exact ratio of the weight
that the proxy allows, at a share of 0.3 and a bound of 1.

    SMOOTHTUNE_DATA=... python benchmarks/proxy.py [--rows 500] [--epochs 8] [--tasks cola mrpc]
"""

from __future__ import annotations

import argparse
import math
import os
from collections import defaultdict
from pathlib import Path
from statistics import quantiles, stdev

import pandas as pd
import torch
from bound import BATCH, encode, model_folder, padded
from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification, AutoTokenizer, logging

import smoothtune.core.loss_sum as loss_sum
from smoothtune import LNSR, R3F, VAT, Objective

TERMS = {"lnsr": LNSR, "r3f": R3F, "vat": VAT}
SHARE, BOUND, EVERY = 0.3, 1.0, 10


class Norms:
    """Of each gradient that the sum of losses takes aside: the task's is the last of an update."""

    def __init__(self, model: nn.Module):
        self.blocks = list(model.base_model.encoder.layer)
        self.names = {id(weight): name for name, weight in model.named_parameters()}
        self.found: list[dict[str, float]] = []
        self._top: list[Tensor] = []
        self.blocks[-1].register_forward_hook(self._watch)
        self._taken = loss_sum.gradients_of
        loss_sum.gradients_of = self.taken  # type: ignore[assignment]

    def _watch(self, module: nn.Module, inputs: object, output: Tensor | tuple) -> None:
        states = output[0] if isinstance(output, tuple) else output
        if states.requires_grad:
            states.register_hook(lambda gradient: self._top.append(gradient.square().sum()))

    def taken(self, loss: Tensor, weights: list, *rest: object, **named: object) -> list:
        """The gradients, with their norms written down."""
        self._top.clear()
        parts = self._taken(loss, weights, *rest, **named)  # type: ignore[arg-type]
        squares: dict[str, float] = defaultdict(float)
        squares["states at the top"] = sum(float(square) for square in self._top)
        for weight, part in zip(weights, parts, strict=True):
            if part is None:
                continue
            square = float(part.square().sum())
            squares["all weights"] += square
            for index in {0, len(self.blocks) // 2, len(self.blocks) - 1}:
                if f"encoder.layer.{index}." in self.names.get(id(weight), ""):
                    squares[f"block {index}"] += square
        self.found.append({name: math.sqrt(square) for name, square in squares.items()})
        return parts

    def close(self) -> None:
        """As before."""
        loss_sum.gradients_of = self._taken  # type: ignore[assignment]


def train(arguments: argparse.Namespace, task: str, term: str) -> list[dict[str, float]]:
    """Ratios of an update, by the part that they are of."""
    torch.manual_seed(0)
    folder = model_folder(arguments.model)
    rows = pd.read_parquet(Path(os.environ["SMOOTHTUNE_DATA"], task, "train.parquet"))
    rows = rows.sample(arguments.rows, random_state=0)
    ids = encode(AutoTokenizer.from_pretrained(folder), rows, task)
    labels = torch.tensor(list(rows["label"]))
    model = AutoModelForSequenceClassification.from_pretrained(folder, num_labels=2).train()
    batches = [
        batch
        for _ in range(arguments.epochs)
        for batch in torch.randperm(len(ids)).split(BATCH)
        if len(batch) == BATCH
    ]
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5, weight_decay=0, fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: 1 - i / len(batches))
    objective = Objective(TERMS[term]()).bind(model, optimizer, len(batches))
    norms, ratios = Norms(model), []
    for batch in batches:
        inputs = padded(ids, batch.tolist(), 0) | {"labels": labels[batch]}
        norms.found.clear()
        objective(model, inputs).backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        *_, of_term, of_task = norms.found
        ratios.append({n: of_term[n] / x for n, x in of_task.items() if x and of_term.get(n)})
    norms.close()
    objective.detach()
    return ratios


def applied(ratios: list[dict[str, float]], proxy: str | None) -> list[float]:
    """Exact ratios of what a proxy, or no bound, lets through."""
    logs, factors, found = [], [], []
    for update, ratio in enumerate(ratios):
        exact, logs = ratio["all weights"], [*logs, math.log(ratio["all weights"])]
        weight = SHARE / math.exp(sum(logs) / len(logs))
        if proxy is not None:
            if update % EVERY == 0:
                factors.append(math.log(exact / ratio[proxy]))
            held = ratio[proxy] * math.exp(sum(factors) / len(factors))
            weight = min(weight, BOUND / held)
        found.append(weight * exact)
    return found


def main() -> None:
    """A table on standard output."""
    parser = argparse.ArgumentParser(description="Does a cheap proxy hold the bound?")
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--rows", type=int, default=500)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--tasks", nargs="+", default=["cola", "mrpc"])
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    logging.set_verbosity_error()
    print("| task | term | ratio of | spread of its factor | median | 95 % | largest |")
    print("|---|---|---|---|---|---|---|", flush=True)
    for task in arguments.tasks:
        for term in TERMS:
            ratios = train(arguments, task, term)
            for part in [None, *ratios[0]]:
                if part is not None and any(part not in each for each in ratios):
                    continue
                factors = [math.log(r["all weights"] / r[part or "all weights"]) for r in ratios]
                through = applied(ratios, part)
                cuts = quantiles(through, n=20)
                spread = "" if part is None else f"x {math.exp(stdev(factors)):.2f}"
                name = part or "no bound"
                print(
                    f"| {task} | `{term}` | {name} | {spread} | {cuts[9]:.2f} | {cuts[18]:.2f} | "
                    f"{max(through):.2f} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
