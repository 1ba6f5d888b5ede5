"""One run in several processes, which torchrun or accelerate has started.

The first process, the main one, prints, writes and decides what depends on the disk; the others
compute the same with rows of their own. They must call what waits for others in the same order.
"""

import os
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from logging import ERROR, getLogger
from typing import Any, TypeVar

import datasets
import torch
import torch.distributed as dist
from accelerate import PartialState
from accelerate.utils import broadcast_object_list
from rich.console import Console
from torch import Tensor, nn
from transformers import Trainer
from transformers.utils import logging

from smoothtune.config.run import RunConfig
from smoothtune.errors import ConfigError, Problem
from smoothtune.nn.architecture import blocks, unwrap

T = TypeVar("T")
LAUNCHED = ("WORLD_SIZE", "RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
"""Variables of the environment by which torchrun says what processes there are."""


def join_processes() -> PartialState:
    """Meet the other processes, if there are any; those that are not the main one fall silent."""
    check_environment()
    state = PartialState(cpu=not torch.accelerator.is_available())
    if not state.is_main_process:
        warnings.simplefilter("ignore")
        getLogger("smoothtune").setLevel(ERROR)
        logging.set_verbosity_error()
        datasets.disable_progress_bars()
    return state


def check_environment() -> None:
    """Raise ConfigError if what a launcher says about the processes of a run cannot be so."""
    values = {name: os.environ[name] for name in LAUNCHED if name in os.environ}
    numbers = {name: text.strip().removeprefix("-") for name, text in values.items()}  # -1: none
    wrong = [name for name in values if name != "MASTER_ADDR" and not numbers[name].isdigit()]
    several = not wrong and int(values.get("WORLD_SIZE", "1")) > 1
    missing = [name for name in LAUNCHED if several and name not in values]
    if wrong:
        problem = f"{wrong[0]} is {values[wrong[0]]!r}, no whole number"
    elif missing:
        problem = f"WORLD_SIZE is {values['WORLD_SIZE']}, but {' and '.join(missing)} are not set"
    else:
        return
    message = f"{problem}: start several processes with torchrun, or unset it to train in one"
    raise ConfigError([Problem("the environment", "", message)])


def world_size() -> int:
    """Number of processes that train together."""
    return dist.get_world_size() if _together() else 1


def is_main() -> bool:
    """Whether this process prints and writes."""
    return not _together() or dist.get_rank() == 0


def console_of_main(console: Console | None) -> Console:
    """The console to print to; one that is silent in other processes."""
    return (console or Console()) if is_main() else Console(quiet=True)


def from_main(function: Callable[[], T]) -> T:
    """What a function returns in the main process, for all; called there alone."""
    if not _together():
        return function()
    result = [function() if is_main() else None]
    value: T = broadcast_object_list(result)[0]
    return value


def in_any(here: bool) -> bool:
    """Whether something is so in any process."""
    if not _together():
        return here
    flag = torch.tensor(int(here), device=PartialState().device)
    dist.all_reduce(flag, op=dist.ReduceOp.MAX)
    return bool(flag)


def main_first() -> AbstractContextManager[None]:
    """Let the main process of each machine go first, so that the others find what it cached."""
    return PartialState().local_main_process_first() if _together() else nullcontext()


def wait_for_all() -> None:
    """Go on when every process is here."""
    if _together():
        PartialState().wait_for_everyone()


def is_first_to_fail() -> bool:
    """Whether no other process has asked this before; one that cannot ask is not the first."""
    if not _together():
        return True
    try:
        store = dist.distributed_c10d._get_default_store()  # torch has no public way to it
        return bool(store.add("smoothtune/failed", 1) == 1)
    except RuntimeError:  # the process that holds it is gone
        return False


def part() -> None:
    """Leave the other processes at the end of a run, when all have come to it."""
    if _together():
        wait_for_all()
        dist.destroy_process_group()


def _together() -> bool:
    return dist.is_available() and dist.is_initialized()


def prepare_shards(trainer: Trainer, model: nn.Module, config: RunConfig) -> None:
    """Refuse to merge adapters, and let every block be one unit unless others are named.

    Without names accelerate takes the model's `_no_split_modules`; with BERT's it fails, as it
    would shard the word embeddings twice.
    """
    if config.merge_adapter:
        message = (
            "no process has the whole weights that adapters are merged into with FSDP2: leave it "
            "out and merge after the run, with peft's merge_and_unload, or start it with DDP"
        )
        raise ConfigError([Problem("", "merge_adapter", message)])
    plugin: Any = trainer.accelerator.state.fsdp_plugin
    if plugin.transformer_cls_names_to_wrap is None:
        names = {type(block).__name__ for block in blocks(unwrap(model))}
        plugin.transformer_cls_names_to_wrap = sorted(names)


def whole_weights(trainer: Trainer) -> dict[str, Tensor] | None:
    """All weights by name, on the CPU, where every process has parts; None where it has all.

    Every process has to call it; the main one gets the weights.
    """
    if not trainer.is_fsdp_enabled:
        return None
    weights: dict[str, Tensor] = trainer.accelerator.get_state_dict(trainer.model)
    return weights
