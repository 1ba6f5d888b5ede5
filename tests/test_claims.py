"""The rule by which a claim of a paper is judged."""

import json

import pandas as pd
import pytest

claims = pytest.importorskip("claims")

NEW = json.dumps({"lnsr": {"share": 0.3, "max_share": 1.0}})
OLD = json.dumps({"lnsr": {"share": 0.3}})
NOISE = [0.0, 0.3, -0.3, 0.1, -0.1]


def table(gain, *, methods=NEW, seeds=5, spread=0.001):
    rows = [
        ("s", "cola", "m", 500, name, seed, 0.5 + 0.01 * seed + part, methods)
        for seed in range(seeds)
        for name, part in (("plain", 0.0), ("lnsr", gain + spread * NOISE[seed]))
    ]
    columns = ["study", "task", "model", "max_train_samples", "method", "seed", "score", "methods"]
    return pd.DataFrame(rows, columns=columns)


def verdict(runs, **fields):
    claim = claims.Claim(place="", claim="", studies=["none", "s"], method=["lnsr"], **fields)
    return claims.find(claim, runs).verdict


def test_a_clear_gain_is_borne_out():
    assert verdict(table(0.02)) == claims.BORNE_OUT
    assert verdict(table(-0.02), better="less") == claims.BORNE_OUT
    assert verdict(table(0.02, methods=OLD)) == claims.BORNE_OUT


@pytest.mark.parametrize(
    ("gain", "fields"),
    [
        (-0.02, {}),  # the other way
        (0.004, {"gain": 1.0, "better": "more"}),  # less than half: borne out, yet see below
        (0.0, {"gain": 1.0}),
        (0.02, {"same": True}),
    ],
)
def test_what_contradicts_a_claim_refutes_it_for_the_model(gain, fields):
    expected = claims.BORNE_OUT if gain == 0.004 else claims.REFUTED
    assert verdict(table(gain), **fields) == expected


@pytest.mark.parametrize(
    "runs",
    [
        table(-0.02, methods=OLD),
        table(-0.02, seeds=3),
        table(0.02, seeds=3),
        table(0.004, spread=0.05),
    ],
)
def test_old_or_few_or_scattered_runs_decide_nothing(runs):
    assert verdict(runs, gain=1.0) == claims.OPEN


def test_without_runs_nothing_is_found():
    claim = claims.Claim(place="", claim="", studies=["none"], method=["lnsr"])
    assert claims.find(claim, table(0.02)) is None


def test_one_of_two_methods_may_be_the_baseline():
    runs = table(0.02).replace({"method": {"plain": "other"}})
    assert verdict(runs, against=["other"]) == claims.BORNE_OUT


@pytest.mark.parametrize(("nll", "sentence"), [(0.4, "beats"), (0.6, "does not beat")])
def test_a_method_is_compared_with_plain_after_a_temperature(nll, sentence):
    rows = []
    for seed, noise in enumerate(NOISE):
        for name, before, after in (("plain", 0.9, 0.5), ("lnsr", nll + 0.01 * noise, 0.3)):
            parts = json.dumps({claims.BEFORE: before, claims.AFTER: after})
            cell = f"{name} {seed}"
            rows.append(("s", cell, "cola", "m", name, seed, parts))
    rows += [("the same runs", *row[1:]) for row in rows]
    columns = ["study", "cell", "task", "model", "method", "seed", "parts"]
    found = claims.temperature_table(pd.DataFrame(rows, columns=columns))
    (line,) = [line for line in found.splitlines() if "| lnsr |" in line]
    assert line.endswith(f"| {sentence} temperature scaling in NLL |")
    assert "the same runs" not in found


def test_a_study_may_take_its_runs_of_plain_from_another():
    parts = json.dumps({claims.BEFORE: 0.9, claims.AFTER: 0.5})
    rows = [
        (study, f"{name} {seed}", "cola", "m", name, seed, parts)
        for study, names in (("first", ("plain", "lnsr")), ("second", ("plain", "vat")))
        for name in names
        for seed in range(len(NOISE))
    ]
    columns = ["study", "cell", "task", "model", "method", "seed", "parts"]
    found = claims.temperature_table(pd.DataFrame(rows, columns=columns))
    assert [line for line in found.splitlines() if "first" in line and "| lnsr |" in line]
    assert [line for line in found.splitlines() if "second" in line and "| vat |" in line]


@pytest.mark.parametrize(
    ("fields", "old"),
    [
        ({"share": 0.3}, True),
        ({"share": 0.3, "max_share": 1}, False),
        ({"weight": 1, "max_share": None}, False),  # a paper's own, which has no bound
    ],
)
def test_runs_of_before_the_bound_are_told_by_their_fields(fields, old):
    assert claims.is_old(json.dumps({"sift": fields})) is old
    assert not claims.is_old(json.dumps({"mixout": {"p": 0.5}}))
