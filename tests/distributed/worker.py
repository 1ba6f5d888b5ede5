"""Run by torchrun: train with every method on several processes, write the weights of the first."""

import gc
import sys
from functools import partial
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent.parent))

from helpers.causal import (  # noqa: E402
    LANGUAGE_TESTED,
    NARROW_TESTED,
    language_weights_after,
    lora_weights_after,
    narrow_weights_after,
)
from helpers.seq2seq import SEQ2SEQ_TESTED, seq2seq_weights_after  # noqa: E402
from helpers.training import (  # noqa: E402
    CLIPPED,
    COMPILED,
    LATE,
    METHODS_TESTED,
    UNEQUAL_TESTED,
    Rows,
    dual_weights_after,
    leave,
    weights_after,
)

gc.freeze()  # which every trainer would look at again
torch.set_num_threads(1)
output = sys.argv[1]
unequal = partial(  # 6 rows in one process, 2 in the other
    weights_after, data=Rows(8), accelerator_config={"even_batches": False}
)
RUNS = [  # name, function, methods, size of a batch, batches of an update
    ("one-batch", partial(weights_after, max_steps=2), METHODS_TESTED, 16, 1),
    ("four-batches", partial(weights_after, max_steps=2), METHODS_TESTED, 4, 4),
    ("language", language_weights_after, LANGUAGE_TESTED, 2, 2),
    ("lora", lora_weights_after, LANGUAGE_TESTED, 2, 2),
    ("narrow", narrow_weights_after, NARROW_TESTED, 2, 2),
    ("seq2seq", seq2seq_weights_after, SEQ2SEQ_TESTED, 2, 2),
    ("unequal", unequal, UNEQUAL_TESTED, 6, 1),
    ("share", partial(weights_after, max_steps=4, fields={"share": 0.5}), ["lnsr"], 16, 1),
    ("bounded", partial(weights_after, max_steps=4, fields={"share": 50.0}), ["lnsr"], 4, 4),
    ("clipped", partial(weights_after, max_steps=3, fields=CLIPPED), ["jacobian"], 4, 4),
    ("compiled", partial(weights_after, **COMPILED), ["lnsr", "freelb"], 16, 1),
    ("dual", dual_weights_after, ["lnsr"], 4, 1),
    ("late", partial(dual_weights_after, fields=LATE), ["lnsr"], 4, 1),
    ("both", partial(dual_weights_after, alternate="batch"), ["lnsr"], 4, 2),
]
for name, after, methods, size, accumulation in RUNS:
    for method in methods:
        weights = after(
            f"{output}/run",
            method,
            per_device_train_batch_size=size,
            gradient_accumulation_steps=accumulation,
        )
        rank = torch.distributed.get_rank()
        if rank == 0 or name in ("dual", "late", "both"):
            torch.save(weights, f"{output}/{name}-{method}{'-1' if rank else ''}.pt")
        torch.distributed.barrier()
leave()
