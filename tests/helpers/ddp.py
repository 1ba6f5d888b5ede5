"""What two gloo processes train, and which of it in fast tests."""

import os
import socket
import warnings
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from accelerate import PartialState
from torch.multiprocessing import start_processes

from helpers.causal import (
    LANGUAGE_TESTED,
    NARROW_TESTED,
    language_weights_after,
    lora_weights_after,
    narrow_weights_after,
)
from helpers.seq2seq import SEQ2SEQ_TESTED, seq2seq_weights_after
from helpers.training import (
    CLIPPED,
    COMPILED,
    LATE,
    METHODS_TESTED,
    UNEQUAL_TESTED,
    Rows,
    dual_weights_after,
    leave,
    weights_after,
)


class Run(NamedTuple):
    """A training run of each of some methods; the size of a batch, the batches of an update."""

    train: Callable
    methods: Iterable[str]
    size: int
    batches: int


unequal = partial(  # 6 rows in one process, 2 in the other
    weights_after, data=Rows(8), accelerator_config={"even_batches": False}
)
RUNS = {
    "one-batch": Run(partial(weights_after, max_steps=2), METHODS_TESTED, 16, 1),
    "four-batches": Run(partial(weights_after, max_steps=2), METHODS_TESTED, 4, 4),
    "language": Run(language_weights_after, LANGUAGE_TESTED, 2, 2),
    "lora": Run(lora_weights_after, LANGUAGE_TESTED, 2, 2),
    "narrow": Run(narrow_weights_after, NARROW_TESTED, 2, 2),
    "seq2seq": Run(seq2seq_weights_after, SEQ2SEQ_TESTED, 2, 2),
    "unequal": Run(unequal, UNEQUAL_TESTED, 6, 1),
    "share": Run(partial(weights_after, max_steps=4, fields={"share": 0.5}), ["lnsr"], 16, 1),
    "bounded": Run(partial(weights_after, max_steps=4, fields={"share": 50.0}), ["lnsr"], 4, 4),
    "clipped": Run(partial(weights_after, max_steps=3, fields=CLIPPED), ["jacobian"], 4, 4),
    "compiled": Run(partial(weights_after, **COMPILED), ["lnsr", "freelb"], 16, 1),
    "dual": Run(dual_weights_after, ["lnsr"], 4, 1),
    "late": Run(partial(dual_weights_after, fields=LATE), ["lnsr"], 4, 1),
    "both": Run(partial(dual_weights_after, alternate="batch"), ["lnsr"], 4, 2),
}
IN_TURN = {  # of the methods of a run, every so many, from which on
    "one-batch": (2, 1),
    "four-batches": (2, 0),
    "language": (3, 0),
    "lora": (3, 1),
    "narrow": (3, 0),
    "seq2seq": (5, 1),
    "unequal": (2, 1),
    "compiled": (2, 0),
    "late": (2, 1),
}


def is_fast(name: str, method: str) -> bool:
    """Whether a fast test compares it: of classifiers every method, cut one way or the other."""
    every, first = IN_TURN.get(name, (1, 0))
    return list(RUNS[name].methods).index(method) % every == first


def cases(*names: str) -> list:
    """Parameters of a test: runs of these names, and their methods."""
    return [
        pytest.param(name, method, marks=() if is_fast(name, method) else pytest.mark.slow)
        for name in names
        for method in RUNS[name].methods
    ]


def train_on_two_processes(output: Path, *, fast: bool) -> None:
    """Train with every method, and write the weights of the first process.

    The processes are forks of this one: torchrun would import everything twice.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    start_processes(_train, (output, fast, port), nprocs=2, start_method="fork")


def _train(rank: int, output: Path, fast: bool, port: int) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
    PartialState._reset_state()
    warnings.resetwarnings()  # as in a process of its own
    for name, method in [(name, method) for name, run in RUNS.items() for method in run.methods]:
        if is_fast(name, method) != fast:
            continue
        weights = RUNS[name].train(
            output / "run",
            method,
            per_device_train_batch_size=RUNS[name].size,
            gradient_accumulation_steps=RUNS[name].batches,
        )
        if rank == 0 or name in ("dual", "late", "both"):
            torch.save(weights, output / f"{name}-{method}{'-1' if rank else ''}.pt")
        torch.distributed.barrier()
    leave()
