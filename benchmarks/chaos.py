"""Kill training while it writes checkpoints, resume it, and compare the final weights bit for bit.

Two experiments on a tiny random BERT with LNSR and L2-SP, a checkpoint after every step, one kept:

* points: a trainer dies at the n-th operation on files, for every n until it ends undisturbed;
  files that torch and safetensors write are also left cut in half;
* kills: `smoothtune train` is killed (SIGKILL) at a random moment, again and again.

After every death the newest complete checkpoint may not be older than before, and the run has to go
on with it (or start again, before the first) to the weights of an undisturbed run. Killed runs are
forked from a process that has imported everything. The figures are in results/chaos.json and
chaos.md::

    python benchmarks/chaos.py --minutes 10 [--only kills --seed 1]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from safetensors import SafetensorError
from safetensors.torch import load_file
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    BertConfig,
    BertModel,
    PreTrainedTokenizerFast,
    TrainingArguments,
    modeling_utils,
)

import smoothtune.trainer.checkpoints as checkpoints_module
from smoothtune import L2SP, LNSR, SmoothTrainer
from smoothtune.config.run import RunConfig
from smoothtune.files import versions
from smoothtune.run.output import newest_checkpoint
from smoothtune.run.train import train
from smoothtune.testing import VOCABULARY, tiny_model
from smoothtune.trainer.manifest import newest

RESULTS = Path(__file__).parent / "results"
WORDS = ["[PAD]", "[UNK]", "good", "bad", "film", "plot", "the", "was", "very"]
OPERATIONS = ("replace", "rename", "unlink", "rmdir", "mkdir", "fsync")


def make_inputs(folder: Path) -> None:
    """A model folder and a CSV file."""
    tokenizer = Tokenizer(models.WordLevel({w: i for i, w in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]"
    ).save_pretrained(folder / "model")
    config = BertConfig(
        vocab_size=len(WORDS),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=32,
    )
    BertModel(config).save_pretrained(folder / "model")
    rows = [f"the film was {'very ' * (i % 4)}{WORDS[2 + i % 2]},{i % 2}" for i in range(32)]
    (folder / "data.csv").write_text("text,label\n" + "\n".join(rows) + "\n")


def settings(inputs: Path, output: Path, steps: int) -> RunConfig:
    """The run that is killed."""
    return RunConfig(
        task="chaos",
        data=str(inputs / "data.csv"),
        text_columns=["text"],
        model=str(inputs / "model"),
        methods={"lnsr": {}, "l2_sp": {}},
        output_dir=str(output),
        max_steps=steps,
        learning_rate=1e-2,
        save_strategy="steps",
        save_steps=1,
        eval_strategy="no",
        cost_steps=0,
    )


def forked(config: RunConfig, resume: bool, log: Path) -> int:
    """Start a run in a child process; returns its number."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        with log.open("w") as output:
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
            warnings.simplefilter("ignore")
            train(config, resume=resume, console=Console(file=output))
            code = 0
    except BaseException:
        with log.open("a") as output:
            traceback.print_exc(file=output)
    finally:
        os._exit(code)


def ended(child: int) -> int:
    """Wait for a child; its exit status, or minus the signal that killed it."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


class Death(BaseException):
    """The process ends here."""


@contextmanager
def death_at(point: int) -> Iterator[None]:
    """End at the n-th operation on files; what torch and safetensors wrote is cut in half."""
    count = 0

    def counted() -> bool:
        nonlocal count
        count += 1
        return count >= point  # nor does a handler of exceptions do anything afterwards

    def patched(call: Callable[..., Any], half_written: bool) -> Callable[..., Any]:
        def wrapped(*values: Any, **named: Any) -> Any:
            if counted():
                raise Death
            found = call(*values, **named)
            if half_written and counted():
                file = next(v for v in values if isinstance(v, str | Path))
                os.truncate(file, os.path.getsize(file) // 2)
                raise Death
            return found

        return wrapped

    places = [(os, name) for name in OPERATIONS] + [
        (torch, "save"),
        (modeling_utils, "safe_save_file"),
        (checkpoints_module, "save_file"),
    ]
    originals = [(module, name, getattr(module, name)) for module, name in places]
    for module, name, call in originals:
        setattr(module, name, patched(call, half_written=module is not os))
    try:
        yield
    finally:
        for module, name, call in originals:
            setattr(module, name, call)


class Judge:
    """Watches one output folder over deaths and counts what goes wrong."""

    def __init__(self, config: RunConfig, expected: dict[str, torch.Tensor], counts: dict) -> None:
        self.config, self.expected, self.counts = config, expected, counts
        self.folder, self.step = Path(config.output_dir), 0

    def can_resume(self) -> bool:
        """Whether a complete checkpoint is there; one that was there before must not be lost."""
        newest = newest_checkpoint(self.folder).folder
        step = int(newest.name.split("-")[-1]) if newest else 0
        if step < self.step and not (self.folder / "result.json").exists():
            self.fault("lost", f"checkpoint of step {self.step}, now {step}")
        self.step = step
        return newest is not None

    def finish(self, log: Path) -> None:
        """Go on undisturbed, and compare the weights."""
        if not (self.folder / "result.json").exists():
            child = forked(self.config, self.can_resume(), log)
            if ended(child):
                self.fault("failed", log.read_text()[-2000:])
                return
        try:
            found = load_file(self.folder / "model.safetensors")
        except (OSError, SafetensorError) as error:
            self.fault("wrong", str(error))
            return
        same = found.keys() == self.expected.keys() and all(
            torch.equal(found[name], self.expected[name]) for name in found
        )
        if not same:
            self.fault("wrong", "other weights")

    def fault(self, kind: str, what: str) -> None:
        """Count and show a fault."""
        self.counts[kind] += 1
        self.counts["messages"].append(f"{kind}: {what}")
        print(f"{kind}: {what}", flush=True)


def new_counts() -> dict[str, Any]:
    """Nothing yet."""
    return {"deaths": 0, "runs": 0, "lost": 0, "wrong": 0, "failed": 0, "messages": []}


def trainer_in(folder: Path, limit: int) -> SmoothTrainer:
    """A trainer of three steps with dropout, a checkpoint after each."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(5, VOCABULARY, (16, 6), generator=generator)
    rows = [
        {"input_ids": row, "attention_mask": torch.ones_like(row), "labels": row[0] % 3}
        for row in ids
    ]
    return SmoothTrainer(
        model=tiny_model("bert", dropout=0.1),
        args=TrainingArguments(
            output_dir=str(folder),
            max_steps=3,
            per_device_train_batch_size=4,
            learning_rate=0.01,
            save_strategy="steps",
            save_steps=1,
            save_total_limit=limit,
            use_cpu=True,
            dataloader_pin_memory=False,
            report_to="none",
            disable_tqdm=True,
            logging_strategy="no",
        ),
        train_dataset=rows,
        regularizers=[LNSR(), L2SP()],
    )


def points(work: Path, deadline: float, limit: int) -> dict[str, Any]:
    """Die at every operation of three saves and their rotation in turn, and resume."""
    whole, counts, point = trainer_in(work / "whole", limit), new_counts(), 0
    whole.train()
    expected = whole.model.state_dict()
    while time.monotonic() < deadline:
        point += 1
        folder = work / "run"
        shutil.rmtree(folder, ignore_errors=True)
        dying = trainer_in(folder, limit)
        counts["runs"] += 1
        try:
            with death_at(point):
                dying.train()
            counts["complete"] = True  # there is no n-th operation
            break
        except Death:
            counts["deaths"] += 1
        found = newest(folder)
        before = dying.state.global_step - 1  # this step was being saved, the one before was
        step = int(found.folder.name.split("-")[-1]) if found.folder else 0
        counts["lost"] += step < before
        trainer = trainer_in(folder, limit)
        try:
            trainer.train(resume_from_checkpoint=found.folder is not None)
        except Exception as error:
            counts["failed"] += 1
            counts["messages"].append(f"point {point}: {error!r}")
            continue
        same = trainer.model.state_dict()
        counts["wrong"] += not all(torch.equal(same[name], expected[name]) for name in expected)
    return counts


def kills(inputs: Path, work: Path, steps: int, deadline: float, seed: int) -> dict[str, Any]:
    """Kill at random moments until the time is over."""
    expected, seconds = undisturbed(inputs, work, steps)
    draw, counts = random.Random(seed), new_counts()
    while time.monotonic() < deadline:
        counts["runs"] += 1
        judge = Judge(settings(inputs, work / "run", steps), expected, counts)
        for _ in range(6):
            child = forked(judge.config, judge.can_resume(), work / "log")
            time.sleep(draw.uniform(0, seconds))
            os.kill(child, signal.SIGKILL)
            code = ended(child)
            if code == 0:
                break
            if code != -signal.SIGKILL:
                judge.fault("failed", (work / "log").read_text()[-2000:])
            counts["deaths"] += 1
        judge.finish(work / "log")
        shutil.rmtree(work / "run", ignore_errors=True)
    return counts


def undisturbed(inputs: Path, work: Path, steps: int) -> tuple[dict[str, torch.Tensor], float]:
    """Weights and seconds of a run that nobody kills."""
    config, start = settings(inputs, work / "undisturbed", steps), time.monotonic()
    if ended(forked(config, False, work / "log")):
        raise SystemExit((work / "log").read_text())
    seconds = time.monotonic() - start
    weights = load_file(work / "undisturbed" / "model.safetensors")
    shutil.rmtree(work / "undisturbed")
    return weights, seconds


def table(found: dict[str, Any]) -> str:
    """The figures as Markdown."""
    lines = [
        "# Deaths while checkpoints are written\n",
        "`benchmarks/chaos.py`: a tiny BERT with LNSR and L2-SP, a checkpoint after every step.\n",
        "| experiment | deaths | runs | checkpoints lost | resumes failed | wrong weights |",
        "|---|---|---|---|---|---|",
    ]
    keys = ("deaths", "runs", "lost", "failed", "wrong")
    experiments = found["experiments"]
    total = {key: sum(counts[key] for counts in experiments.values()) for key in keys}
    for name, counts in [*sorted(experiments.items()), ("all", total)]:
        lines.append(f"| {name} | " + " | ".join(str(counts[key]) for key in keys) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run both experiments and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--minutes", type=float, default=10, help="for each experiment")
    parser.add_argument("--only", choices=["points", "kills"], help="one of the two")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    file = RESULTS / "chaos.json"
    found = json.loads(file.read_text()) if file.exists() else {"experiments": {}}
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        make_inputs(work / "inputs")
        for experiment in ("points, one kept", "points, two kept", f"kills, seed {options.seed}"):
            if options.only and not experiment.startswith(options.only):
                continue
            folder = work / experiment
            folder.mkdir()
            deadline = time.monotonic() + 60 * options.minutes
            if experiment.startswith("kills"):
                counts = kills(work / "inputs", folder, 5, deadline, options.seed)
            else:
                counts = points(folder, deadline, 1 if "one" in experiment else 2)
            print(experiment, counts, flush=True)
            found["experiments"][experiment] = counts
            file.write_text(json.dumps(found | {"versions": versions()}, indent=2) + "\n")
            (RESULTS / "chaos.md").write_text(table(found))


if __name__ == "__main__":
    main()
