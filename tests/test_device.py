"""The name of what a run was timed on."""

import pytest
import torch

from smoothtune.device import device_name, slow_at_bfloat16


def test_a_processor_is_named_with_what_decides_its_speed() -> None:
    """Other threads are another device, as their times are others."""
    before = torch.get_num_threads()
    try:
        names = []
        for count in (1, 2):
            torch.set_num_threads(count)
            names.append(device_name(torch.device("cpu")))
    finally:
        torch.set_num_threads(before)
    one, two = names
    assert one.endswith(f"{torch.backends.cpu.get_cpu_capability()}, 1 thread")
    assert two == one.removesuffix("1 thread") + "2 threads"
    assert not one.startswith(",")  # the processor has a name, whatever the system says of it


def test_where_pytorch_does_not_name_the_processor(monkeypatch) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", dict, raising=False)  # torch 2.6
    monkeypatch.setattr("platform.machine", lambda: "arm64")
    assert device_name(torch.device("cpu")).startswith("arm64, ")
    assert device_name(torch.device("mps")).startswith("mps, arm64, ")


@pytest.mark.parametrize(
    ("found", "slow"),
    [
        ({"architecture": "x86_64", "avx2": True, "avx512_bw": False}, True),
        ({"architecture": "x86_64", "avx512_bw": True, "avx512_bf16": False}, False),
        ({"architecture": "x86_64", "avx512_bw": False, "avx_ne_convert": True}, False),
        ({"architecture": "aarch64"}, False),  # not known
    ],
)
def test_processors_that_are_slow_at_bfloat16(found, slow, monkeypatch) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: found, raising=False)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    assert slow_at_bfloat16() == slow
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    assert not slow_at_bfloat16()


def test_an_accelerator_is_named_by_its_driver(monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"card {device.index}")
    assert device_name(torch.device("cuda", 3)) == "card 3"
