"""The check that a user with a GPU runs, here against the CPU itself."""

import json
import os
import subprocess
import sys
from pathlib import Path

import gpu_check
import pytest
import torch

from smoothtune import METHODS

ROOT = Path(__file__).parent.parent
CPU = torch.device("cpu")


def test_a_device_that_computes_something_else_is_told(monkeypatch) -> None:
    exact, calls = gpu_check.gradient, []

    def one_in_a_million(*arguments, **options):
        calls.append(arguments)
        found = exact(*arguments, **options)
        if len(calls) % 2 == 0:  # what the device gives
            found[found.abs().argmax()] *= 1 + 1e-5
        return found

    assert all(row["ok"] for row in gpu_check.agreement(["lnsr"], CPU))
    monkeypatch.setattr(gpu_check, "gradient", one_in_a_million)
    found = gpu_check.agreement(["lnsr"], CPU)
    assert [row["what"] for row in found] == ["lnsr, bert", "lnsr, llama"]
    assert not any(row["ok"] for row in found)
    content = {"device": "cuda", "name": "card", "torch": "2", "seconds": 1}
    text = gpu_check.report(content | {"checks": found})
    assert "2 of 2 checks differ." in text
    assert "| agreement | lnsr, llama |" in text


@pytest.mark.parametrize("name", ["child_tuning", "reinit"])
def test_a_device_that_draws_other_numbers_agrees(name, monkeypatch) -> None:
    made, normal, seeds = gpu_check.tiny_model, torch.Tensor.normal_, iter((1, 2, 3, 4))

    def then_other_numbers(*arguments, **options):
        monkeypatch.setattr(torch.Tensor, "normal_", normal)
        model = made(*arguments, **options)
        torch.manual_seed(seed := next(seeds))
        drawn = lambda weight, *a, **o: normal(weight, *a, **o).mul_(seed)  # noqa: E731
        monkeypatch.setattr(torch.Tensor, "normal_", drawn)
        return model

    monkeypatch.setattr(gpu_check, "tiny_model", then_other_numbers)
    assert [row["difference"] for row in gpu_check.agreement([name], CPU)] == [0, 0]


def test_an_error_in_one_method_is_told_beside_the_others(monkeypatch) -> None:
    def without_smart(names, device):
        if names == ["smart"]:
            raise RuntimeError("no such kernel")
        return []

    monkeypatch.setattr(gpu_check, "agreement", without_smart)
    monkeypatch.setattr(gpu_check, "repeatability", lambda names, device: [])
    monkeypatch.setattr(gpu_check, "in_environments", lambda names, device: [])
    assert gpu_check.checks_of("lnsr", "cpu") == []
    (row,) = gpu_check.checks_of("smart", "cpu")
    assert not row["ok"]
    assert row["what"] == "smart, RuntimeError: no such kernel"


def test_a_training_that_differs_the_second_time_is_told(monkeypatch) -> None:
    assert gpu_check.repeatability(["r3f"], CPU)[0]["ok"]
    weights = iter([torch.tensor([1.0]), torch.tensor([1.0 + 1e-7])])
    monkeypatch.setattr(gpu_check, "weights_after", lambda *_: next(weights))
    assert not gpu_check.repeatability(["r3f"], CPU)[0]["ok"]


def test_sixteen_bits_are_near_and_not_the_same() -> None:
    found = {row["check"]: row for row in gpu_check.in_environments(["plain", "uegr"], CPU)}
    assert all(row["ok"] for row in found.values())
    assert 0 < found["bf16 autocast"]["difference"] < gpu_check.NEAR
    assert gpu_check.difference(torch.ones(2), torch.tensor([1.0, torch.nan])) == torch.inf


def test_processes_that_fail_are_told_beside_the_others(monkeypatch) -> None:
    def failing(command, **options):
        raise subprocess.TimeoutExpired(command, options["timeout"])

    monkeypatch.setattr(gpu_check.subprocess, "run", failing)
    (row,) = gpu_check.nccl(CPU)
    assert not row["ok"]
    assert (row["check"], row["what"]) == ("2 processes", "TimeoutExpired")


@pytest.mark.slow
def test_the_cost_program_on_the_cpu(tmp_path: Path) -> None:
    command = [sys.executable, ROOT / "benchmarks" / "gpu_cost.py", "--device", "cpu", "--tiny"]
    command += ["--budget", "600", "--output", tmp_path / "gpu-cost"]
    environment = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}"}
    subprocess.run(command, check=True, capture_output=True, env=environment)
    rows = [json.loads(line) for line in (tmp_path / "gpu-cost.jsonl").read_text().splitlines()]
    assert {row["way"] for row in rows} >= {f"`{name}`" for name in METHODS}
    assert not [row for row in rows if "note" in row]
    assert "complete" in (tmp_path / "gpu-cost.md").read_text()


@pytest.mark.slow
def test_the_whole_check(tmp_path: Path) -> None:
    command = [sys.executable, ROOT / "scripts" / "gpu_check.py", "--device", "cpu"]
    command += ["--output-dir", tmp_path, "--method", "plain", "--method", "lnsr"]
    environment = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}"}
    found = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert found.returncode == 0, found.stdout + found.stderr
    content = json.loads((tmp_path / "gpu-check.json").read_text())
    assert {row["check"] for row in content["checks"]} == {
        "agreement",
        "repeatability",
        *gpu_check.MODES,
        "2 processes",
    }
    assert "Nothing differs." in (tmp_path / "gpu-check.md").read_text()
