"""Models that several processes shard, and the data of one step."""

import os
from functools import partial

import torch
from accelerate import PartialState
from accelerate.utils import DistributedType

from helpers.causal import Texts, tiny_language_model, tiny_lora
from helpers.training import FSDP_TESTED, SHARE_UPDATES, SHARES_TESTED, Rows, collate
from smoothtune import METHODS, Objective
from smoothtune.testing import fixed_draws, tiny_model, with_weight

SHARDED = {  # kind -> what makes the model, rows
    "classifier": (partial(tiny_model, "bert"), Rows(32)),
    "language": (partial(tiny_language_model, "opt"), Texts()),
    "lora": (tiny_lora, Rows(8)),
}


def updates(model, optimizer, name, data, own, backward=torch.Tensor.backward):
    """The objective after some updates on own rows: of a method with a share, or with a weight."""
    if name in SHARES_TESTED:
        method = METHODS[name](**SHARES_TESTED[name])
    else:
        method = with_weight(METHODS[name](**FSDP_TESTED[name]))
    objective = Objective(method).bind(model, optimizer)
    with fixed_draws():
        for _ in range(SHARE_UPDATES):
            backward(objective(model, collate([data[i] for i in range(len(data))[own]])))
            optimizer.step()
            optimizer.zero_grad()
    return objective


def ask_accelerate_for_shards() -> None:
    """What `accelerate launch --use_fsdp` sets; and take the CPU with gloo for an accelerator."""
    os.environ |= {
        "ACCELERATE_TORCH_DEVICE": "cpu",
        "ACCELERATE_USE_FSDP": "true",
        "FSDP_VERSION": "2",
        "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP",
        "FSDP_STATE_DICT_TYPE": "FULL_STATE_DICT",
    }
    PartialState._prepare_backend = lambda *_, **__: ("gloo", DistributedType.MULTI_GPU)
    torch.distributed.init_process_group("gloo")
