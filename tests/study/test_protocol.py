"""Protocols fill in what a study leaves open, and departures are told."""

from pathlib import Path

import pytest

from smoothtune.errors import ConfigError
from smoothtune.reproduce.departures import departures
from smoothtune.study.config import load_study
from smoothtune.study.files import recipes

PROTOCOL = """
title: A paper
source: "its appendix"
seeds: 25
model: [their-model]
task:
  - {name: quality, method_fields: {in_manifold: {noise_ratio: 0.2}}, num_train_epochs: 5}
  - other
fields: {learning_rate: [1e-3, 2e-3], weight_decay: 0.1, warmup_steps: 0.06}
method_fields:
  lnsr: {weight: 1.0, k: 5}
  mixout: {p: 0.3}
departures: ["always otherwise"]
"""
STUDY = """
more_epochs: null
methods:
  - lnsr
  - {name: lnsr, label: in_manifold, noise: in_manifold, noise_ratio: 0.1}
  - {name: mixout, label: mixout, p: 0.9}
"""


@pytest.fixture
def study(write, tmp_path: Path):
    """Reads a study with the protocol, and more keys."""
    (tmp_path / "paper.yaml").write_text(PROTOCOL)

    def read(more: str):
        common = "task: {name: quality, text_columns: [text]}\n"
        text = f"{STUDY}protocol: {tmp_path / 'paper.yaml'}\n{more}"
        return load_study(write(text, common=common))

    return read


def test_what_a_study_leaves_open(study) -> None:
    found = study("warmup_steps: 0.1\nseeds: [0, 1]\n")
    labels = [entry.label for entry in found.entries]
    assert labels == ["plain", "lnsr", "in_manifold", "mixout"]
    assert [len(entry.settings) for entry in found.entries] == [2, 2, 2, 2]
    run = found.runs[0, 2, 0]
    assert (run.learning_rate, run.weight_decay, run.num_train_epochs) == (1e-3, 0.1, 5)
    assert run.warmup_steps == 0.1  # the study's own wins
    assert run.methods["lnsr"]["noise_ratio"] == 0.2  # of the task
    assert (run.methods["lnsr"]["weight"], run.methods["lnsr"]["k"]) == (1.0, 5)
    assert found.runs[0, 3, 0].methods["mixout"]["p"] == 0.9  # the entry's own wins
    told = departures(found)
    assert told[0] == "always otherwise"
    assert "model: model in place of their-model" in told
    assert "seeds: 2; the paper has 25" in told
    assert "warmup_steps: 0.1; the paper: 0.06" in told
    assert "mixout: p: 0.9; the paper: 0.3" in told
    assert not any(line.startswith(("weight_decay", "learning_rate", "lnsr")) for line in told)


def test_what_departs_is_told(study) -> None:
    more = "learning_rate: 1e-3\nmethod_fields: {lnsr: {share: 0.3}}\nmax_train_samples: 8\n"
    told = departures(study(more))
    assert "learning_rate: 0.001; the paper: searched over 0.001, 0.002" in told
    assert "lnsr: weight: not set; the paper: 1" in told


@pytest.mark.parametrize(("more", "expected"), [("", 50), ("max_train_samples: 8\n", 8)])
def test_a_limit_of_the_study_holds_for_tasks_that_the_protocol_limits(
    study, tmp_path: Path, more: str, expected: int
) -> None:
    limited = PROTOCOL.replace("num_train_epochs: 5", "max_train_samples: 50")
    (tmp_path / "paper.yaml").write_text(limited)
    assert {run.max_train_samples for run in study(more).runs.values()} == {expected}


def test_limits_are_departures(study) -> None:
    told = departures(study("max_train_samples: 8\nmax_steps: 4\n"))
    assert "max_train_samples: 8; the paper: not set" in told
    assert "max_steps: 4; the paper: not set" in told
    assert not any(line.startswith("max_eval_samples") for line in told)


def test_an_unknown_protocol(write) -> None:
    with pytest.raises(ConfigError, match="did you mean 'lnsr-naacl'"):
        load_study(write("methods: [lnsr]\nprotocol: lnsr-nacl\n"))


@pytest.mark.parametrize("wrong", ["name: rte, method_fields: 3", "name: [a]"])
def test_mistakes_beside_a_protocol(write, wrong: str) -> None:
    text = f"methods: [lnsr]\nprotocol: lnsr-tnnls\ntask: [{{{wrong}}}]\n"
    file = write(text, common="text_columns: [text]\n")
    with pytest.raises(ConfigError, match="task"):
        load_study(file)


def test_the_papers_training_without_departures_of_fields() -> None:
    """At paper scale the recipes of LNSR train as their protocols say."""
    for name in ("lnsr-table-1", "lnsr-table-vi"):
        told = departures(load_study(recipes()[name], scale="paper"))
        assert not any(": " in line and "; the paper" in line for line in told), (name, told)
