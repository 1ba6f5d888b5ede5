"""How many tokens a model takes, and rows that are longer."""

from datasets import Dataset
from torch import nn

from smoothtune.data.arrow import numbers
from smoothtune.errors import ConfigError, Problem

NO_LIMIT = ("relative", "distance", "vision")
"""Parts of names of tables of distances, or of patches of an image."""


def num_positions(model: nn.Module) -> int | None:
    """Tokens of the longest row that a model takes; None without a table of positions.

    Some tables hold entries that no token gets: RoBERTa counts from the number of its padding
    token, OPT and BART from an `offset`, Nyströmformer, YOSO and MRA have a shorter list of them.
    """
    limits = []
    for name, module in model.named_modules():
        parent, _, own = name.rpartition(".")
        is_table = isinstance(module, nn.Embedding) and ("position" in own or own == "wpe")
        if is_table and not any(word in name for word in NO_LIMIT):
            padding, offset = module.padding_idx, getattr(module, "offset", 0)
            unused = offset if padding is None or offset else padding + 1
            limits.append(module.num_embeddings - unused)
            ids = dict(model.get_submodule(parent).named_buffers(recurse=False)).get("position_ids")
            if ids is not None:
                limits.append(ids.shape[-1])
    return min(limits, default=None)


def check_lengths(model: nn.Module, rows: Dataset, what: str = "the data") -> None:
    """Raise ConfigError, with the `max_seq_length` that fits, if a row of `what` is too long."""
    limit = num_positions(model)
    lengths = numbers(rows, "length")
    longest = lengths.max(initial=0)
    if limit is not None and longest > limit:
        row = numbers(rows, "example_id")[lengths.argmax()]
        message = (
            f"row {row} of {what} has {longest} tokens, and the model {limit} positions: set it to "
            f"{limit} or less"
        )
        raise ConfigError([Problem("", "max_seq_length", message)])
