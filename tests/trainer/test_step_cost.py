"""What a step costs."""

import json
import sys

import pytest
import torch
from typer.testing import CliRunner

from helpers.tiny_folder import tiny_bert
from smoothtune import CWGNC, LNSR, SMART, FreeLB, JacHess, Mixout
from smoothtune.cli import app
from smoothtune.testing import tiny_model
from smoothtune.trainer.cost import MemoryEstimate, StepCost, measure_step_cost, random_batches


def test_ratio_is_the_median_of_the_rounds():
    cost = StepCost(plain=[1.0, 2.0, 4.0], methods=[3.0, 4.0, 4.0])
    assert cost.ratios == [3.0, 2.0, 1.0]
    assert cost.ratio == 2.0
    assert (cost.plain_seconds, cost.seconds) == (2.0, 4.0)


@pytest.mark.parametrize(
    ("method", "passes"),
    [
        (LNSR(weight=1.0, ramp_start=0.5), 2),  # as after its ramp
        (CWGNC(), 1),  # edits gradients, no pass of its own
        (LNSR(weight=1.0), 2),  # clean and noisy
        (FreeLB(num_steps=3), 3),  # a step each, no clean pass
        (SMART(mu=0, num_steps=2, weight=1.0), 4),  # clean, two steps of the search, its result
        (
            JacHess(c=1.0, smoothness=[1.0, 1.0], weight=1.0),
            4,
        ),  # clean, three for forward differences
    ],
    ids=lambda x: getattr(x, "name", ""),
)
def test_a_clock_that_ticks_with_every_forward_shows_the_number_of_passes(
    monkeypatch, method, passes
):
    model = tiny_model("bert", dtype=torch.float32)
    batches = random_batches(model, 3, 4, 6)
    warm_up = 2 * (1 + passes)  # both kinds of steps on the first two batches
    forwards = []
    model.classifier.register_forward_hook(lambda *_: forwards.append(1))

    def clock():  # the first forwards are slow, as on a cold cache
        return len(forwards) + 100 * min(len(forwards), warm_up)

    monkeypatch.setattr("smoothtune.trainer.cost.time.perf_counter", clock)
    cost = measure_step_cost(model, [method], batches)
    assert (cost.plain, cost.methods) == ([1, 1, 1], [passes] * 3)
    assert cost.ratio == passes
    assert (cost.plain_memory, cost.methods_memory) == (None, None)


def test_measuring_changes_nothing():
    model = tiny_model("bert", dropout=0.1, dtype=torch.float32)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    batches = random_batches(model, 3, 4, 6)
    torch.manual_seed(1)
    state = torch.get_rng_state()
    cost = measure_step_cost(model, [LNSR(weight=1.0), Mixout()], batches)
    assert len(cost.plain) == len(cost.methods) == 3
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())


@pytest.mark.parametrize("autocast", [None, torch.bfloat16])
def test_steps_compute_in_the_type_of_the_run(autocast):
    model = tiny_model("bert", dtype=torch.float32)
    seen = []
    model.classifier.register_forward_hook(lambda *found: seen.append(found[2].dtype))
    measure_step_cost(model, [Mixout()], random_batches(model, 3, 4, 6), autocast=autocast)
    assert set(seen) == {autocast or torch.float32}


@pytest.mark.skipif(sys.platform != "linux", reason="peak memory is read from /proc")
def test_memory_of_a_second_pass_is_seen():
    model = tiny_model("bert", dtype=torch.float32)
    batches = random_batches(model, 2, 512, 30)
    cost = measure_step_cost(model, [LNSR(weight=1.0)], batches, memory=True)
    assert cost.methods_memory > 1.3 * cost.plain_memory


def test_price_list_on_the_command_line(tmp_path):
    tiny_bert(tmp_path / "model")
    result = CliRunner().invoke(
        app,
        ["cost", "--method", "lnsr:layer=1", "--method", "cwgnc", "--rounds", "2"]
        + ["--model", str(tmp_path / "model"), "--batch", "2", "--length", "8"],
    )
    assert result.exit_code == 0, result.output
    rows = [line.split("\t") for line in result.output.splitlines() if "\t" in line]
    assert [row[0] for row in rows] == ["lnsr:layer=1", "cwgnc"]
    assert all(float(row[1]) > 0 for row in rows)


def test_price_list_with_adapters(tmp_path):
    tiny_bert(tmp_path / "model")
    options = ["--model", str(tmp_path / "model"), "--batch", "2", "--length", "8", "--rounds", "1"]
    command = ["cost", *options, "--lora", "r=2,target_modules=[query]", "--method"]
    found = CliRunner().invoke(app, [*command, "lnsr"])
    assert found.exit_code == 0, found.output
    refused = CliRunner().invoke(app, [*command, "reinit"])
    assert (refused.exit_code, "frozen (by LoRA, perhaps)" in refused.output) == (2, True)


def test_the_batch_that_fits_is_read_off_a_line():
    peak = MemoryEstimate({8: 1000, 16: 1400})  # 600 + 50 a row
    assert peak.bytes_per_row == 50
    assert peak.largest_batch(2000) == 26  # 1,300 of 1,900 that are not spared
    assert peak.largest_batch(1000) == 7
    assert peak.largest_batch(600) == 0
    assert MemoryEstimate({8: 1000, 16: 990}).largest_batch(2000) is None


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="peak memory is read from /proc")
def test_the_batch_that_fits_stays_below_the_budget(tmp_path):
    """A second measurement at the predicted number of rows."""
    tiny_bert(tmp_path / "model")
    options = ["--model", str(tmp_path / "model"), "--length", "32", "--json"]
    command = ["cost", "--method", "lnsr", "--method", "uegr", *options]
    budget = 2 * 2**30
    first = CliRunner().invoke(app, [*command, "--batch", "512", "--budget", "2GiB"])
    assert first.exit_code == 0, first.output
    plain, checkpointed, _, refused = json.loads(first.stdout)["methods"]
    assert (plain["method"], checkpointed["gradient_checkpointing"]) == ("lnsr", True)
    assert "turn checkpointing off" in refused["refused"]
    assert checkpointed["largest_batch"] > plain["largest_batch"] > 1024
    rows = plain["largest_batch"] // 2
    again = CliRunner().invoke(
        app, [*command[:3], *options, "--batch", str(rows), "--budget", "2GiB"]
    )
    peak = json.loads(again.stdout)["methods"][0]["peak_bytes"][str(2 * rows)]
    assert 0.85 * budget < peak < budget


def test_a_budget_is_an_amount_of_memory():
    found = CliRunner().invoke(app, ["cost", "--method", "lnsr", "--budget", "much"])
    assert found.exit_code == 2
    assert "write 16GiB" in found.output
    rounded = ["--lora", "r=4", "--frozen-weights", "bfloat16"]
    found = CliRunner().invoke(app, ["cost", "--method", "lnsr", *rounded])
    assert found.exit_code == 2
    assert "--frozen-weights needs --budget" in found.output


def test_a_budget_is_refused_where_memory_cannot_be_measured(monkeypatch):
    monkeypatch.setattr("smoothtune.cli.cost.measurable", lambda: False)
    found = CliRunner().invoke(app, ["cost", "--method", "lnsr", "--budget", "4GiB"])
    assert found.exit_code == 2
    assert "leave --budget out" in found.output


class _Pool:
    """Runs nothing: its job ends for want of memory."""

    def __init__(self, *_, **__):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def submit(self, *_):
        raise torch.OutOfMemoryError("CUDA out of memory")


def test_a_batch_that_is_too_large_to_measure_is_told(monkeypatch):
    monkeypatch.setattr("smoothtune.cli.cost.ProcessPoolExecutor", _Pool)
    command = ["cost", "--method", "lnsr", "--budget", "4GiB", "--batch", "8"]
    found = CliRunner().invoke(app, command)
    assert found.exit_code == 0, found.output
    assert "too little memory for 16 rows: lower --batch" in found.output


def test_price_of_an_unknown_method_is_a_usage_error():
    result = CliRunner().invoke(app, ["cost", "--method", "lnrs"])
    assert result.exit_code == 2
    assert "did you mean 'lnsr'" in result.output
