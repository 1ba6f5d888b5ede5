"""Run by torchrun: the command line, with something that happens to the second process alone."""

import os
import signal
import sys

import torch

from smoothtune.cli import main
from smoothtune.errors import DataError
from smoothtune.run import train as run_module
from smoothtune.run.callbacks import StopOnSignal
from smoothtune.run.trainer import RunTrainer

torch.set_num_threads(1)
event, step = sys.argv.pop(1), 3
compute_loss, ended = RunTrainer.training_step, StopOnSignal.on_step_end


def training_step(self, model, inputs, *others):
    if self.state.global_step == step:
        if event == "memory":
            raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")
        if event == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if event == "fault":
            raise KeyError("a fault of the code")
        if event == "nan":
            with torch.no_grad():
                next(model.parameters()).fill_(float("nan"))
    return compute_loss(self, model, inputs, *others)


def read_inputs(*_):
    raise DataError("row 3: no text")


def on_step_end(self, args, state, *others, **named):
    if state.global_step == step:
        os.kill(os.getpid(), signal.SIGTERM)
    return ended(self, args, state, *others, **named)


if os.environ["RANK"] == "1":
    RunTrainer.training_step = training_step
    if event == "row":
        run_module.read_inputs = read_inputs
    if event == "signal":
        StopOnSignal.on_step_end = on_step_end
main()
