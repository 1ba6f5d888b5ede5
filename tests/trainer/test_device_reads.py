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
from smoothtune import LNSR, METHODS, R3F, JacHess, Objective, Plain, regularize
from smoothtune.methods import label_smoothing
from smoothtune.testing import tiny_batch, tiny_model

ORDINARY = range(4, 8)
"""Updates after those in which terms are compared with the task's gradient, but in the 8th."""
ON_THE_HOST = {
    "_bernoulli",  # the state of the CPU's generator, as the next two
    "__torch_dispatch__",
    "same",
    "first_error",  # copied to the host in the update before
    "multiplied",  # whether a scale is 1, only on the CPU
    "top_fraction",  # how many values are above 0, only on the CPU
    "_kth_largest",  # by numpy, only on the CPU
    "_finite_on_cpu",
}
SOURCES = str(Path(smoothtune.__file__).parent)
aten = torch.ops.aten


class Reads(TorchDispatchMode):
    """Counts values that are read, by the function that reads them; and all operations."""

    def __init__(self):
        super().__init__()
        self.counts: Counter[str] = Counter()
        self.operations = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.operations += 1
        if waits(function, args):
            self.count()
        return function(*args, **kwargs or {})

    def count(self):
        frame = sys._getframe(2)
        while "/torch/" in frame.f_code.co_filename:
            frame = frame.f_back
        of_smoothtune = frame.f_code.co_filename.startswith(SOURCES)
        self.counts[frame.f_code.co_name if of_smoothtune else "others"] += 1


def waits(function, args):
    """Whether an operation gives the host a value, a size that depends on one, or sends one."""
    if function in (aten.index.Tensor, aten.index_put_.default, aten.index_put.default):
        return any(index is not None and index.dtype == torch.bool for index in args[1])
    if function is aten.lift_fresh.default:  # of torch.tensor(number)
        return True
    return bool(
        {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape} & {*function.tags}
    )


class InOrdinaryUpdates(TrainerCallback):
    """Counts in whole updates, with the drawing of their batches."""

    def __init__(self, reads):
        self.reads, self.entered = reads, False

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == ORDINARY[0]:
            self.begin()
        elif self.entered and state.global_step == ORDINARY[-1]:
            self.end()

    def begin(self):
        self.reads.__enter__()
        self.entered = True

    def end(self):
        self.entered = False
        self.reads.__exit__(None, None, None)


@pytest.fixture
def callback(monkeypatch):
    made = InOrdinaryUpdates(Reads())

    def counting(original):
        def counted(tensor, *args, **kwargs):
            if made.entered:
                made.reads.count()
            return original(tensor, *args, **kwargs)

        return counted

    for name in ("tolist", "cpu", "numpy"):  # which the dispatcher does not see on the CPU
        monkeypatch.setattr(torch.Tensor, name, counting(getattr(torch.Tensor, name)))
    monkeypatch.setattr(label_smoothing, "CHECKED", ORDINARY[0])
    return made


def reads_of(tmp_path, callback, method, **changes) -> Counter[str]:
    settings = {"max_steps": ORDINARY[-1], "logging_steps": 1000, "max_grad_norm": 1.0}
    trainer = Trainer(
        model=tiny_model("bert", dropout=0.1, dtype=torch.float32),
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
    return callback.reads.counts


def without_ids(rows):
    return {name: value for name, value in collate(rows).items() if name != "example_id"}


def of_the_device(reads: Counter[str]) -> dict[str, int]:
    return {name: n for name, n in reads.items() if name not in {"others", *ON_THE_HOST}}


@pytest.mark.parametrize(
    "method",
    [make() for make in METHODS.values()] + [LNSR(weight=1.0), R3F(weight=1.0), JacHess(clip=4.0)],
    ids=[*METHODS, "lnsr weight", "r3f weight", "jachess clip"],
)
def test_no_value_is_read(tmp_path, callback, method):
    fields = {"max_grad_norm": 0.0} if method.traits.clips_gradients else {}
    reads = reads_of(tmp_path, callback, method, **fields)
    assert of_the_device(reads) == {}
    assert reads["first_error"] == ORDINARY[-1] - ORDINARY[0]  # one for each update
    assert reads["others"] > 0  # the Trainer's own: the counting works


@pytest.mark.parametrize("method", [Plain(), LNSR(), R3F()], ids=["plain", "lnsr", "r3f"])
def test_no_value_is_read_where_updates_have_two_batches(tmp_path, callback, method):
    reads = reads_of(tmp_path, callback, method, gradient_accumulation_steps=2)
    assert of_the_device(reads) == {}


FAST = ("lnsr", "freelb", "uegr", "jachess", "mixout")


@pytest.mark.parametrize(
    "name", [n if n in FAST else pytest.param(n, marks=pytest.mark.slow) for n in METHODS]
)
def test_a_loop_reads_whether_its_loss_is_finite(callback, name):
    """Which it is told at once, before the loss is used; that is the only value."""
    model, batch = tiny_model("bert", dropout=0.1, dtype=torch.float32), tiny_batch()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    objective = Objective(METHODS[name]()).bind(model, optimizer, ORDINARY[-1])
    for step in range(ORDINARY[-1]):
        if step == ORDINARY[0]:
            callback.begin()
        objective(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()
    callback.end()
    reads = callback.reads.counts
    assert of_the_device(reads) == {}
    assert reads["first_error"] == ORDINARY[-1] - ORDINARY[0]


def test_plain_reads_what_the_stock_trainer_reads(tmp_path, callback):
    stock = reads_of(tmp_path, callback, None)["others"]
    operations = callback.reads.operations
    callback.reads.counts.clear()
    assert reads_of(tmp_path, callback, Plain())["others"] == stock
    added = callback.reads.operations - 2 * operations
    assert added <= 20 * (ORDINARY[-1] - ORDINARY[0])  # which an accelerator waits for, each
