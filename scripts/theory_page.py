"""docs/theory.md: what the papers prove, as benchmarks/theory.py measured it."""

import json
from pathlib import Path
from typing import Any

import claims
from tables import table

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "theory.md"
RESULT = ROOT / "benchmarks" / "results" / "theory.json"
SHARPER = claims.Claim(
    place="",
    claim="",
    measure="sharpness",
    better="less",
    studies=["effect-fresh"],
    method=["uegr"],
)
SIGMAS = ("0.02", "0.05", "0.1", "0.2")
INTRODUCTION = """\
# Theory, measured

<!-- Written by `make docs` from benchmarks/results/theory.json: change scripts/theory_page.py. -->

The papers prove things about noise, bounds and flat losses. `smoothtune evaluate MODEL
--smoothness` measures both sides of them on a trained model. The numbers below are of MiniLM on
{rows} sentences of SST-2, {epochs} epochs, one seed. They say nothing about other models. One
script made them: [`benchmarks/theory.py`](../benchmarks/theory.py). What methods change over
several seeds is in [The papers' claims](claims.md).
"""
NOISE = """\
## Noise

LNSR's term is the squared distance of the hidden states under noise. Claim 1 (TNNLS 2023) expands
it, for noise of deviation sigma: sigma^2 ||J||^2 + sigma^4 / 4 sum_i [(tr H_i)^2 + 2 ||H_i||^2].
*First order* is the term with the Jacobian J, *second order* both.

- Equation 14 prints sigma^2 before the Hessian's term. It has to be sigma^4: of a quadratic network
  [both sides](../tests/evaluation/test_theory.py) are equal with it.
- Equation 18 counts only the entries of H beside the diagonal, and once. The fourth moment of
  Gaussian numbers gives 2 ||H||^2.
- The claim leaves out the third derivative, which has sigma^4 as well. So the second order need not
  be nearer than the first for a real network.

Sigma is relative to the first hidden state; LNSR's default is 0.05. The measured term over each
order, where 1 is a perfect expansion:
"""
BOUNDS = """\
## Bounds

The papers take the Frobenius norm of the Jacobian for how steep a function is (NAACL, equations 7
to 10; JacHess, section 3.1). Near an input the spectral norm bounds how far the logits move. The
Frobenius norm is never smaller. Both are of the logits in the word embeddings. The last columns are
what perturbations of 5 % of the embeddings' norm do, per unit of length:
"""
FLATNESS = """\
## Flatness

UEGR is said to flatten the loss. Sharpness is how far the loss rises in one step of length 0.05
along its gradient in the weights ([SAM](methods/sam.md)), without a method and with it:
"""
BASELINES = """\
## Beside a temperature

A [temperature](evaluation.md) betters probabilities for nothing but held-out rows: here half of the
{held_out} validation rows. NLL and ECE are of the other half.
"""
AVERAGE = """\
The average of three plain models takes three times plain's training, about what UEGR takes.
"""


def page() -> str:
    """The page, from what was measured."""
    content = json.loads(RESULT.read_text("utf-8"))
    training, runs = content["training"], content["runs"]
    full = [run for run in runs if "sharpness" in run]
    introduction = INTRODUCTION.format(
        rows=training["max_train_samples"], epochs=training["num_train_epochs"]
    )
    held_out = training["max_eval_samples"]
    parts = [introduction, NOISE, _expansion(full), BOUNDS, _bounds(full), FLATNESS]
    parts += [_flatness(full), BASELINES.format(held_out=held_out)]
    parts += [AVERAGE] * ("average" in content) + [_baselines(content)]
    return "\n".join(parts)


def _expansion(runs: list[dict[str, Any]]) -> str:
    rows = []
    for run in runs:
        numbers = run["expansion"]["numbers"]
        for order in ("first order", "second order"):
            shares = [f"{numbers[f'measured over {order}, sigma {sigma}']:.3f}" for sigma in SIGMAS]
            rows.append([run["method"], order, *shares])
    titles = ["model", "measured over", *(f"sigma {sigma}" for sigma in SIGMAS)]
    nearer = sum(
        abs(measured - second) < abs(measured - first)
        for run in runs
        for measured, first, second in zip(
            *([point[1] for point in line] for line in run["expansion"]["lines"].values()),
            strict=True,
        )
    )
    end = (
        f"The second order is nearer than the first in {nearer} of {len(runs) * len(SIGMAS)} cells."
    )
    return f"{table(titles, rows)}\n{end}\n"


def _bounds(runs: list[dict[str, Any]]) -> str:
    names = ["spectral norm", "Frobenius norm", "moved along the steepest direction"]
    names += ["moved by noise"]
    rows = []
    for run in runs:
        found = run["lipschitz"]
        above = f"{found['above the bound']:.0%}".replace("%", " %")
        rows.append([run["method"], *(f"{found[name]:.3g}" for name in names), above])
    return table(["model", *names, "examples above the Frobenius norm"], rows)


def _flatness(runs: list[dict[str, Any]]) -> str:
    plain = runs[0]["sharpness"]
    rows = [
        [run["method"], f"{run['sharpness']:.3g}", f"{run['sharpness'] / plain:.2f}"]
        for run in runs
    ]
    seeds = claims.find(SHARPER, claims.runs())
    assert seeds is not None
    end = (
        f"Of UEGR over ten seeds ([`{seeds.study}`](../results/{seeds.study}.md)): "
        f"{seeds.difference} beside plain's sharpness, {seeds.verdict}."
    )
    return f"{table(['model', 'sharpness', 'relative to plain'], rows)}\n{end}\n"


def _baselines(content: dict[str, Any]) -> str:
    runs = [run for run in content["runs"] if run["seed"] == 1]
    plain, methods = runs[0], runs[1:]
    rows = [_line(f"{run['method']}, seed 1", run) for run in runs]
    if average := content.get("average"):
        rows.append(_line(average["method"], average))
    cured = plain["after"]["nll"]
    others = [(f"`{run['method']}`", run) for run in methods]
    others += [("The average of three", average)] * bool(average)
    sentences = []
    for name, found in others:
        nll = found["before"]["nll"]
        beats = "is" if nll < cured else "is not"
        sentences.append(
            f"- {name} {beats} below plain with a temperature in NLL: {nll:.3f} and {cured:.3f}."
        )
    titles = ["model", "accuracy, all rows", "NLL", "ECE", "NLL with a temperature", "temperature"]
    end = "\nOne seed each, and small differences: a direction, and no result.\n"
    return table(titles, rows) + "\n" + "\n".join(sentences) + "\n" + end


def _line(name: str, found: dict[str, Any]) -> list[str]:
    before, after = found["before"], found["after"]
    return [
        name, f"{found['score']:.3f}", f"{before['nll']:.3f}", f"{before['ece']:.3f}",
        f"{after['nll']:.3f}", f"{found['temperature']:.2f}",
    ]  # fmt: skip


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
