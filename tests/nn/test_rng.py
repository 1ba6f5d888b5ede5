"""Random streams: apart from the ambient one, and from each other."""

import hashlib
from types import SimpleNamespace

import pytest
import torch

from smoothtune.nn import rng

CPU = torch.device("cpu")


def ambient(seed):
    torch.manual_seed(seed)
    return torch.rand(3)


def drawn(seed=1, name="lnsr", call=2, **options):
    with rng.stream(CPU, seed, name, call, **options):
        return torch.rand(3)


def test_streams_are_told_apart_by_seed_name_and_call():
    first = drawn()
    assert torch.equal(drawn(), first)
    assert torch.equal(drawn(every_process=True), first)  # in one process it makes no difference
    for other in (drawn(seed=3), drawn(name="r3f"), drawn(call=3)):
        assert not torch.equal(other, first)


def test_the_seed_of_a_stream():
    """Studies repeat their runs, so it must stay what it is."""
    digest = hashlib.blake2b(b"1/lnsr/2/0", digest_size=8).digest()
    assert torch.equal(drawn(), ambient(int.from_bytes(digest, "big") >> 1))


def test_only_generators_in_use_are_seeded(monkeypatch):
    """torch.manual_seed writes a stack trace for every kind of device that is not there."""
    calls = []
    accelerator = SimpleNamespace(
        manual_seed=lambda seed: calls.append(("one", seed)),
        manual_seed_all=lambda seed: calls.append(("all", seed)),
        get_rng_state=lambda device: torch.zeros(1),
        set_rng_state=lambda state, device: calls.append(("state", state)),
    )
    monkeypatch.setattr(torch, "get_device_module", lambda device: accelerator)
    monkeypatch.setattr(torch, "manual_seed", None)
    digest = hashlib.blake2b(b"1/lnsr/2/0", digest_size=8).digest()
    with rng.stream(torch.device("cuda"), 1, "lnsr", 2):
        assert calls == [("all", int.from_bytes(digest, "big") >> 1)]
        assert torch.initial_seed() == calls[0][1]
    assert calls[1] == ("state", torch.zeros(1))


@pytest.mark.parametrize("every_process", [True, False])
def test_processes_draw_for_themselves_unless_told_otherwise(monkeypatch, every_process):
    alone = drawn()
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 3)
    assert torch.equal(drawn(every_process=every_process), alone) == every_process


@pytest.mark.parametrize(
    "around",
    [
        lambda: rng.isolated(CPU),
        lambda: rng.stream(CPU, 1, "lnsr", 2),
        lambda: rng.replay(CPU, rng.get_state(CPU)),
    ],
)
def test_the_ambient_generator_is_left_where_it_was(around):
    expected = ambient(7)
    torch.manual_seed(7)
    with around():
        torch.rand(5)
    assert torch.equal(torch.rand(3), expected)
    torch.manual_seed(7)
    with pytest.raises(ZeroDivisionError), around():
        1 / len(torch.rand(5)[5:])
    assert torch.equal(torch.rand(3), expected)


def test_replay_draws_again_what_was_drawn():
    torch.manual_seed(7)
    state = rng.get_state(CPU)
    first = torch.rand(3)
    torch.rand(5)
    with rng.replay(CPU, state):
        assert torch.equal(torch.rand(3), first)
    rng.set_state(CPU, state)
    assert torch.equal(torch.rand(3), first)


def test_draws():
    torch.manual_seed(0)
    x = torch.zeros(200, 1000, dtype=torch.float64, requires_grad=True)
    normal, uniform = rng.normal_like(x), rng.uniform_like(x)
    for draws, variance in ((normal, 1.0), (uniform, 1 / 3)):
        assert (draws.shape, draws.dtype, draws.requires_grad) == (x.shape, x.dtype, False)
        assert draws.mean().item() == pytest.approx(0, abs=0.01)
        assert draws.var().item() == pytest.approx(variance, rel=0.01)
    assert uniform.min() > -1
    assert uniform.max() < 1
    assert uniform.max() > 0.99
    assert normal.abs().max() > 3
    keep = rng.keep_mask((400, 500), 0.3, x)
    assert (keep.shape, keep.dtype) == ((400, 500), x.dtype)
    assert set(keep.unique().tolist()) == {0.0, 1.0}
    assert keep.mean().item() == pytest.approx(0.7, abs=0.01)


def test_16_bits_do_not_round_the_probability_of_a_mask():
    """The number of bfloat16 that is nearest to 0.999 is 1."""
    keep = rng.keep_mask((1000, 1000), 0.001, torch.zeros((), dtype=torch.bfloat16))
    assert keep.dtype == torch.bfloat16
    assert keep.float().mean().item() == pytest.approx(0.999, abs=2e-4)
