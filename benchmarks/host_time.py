"""Processor time of the host for a step, where the model is so small that the host is all there is.

    python benchmarks/host_time.py [--rounds 40] [--only loop,trainer]

A random BERT of two layers, 32 wide, on 4 x 16 tokens, dropout on, fused AdamW, one thread. Ways to
take a step take turns: single steps of loops, trainings of 40 steps of the Trainer. A ratio is that
of a round; the page has their median and quartiles. On an accelerator this is about the time in
which a step is sent there, which is the whole of it if the model is small. Writes
benchmarks/results/host-time.md.
"""

import argparse
import contextlib
import copy
import gc
import io
import tempfile
import time
from pathlib import Path
from statistics import median, quantiles

import torch
import torch.nn.functional as F
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    logging,
)

from smoothtune import L2SP, LNSR, R3F, Objective, Plain, regularize

RESULTS = Path(__file__).parent / "results"
ROWS, TOKENS, VOCABULARY = 4, 16, 500
WARM_UP, STEPS = 10, 40


def tiny_bert():
    """In training mode, dropout 0.1."""
    torch.manual_seed(0)
    config = BertConfig(
        num_hidden_layers=2,
        hidden_size=32,
        num_attention_heads=2,
        intermediate_size=128,
        vocab_size=VOCABULARY,
        num_labels=2,
    )
    return BertForSequenceClassification(config).train()


def tokens(rows):
    """Random rows of one length."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(5, VOCABULARY, (rows, TOKENS), generator=generator)
    labels = torch.randint(2, (rows,), generator=generator)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels}


# --- loops ---------------------------------------------------------------------------------------


def model_loss(model, batch):
    """Of a loop without smoothtune."""
    return model(**batch).loss


def symmetric_kl(one, other):
    """Of two sets of logits, as fairseq has it."""
    p, q = F.log_softmax(one, -1), F.log_softmax(other, -1)
    return F.kl_div(p, q.exp(), reduction="batchmean") + F.kl_div(q, p.exp(), reduction="batchmean")


def literal_r3f(model, batch):
    """R3F as a loop of one's own would have it: two forwards of `inputs_embeds`."""
    embedded = model.get_input_embeddings()(batch["input_ids"])
    others = {"attention_mask": batch["attention_mask"]}
    clean = model(inputs_embeds=embedded, **others).logits
    noise = torch.empty_like(embedded).uniform_(-1e-5, 1e-5)
    moved = model(inputs_embeds=embedded.detach() + noise, **others).logits
    return F.cross_entropy(clean, batch["labels"]) + symmetric_kl(moved, clean)


class Loop:
    """A loop's own model and optimizer, and what it does in a step."""

    def __init__(self, model, loss):
        self.model = copy.deepcopy(model)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-6, fused=True)
        bound = isinstance(loss, Objective)
        self.loss = loss.bind(self.model, self.optimizer, 10**6) if bound else loss

    def step(self, batch):
        """Take it, and return its processor seconds."""
        start = time.thread_time()
        self.loss(self.model, batch).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return time.thread_time() - start


LOOPS = {
    "loop": lambda: model_loss,
    "`Plain()`": lambda: Objective(Plain()),
    "`L2SP()`": lambda: Objective(L2SP()),
    "literal R3F": lambda: literal_r3f,
    "`R3F(weight=1)`": lambda: Objective(R3F(weight=1.0)),
    '`R3F(weight=1, dropout="independent")`': lambda: Objective(
        R3F(weight=1.0, dropout="independent")
    ),
    "`R3F()`": lambda: Objective(R3F()),
    "`LNSR()`": lambda: Objective(LNSR()),
}


def loops(rounds):
    """Seconds of every step, by name of the loop."""
    batch, model = tokens(ROWS), tiny_bert()
    ways = {name: Loop(model, make()) for name, make in LOOPS.items()}
    for _ in range(60):  # beyond the updates in which terms of fixed weight are compared
        for way in ways.values():
            way.step(batch)
    seconds = {name: [] for name in ways}
    for _ in range(rounds):
        taken = {name: [way.step(batch) for _ in range(5)] for name, way in ways.items()}
        for name, of_round in taken.items():
            seconds[name].append(median(of_round))
    return seconds


# --- the Trainer ---------------------------------------------------------------------------------


class Rows(torch.utils.data.Dataset):
    """Of one training."""

    columns = tokens(ROWS * STEPS)

    def __len__(self):
        return len(self.columns["labels"])

    def __getitem__(self, number):
        return {name: column[number] for name, column in self.columns.items()}


class Clock(TrainerCallback):
    """Times the steps after the first ones."""

    def on_step_begin(self, args, state, control, **kwargs):
        """Start at the first step that counts."""
        if state.global_step == WARM_UP:
            self.start = time.thread_time()

    def on_step_end(self, args, state, control, **kwargs):
        """Stop after the last one."""
        if state.global_step == STEPS:
            self.seconds = (time.thread_time() - self.start) / (STEPS - WARM_UP)


TRAINERS = {
    "Trainer": None,
    "`regularize(trainer, Plain())`": Plain,
    "`regularize(trainer, L2SP())`": L2SP,
    "`regularize(trainer, R3F(weight=1))`": lambda: R3F(weight=1.0),
}


def training(make, folder):
    """Seconds of a step of one training."""
    arguments = TrainingArguments(
        folder,
        per_device_train_batch_size=ROWS,
        max_steps=STEPS,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
        logging_steps=10**6,
        optim="adamw_torch_fused",
        use_cpu=True,
    )
    clock = Clock()
    trainer = Trainer(tiny_bert(), arguments, train_dataset=Rows(), callbacks=[clock])
    if make is not None:
        regularize(trainer, make())
    gc.collect()
    with contextlib.redirect_stdout(io.StringIO()):
        trainer.train()
    return clock.seconds


def trainers(rounds):
    """Seconds of a step of every training, by name."""
    seconds = {name: [] for name in TRAINERS}
    with tempfile.TemporaryDirectory() as folder:
        training(None, folder)
        for _ in range(rounds):
            for name, make in TRAINERS.items():
                seconds[name].append(training(make, folder))
    return seconds


# --- the page ------------------------------------------------------------------------------------


def lines(title, seconds, bases):
    """A table of ratios to one way or several."""
    head = [f"median / {base}" for base in bases]
    yield from ["", f"## {title}", "", f"| way | ms | {' | '.join(head)} |"]
    yield "|---" * (2 + len(bases)) + "|"
    for name, taken in seconds.items():
        cells = []
        for base in bases:
            ratios = [one / other for one, other in zip(taken, seconds[base], strict=True)]
            low, _, high = quantiles(ratios, n=4)
            cells.append(f"{median(ratios):.2f} ({low:.2f}-{high:.2f})")
        yield f"| {name} | {1000 * median(taken):.2f} | {' | '.join(cells)} |"


def main():
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--only", default="loop,trainer")
    arguments = parser.parse_args()
    logging.set_verbosity_error()
    torch.set_num_threads(1)
    page = [
        "# Host time of a step",
        "",
        f"`python benchmarks/host_time.py --rounds {arguments.rounds}`",
    ]
    page += ["", "Processor time; medians of rounds, with their quartiles."]
    if "loop" in arguments.only:
        measured = loops(arguments.rounds * 5)
        page += lines("Loops", measured, ["loop", "literal R3F"])
    if "trainer" in arguments.only:
        page += lines("The Trainer", trainers(max(8, arguments.rounds // 4)), ["Trainer"])
    print("\n".join(page))
    if arguments.only == "loop,trainer":
        (RESULTS / "host-time.md").write_text("\n".join(page) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
