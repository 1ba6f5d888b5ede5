"""A clean pass on some rows of its batch, on which a term is estimated for less.

The rows are drawn without replacement, so the mean over them has the mean over the batch as its
expectation. The clean pass that the task loss needs is used again wherever its dropout masks are
known row by row: perturbed passes then differ from it by the perturbation alone. Where they are
not, and for derivatives of the clean pass itself, the rows get a clean pass of their own.
"""

import math
from typing import Any

import torch
from torch import Tensor

from smoothtune.core.compute_loss import Result
from smoothtune.core.forward import ForwardPass
from smoothtune.core.regularizer import Penalty
from smoothtune.nn import rng
from smoothtune.nn.architecture import unwrap
from smoothtune.nn.causal_lm import num_items, target_mask
from smoothtune.nn.dropout import SharedMasks
from smoothtune.nn.model_facts import predicts_tokens

PREDICTIONS = ("logits", "start_logits", "end_logits", "sentence_embedding")


def draw_rows(count: int, part: float, device: torch.device) -> Tensor:
    """(n,) numbers of ceil(part * count) of `count` rows, in their order; part in (0, 1]."""
    n = math.ceil(round(part * count, 9))  # 0.07 * 100 is above 7
    return torch.randperm(count, device=device)[:n].sort().values


def subset_pass(clean: ForwardPass, method: Penalty, *, runs: bool) -> ForwardPass:
    """The clean pass on as many random rows of its batch as a method asks for.

    Args:
        clean: over the whole batch; it is returned if these are all its rows.
        method: whose term is taken on the part.
        runs: the clean pass runs in any case, so it may serve the part.

    Raises:
        ValueError: an input of the model has not one entry for each row.
    """
    count = len(clean.batch["input_ids"]) if "input_ids" in clean.batch else 1
    rows = draw_rows(count, method.rows, clean.device)
    if len(rows) == count:
        return clean
    batch = rows_of_batch(clean, rows, count)
    traits = method.traits
    derivative = traits.differentiates and not traits.finite_differences
    shares = runs and not derivative and _has_masks_by_row(clean.run(), method)
    part = ForwardPass(
        clean.model,
        batch,
        compute_loss=clean.compute_loss,
        points=clean.points if shares else method.points(),
        differentiable=derivative,
        hidden_states=traits.hidden_states,
        side=clean.side,
        labeled=clean.labeled,
        start=clean.start if shares else rng.get_state(clean.device),
    )
    part._full = clean
    if shares:
        _take_results(part, clean, rows, count)
    elif clean.shared_masks is not None:
        part.shared_masks = SharedMasks()
    return part


def rows_of_batch(clean: ForwardPass, rows: Tensor, count: int) -> dict[str, Any]:
    """The model inputs of some rows.

    The number of label tokens that a language model's sums are divided by is that of the
    whole batch times the part, so that their expectation is that of the whole batch.

    Raises:
        ValueError: an input has not one entry for each row.
    """
    subset = {}
    for name, value in clean.batch.items():
        if not isinstance(value, Tensor) or value.ndim == 0 or name == "num_items_in_batch":
            subset[name] = value
        elif len(value) in (1, count):
            subset[name] = value if len(value) == 1 else value[rows]
        else:
            raise ValueError(
                f"rows below 1 needs inputs with an entry for each of the {count} rows of a batch, "
                f"and `{name}` has shape {tuple(value.shape)}: leave rows at 1, or give the method "
                "every=k"
            )
    if predicts_tokens(unwrap(clean.model)):
        subset["num_items_in_batch"] = num_items(clean.batch) * (len(rows) / count)
    return subset


def _has_masks_by_row(clean: ForwardPass, method: Penalty) -> bool:
    """Whether passes over some rows can have the dropout masks that a method's passes need."""
    if not method.shares_masks or rng.same(clean._fixed_start(), clean.end):
        return True
    modules = unwrap(clean.model).modules()
    if any(getattr(module, "gradient_checkpointing", False) for module in modules):
        return False  # masks would be drawn again in the backward pass, for the rows alone
    masks = clean.shared_masks
    return masks is not None and masks.are_by_row(len(clean.mask))


def _take_results(part: ForwardPass, clean: ForwardPass, rows: Tensor, count: int) -> None:
    """Give a part what the clean pass has computed for its rows."""
    full = clean._finished
    each = len(clean.mask) // count  # sequences of a row; several in multiple choice
    sequences = (each * rows[:, None] + torch.arange(each, device=rows.device)).flatten()
    outputs = {name: value for name, value in full.outputs.items() if name not in PREDICTIONS}
    for name in PREDICTIONS:
        if name in full.outputs:
            outputs[name] = _rows_of_output(clean, name, rows, count)
    states = full.hidden_states
    part._result = Result(
        None,
        outputs,
        None if states is None else [state[sequences] for state in states],
        {point: value[sequences] for point, value in full.values.items()},
    )
    part._values = {point: value[sequences] for point, value in clean._values.items()}
    part.end = part._rng_end = clean.end
    if clean.shared_masks is not None:
        part.shared_masks = clean.shared_masks.of_rows(sequences)


def _rows_of_output(clean: ForwardPass, name: str, rows: Tensor, count: int) -> Tensor:
    value = clean.outputs[name]
    if name == "logits" and value.ndim == 2 and predicts_tokens(unwrap(clean.model)):
        of_token = target_mask(clean.batch).nonzero()[:, 0]  # the row of every label token
        return value[torch.isin(of_token, rows)]
    if len(value) != count:
        raise ValueError(
            f"rows below 1 needs an output for each of the {count} rows of a batch, and `{name}` "
            f"has shape {tuple(value.shape)}: leave rows at 1, or give the method every=k"
        )
    return value[rows]
