"""Models that several processes shard, and the data of one step."""

from functools import partial

from helpers.causal import Texts, tiny_language_model, tiny_lora
from helpers.training import Rows
from smoothtune.testing import tiny_model

SHARDED = {  # kind -> what makes the model, rows
    "classifier": (partial(tiny_model, "bert"), Rows(32)),
    "language": (partial(tiny_language_model, "opt"), Texts()),
    "lora": (tiny_lora, Rows(8)),
}
