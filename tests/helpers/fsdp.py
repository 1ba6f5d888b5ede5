"""Models that several processes shard, and the data of one step."""

import os
from functools import partial

import torch
from accelerate import PartialState
from accelerate.utils import DistributedType

from helpers.causal import Texts, tiny_language_model, tiny_lora
from helpers.training import Rows
from smoothtune.testing import tiny_model

SHARDED = {  # kind -> what makes the model, rows
    "classifier": (partial(tiny_model, "bert"), Rows(32)),
    "language": (partial(tiny_language_model, "opt"), Texts()),
    "lora": (tiny_lora, Rows(8)),
}


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
