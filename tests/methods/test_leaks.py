"""What methods leave behind: memory, hooks, threads, files, models that are not freed."""

import gc
import tracemalloc

import pytest
import torch

from helpers.leaks import (
    Loop,
    cache_sizes,
    grown,
    growth_of_trainers,
    held,
    is_collectable,
    left_by_faults,
)
from smoothtune import METHODS
from smoothtune.core.regularizer import Penalty, method

FEW = ["r3f", "mixout", "child_tuning"]  # more passes, other weights, edited gradients


@pytest.fixture(autouse=True)
def only_new_objects():
    """Collect and count no objects that were there before the test, which takes a second."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def growth(make, first, last):
    """What grows from one step to another; empty if nothing does, or only the first time.

    What is lost in every step is lost again in as many more; a cache that fills once is not.
    """
    loop = Loop(make())
    tracemalloc.start()
    try:
        loop.steps(first)
        for _ in range(2):
            before = held()
            loop.steps(last - first)
            if not (told := grown(before, held())):
                return ""
        return told
    finally:
        tracemalloc.stop()
        loop.objective.detach()


def check(name, first, last, points):
    """Nothing grows, an exception leaves nothing, and all is freed."""
    make = METHODS[name]
    assert growth(make, first, last) == ""
    caches = cache_sizes()
    assert left_by_faults(make, points) == []
    assert is_collectable(make, detach=True)
    assert is_collectable(make, detach=False)
    assert cache_sizes() == caches


@pytest.mark.parametrize("name", FEW)
def test_nothing_is_left(name):
    check(name, 5, 20, points=2)


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_nothing_is_left_of_any_method(name):
    check(name, 50, 300, points=12)


@method("leaking")
class Leaking(Penalty):
    """Keeps a tensor of every step, and a hook and a changed setting on the model."""

    def attach(self, model):
        self.kept = []
        model.classifier.register_forward_hook(lambda *_: None)
        model.config.use_cache = True

    def loss(self, clean):
        self.kept.append(torch.ones(100))
        return clean.run().logits.pow(2).mean()


def test_leaks_are_seen():
    told = growth(Leaking, 5, 15)
    assert "10 tensors more" in told
    assert "4000 bytes of tensors" in told
    left = left_by_faults(Leaking, 1)
    assert {"config after detach", "classifier after detach"} <= set(left)


def test_trainers_are_freed():
    found = growth_of_trainers(2, 5, trace=False)
    assert found["models"] == 0
    assert found.keys() <= {"python", "tensors", "tensor_bytes", "resident", "models"}
    assert found["tensors"] == found["tensor_bytes"] == 0
