"""What a process holds, and what methods leave on a model, an optimizer and in the process."""

import contextlib
import functools
import gc
import io
import sys
import tempfile
import threading
import tracemalloc
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.nn.modules import module as modules
from torch.optim import optimizer as optimizers

from helpers.training import Rows, arguments
from smoothtune import METHODS, Objective, SmoothTrainer
from smoothtune.core.attachment import _TAKEN
from smoothtune.core.regularizer import Regularizer
from smoothtune.testing import tiny_batch, tiny_model

PYTHON_GROWTH = 64 * 1024  # bytes of Python objects that are no leak: caches that fill slowly


class Held(NamedTuple):
    """What is alive after a collection of garbage."""

    python: int
    """Bytes of objects made since `tracemalloc.start`."""
    tensors: int
    tensor_bytes: int
    resident: int
    """Bytes of the process."""


def held() -> Held:
    """Collect garbage, and count what is left."""
    gc.collect()
    tensors = [o for o in gc.get_objects() if issubclass(type(o), torch.Tensor)]
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
    return Held(
        python=tracemalloc.get_traced_memory()[0],
        tensors=len(tensors),
        tensor_bytes=sum(storages.values()),
        resident=int(Path("/proc/self/statm").read_text().split()[1]) * 4096,
    )


def grown(before: Held, after: Held) -> str:
    """What says that memory is lost; empty if nothing does."""
    told = []
    if after.python - before.python > PYTHON_GROWTH:
        told.append(f"{after.python - before.python} bytes of Python objects more")
    if after.tensors > before.tensors:
        told.append(f"{after.tensors - before.tensors} tensors more")
    if after.tensor_bytes > before.tensor_bytes:
        told.append(f"{after.tensor_bytes - before.tensor_bytes} bytes of tensors more")
    return ", ".join(told)


def traces(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Hooks, replaced modules and settings of a model and its optimizer, to be compared."""
    found: dict[str, Any] = {"config": model.config.to_dict()}
    for name, module in model.named_modules():
        hooks = {key: len(value) for key, value in vars(module).items() if key.endswith("_hooks")}
        found[name] = (type(module), sorted(vars(module)), hooks, module.training)
        found[name] += (getattr(module, "p", None),)
    for name, weight in model.named_parameters():
        kinds = ("_backward_hooks", "_post_accumulate_grad_hooks")
        hooks = {kind: len(getattr(weight, kind) or ()) for kind in kinds}
        found[f"{name} (weight)"] = (type(weight), hooks, weight.requires_grad)
    for kind in ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"):
        found[kind] = len(getattr(optimizer, kind))
    found["groups"] = [len(group["params"]) for group in optimizer.param_groups]
    return found | process_traces()


def process_traces() -> dict[str, Any]:
    """Global hooks, threads, open files and caches of the process."""
    found: dict[str, Any] = {
        name: len(value)
        for place in (modules, optimizers)
        for name, value in vars(place).items()
        if name.startswith("_global_") and isinstance(value, dict)
    }
    found["threads"] = threading.active_count()
    found["files"] = len(list(Path("/proc/self/fd").iterdir()))
    found["models taken"] = len(_TAKEN)
    found["modes"] = torch._C._len_torch_dispatch_stack()
    return found


def cache_sizes() -> dict[str, int]:
    """Entries of every `functools.cache` of the library."""
    return {
        f"{name}.{key}": value.cache_info().currsize
        for name, module in list(sys.modules.items())
        if name.startswith("smoothtune")
        for key, value in vars(module).items()
        if isinstance(value, functools._lru_cache_wrapper)
    }


class Loop:
    """A plain training loop of a tiny BERT with one method, bound."""

    def __init__(self, method: Regularizer) -> None:
        self.model = tiny_model("bert", dropout=0.1, dtype=torch.float32)
        self.model.config.problem_type = "single_label_classification"  # else its forward sets it
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        self.batch = tiny_batch()
        self.before = traces(self.model, self.optimizer)
        self.objective = Objective(method).bind(self.model, self.optimizer)

    def steps(self, count: int) -> None:
        """Train."""
        for _ in range(count):
            self.objective(self.model, self.batch).backward()
            self.optimizer.step()
            self.optimizer.zero_grad()


class Fault(Exception):
    """Thrown into a step."""


@contextlib.contextmanager
def fault_at(model: torch.nn.Module, event: int) -> Iterator[list[int]]:
    """Throw `Fault` when a block of the model has been passed so often, forward or backward.

    Yields:
        The events so far, as the only entry of a list.
    """
    count = [0]

    def passed(*_: Any) -> None:
        count[0] += 1
        if count[0] == event:
            raise Fault

    def forward(module: torch.nn.Module, args: Any, output: Any) -> None:
        passed()
        tensor = output if isinstance(output, torch.Tensor) else output[0]
        if tensor.requires_grad:
            tensor.register_hook(passed)

    handle = model.base_model.encoder.layer[-1].register_forward_hook(forward)
    try:
        yield count
    finally:
        handle.remove()


def left_by_faults(make: Callable[[], Regularizer], most: int = 12) -> list[str]:
    """Throw an exception at every point of a step in turn; what is left after each.

    Args:
        make: makes the method.
        most: points tried, evenly over the step.
    """
    loop = Loop(make())
    with fault_at(loop.model, 0) as events:
        loop.steps(1)
    loop.objective.detach()
    points = sorted({1 + i * (events[0] - 1) // max(most - 1, 1) for i in range(most)})
    found = [f"{key} after detach" for key in _differing(loop)]
    for point in points:
        loop = Loop(make())
        attached = traces(loop.model, loop.optimizer)
        thrown = False
        with fault_at(loop.model, point):
            try:
                loop.steps(1)
            except Fault:
                thrown = True
        if not thrown:
            found.append(f"no exception at point {point} of {events[0]}")
        now = traces(loop.model, loop.optimizer)
        found += [f"{key} after a fault" for key in attached if now[key] != attached[key]]
        loop.steps(1)  # the loop can go on
        loop.objective.detach()
        found += [f"{key} after a fault and detach" for key in _differing(loop)]
    return found


def _differing(loop: Loop) -> list[str]:
    now = traces(loop.model, loop.optimizer)
    return [key for key in loop.before if now.get(key) != loop.before[key]] + [
        key for key in now if key not in loop.before
    ]


def is_collectable(make: Callable[[], Regularizer], *, detach: bool) -> bool:
    """Whether model and objective are freed when nothing refers to them, detached or not."""
    loop = Loop(make())
    loop.steps(1)
    references = weakref.ref(loop.model), weakref.ref(loop.objective)
    if detach:
        loop.objective.detach()
    del loop
    gc.collect()
    return all(reference() is None for reference in references)


def growth_of_trainers(first: int, last: int, *, trace: bool = True) -> dict[str, int]:
    """Make trainers, train each one step, and drop it.

    Args:
        first: how many before memory is counted.
        last: how many in all.
        trace: count Python objects too, which takes time.

    Returns:
        Growth of what `Held` has, from the first count to the last; `models` that are not freed;
        by their names, global hooks, threads and open files that are more than before.
    """
    models: list[weakref.ref] = []
    with tempfile.TemporaryDirectory() as folder:
        _train(folder, models)
        process = process_traces()
        if trace:
            tracemalloc.start()
        while len(models) < first:
            _train(folder, models)
        before = held()
        while len(models) < last:
            _train(folder, models)
        after = held()
    tracemalloc.stop()
    found = {name: getattr(after, name) - getattr(before, name) for name in Held._fields}
    found["models"] = sum(model() is not None for model in models)
    more = {name: count - process[name] for name, count in process_traces().items()}
    return found | {name: count for name, count in more.items() if count}


def _train(folder: str, models: list[weakref.ref]) -> None:
    names = list(METHODS)
    trainer = SmoothTrainer(
        model=tiny_model("bert", dropout=0.1, dtype=torch.float32),
        args=arguments(folder, per_device_train_batch_size=4),
        train_dataset=Rows(4),
        regularizers=[METHODS[names[len(models) % len(names)]]()],
    )
    models.append(weakref.ref(trainer.model))
    with contextlib.redirect_stdout(io.StringIO()):
        trainer.train()
