"""The methods by what they do, with what a step of each costs; as README and docs/choosing.md."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

THROUGH = "1 pass, 1 backward to the embeddings that is itself trained through"


@dataclass(frozen=True)
class Group:
    """Methods that do the same kind of thing."""

    title: str
    costs: dict[str, str]
    """By method, what a step takes: a pass is a forward and a backward of the model, a search a
    forward and a backward to the perturbation."""


GROUPS = (
    Group("the baseline", {"plain": "1 pass"}),
    Group(
        "noise must move hidden states or predictions little",
        {"lnsr": "2 passes", "r3f": "2 passes", "r4f": "2 passes"},
    ),
    Group("train on noise, no penalty", {"noise": "1 pass", "neftune": "1 pass", "hype": "1 pass"}),
    Group(
        "the worst small perturbation must not change predictions",
        {
            "smart": "2 passes, 1 search, 1 forward of the teacher",
            "sift": "2 passes, 1 search",
            "alum": "2 passes, 1 search",
            "vat": "2 passes, 1 search",
            "alice": "3 passes, 2 searches",
        },
    ),
    Group(
        "train on adversarial examples",
        {
            "freelb": "K = 3 passes, K - 1 backwards to the perturbation",
            "fgm": "2 passes, 1 backward to the embeddings",
            "pgd": "1 pass, K = 3 searches",
        },
    ),
    Group(
        "keep derivatives in the input small",
        {
            "jachess": "4 passes",
            "jacobian": THROUGH,
            "cross_holder": "5 passes",
            "double_backprop": THROUGH,
        },
    ),
    Group(
        "sub-models of different dropout must agree",
        {
            "r_drop": "2 passes",
            "uegr": "K = 2 passes, 1 forward, 1 backward to the embeddings",
        },
    ),
    Group("stay near the pre-trained weights", {"l2_sp": "1 pass", "mixout": "1 pass"}),
    Group(
        "limit or shape the updates",
        {"cwgnc": "1 pass", "child_tuning": "1 pass", "llrd": "1 pass", "reinit": "1 pass"},
    ),
    Group("train at the worst weights nearby", {"sam": "2 passes"}),
    Group("soften the labels", {"label_smoothing": "1 pass"}),
)
"""In the order in which they are listed; all numbers are those of the default fields."""


def listed_methods() -> Iterator[tuple[str, str, str]]:
    """Name, group and cost of every method."""
    for group in GROUPS:
        for name, cost in group.costs.items():
            yield name, group.title, cost
