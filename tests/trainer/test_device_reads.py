"""An ordinary update reads no value from the device, which would make the host wait for it."""

import sys
from collections import Counter
from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import Trainer, TrainerCallback

import smoothtune
from helpers.training import Rows, arguments, collate
from smoothtune import LNSR, R3F, Plain, regularize
from smoothtune.testing import tiny_model

ORDINARY = range(10, 30)
"""Updates after those in which terms are compared with the task's gradient once."""
ON_THE_HOST = {
    "_times",  # only on the CPU
    "_bernoulli",  # the state of the CPU's generator, as the next one
    "__torch_dispatch__",
    "first_error",  # copied to the host in the update before
}
SOURCES = str(Path(smoothtune.__file__).parent)


class Reads(TorchDispatchMode):
    """Counts values that are read, by the function that reads them."""

    def __init__(self):
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function is torch.ops.aten._local_scalar_dense.default:
            self.count()
        return function(*args, **kwargs or {})

    def count(self):
        frame = sys._getframe(2)
        while "/torch/" in frame.f_code.co_filename:
            frame = frame.f_back
        of_smoothtune = frame.f_code.co_filename.startswith(SOURCES)
        self.counts[frame.f_code.co_name if of_smoothtune else "others"] += 1


class InOrdinaryUpdates(TrainerCallback):
    """Counts in whole updates, with the drawing of their batches."""

    def __init__(self, reads):
        self.reads, self.entered = reads, False

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == ORDINARY[0]:
            self.reads.__enter__()
            self.entered = True
        elif self.entered and state.global_step == ORDINARY[-1]:
            self.entered = False
            self.reads.__exit__(None, None, None)


def reads_of(tmp_path, monkeypatch, method, **changes) -> Counter[str]:
    reads = Reads()
    callback = InOrdinaryUpdates(reads)

    def counting(original):
        def counted(tensor, *args, **kwargs):
            if callback.entered:
                reads.count()
            return original(tensor, *args, **kwargs)

        return counted

    for name in ("tolist", "cpu", "numpy"):  # which the dispatcher does not see on the CPU
        monkeypatch.setattr(torch.Tensor, name, counting(getattr(torch.Tensor, name)))
    settings = {"max_steps": ORDINARY[-1], "logging_steps": 1000, "max_grad_norm": 1.0}
    trainer = Trainer(
        model=tiny_model("bert", dropout=0.1),
        args=arguments(
            tmp_path,
            per_device_train_batch_size=4,
            optim="adamw_torch",
            learning_rate=1e-3,
            **settings | changes,
        ),
        train_dataset=Rows(64),
        data_collator=without_ids,
        callbacks=[callback],
    )
    if method is not None:
        regularize(trainer, method)
    trainer.train()
    return reads.counts


def without_ids(rows):
    return {name: value for name, value in collate(rows).items() if name != "example_id"}


@pytest.mark.parametrize("changes", [{}, {"gradient_accumulation_steps": 2}])
@pytest.mark.parametrize(
    "method",
    [Plain(), LNSR(weight=1.0), LNSR(), R3F(weight=1.0), R3F()],
    ids=["plain", "lnsr weight", "lnsr share", "r3f weight", "r3f share"],
)
def test_no_value_is_read(tmp_path, monkeypatch, method, changes):
    reads = reads_of(tmp_path, monkeypatch, method, **changes)
    assert {name: n for name, n in reads.items() if name not in {"others", *ON_THE_HOST}} == {}
    assert reads["first_error"] == ORDINARY[-1] - ORDINARY[0]  # one for each update
    assert reads["others"] > 0  # the Trainer's own: the counting works


def test_plain_reads_what_the_stock_trainer_reads(tmp_path, monkeypatch):
    stock = reads_of(tmp_path, monkeypatch, None)
    plain = reads_of(tmp_path, monkeypatch, Plain())
    assert plain["others"] == stock["others"]
