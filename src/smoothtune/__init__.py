"""Fine-tune pre-trained language models so that they stay smooth."""

import logging
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from smoothtune.core.forward import ForwardPass
    from smoothtune.core.objective import Objective
    from smoothtune.core.regularizer import Penalty, Regularizer, TaskLoss, method
    from smoothtune.core.traits import Traits
    from smoothtune.errors import NonFiniteLoss
    from smoothtune.methods import *
    from smoothtune.nn.compile import compile_blocks
    from smoothtune.trainer.trainer import SmoothTrainer, regularize

__all__ = [
    "ALICE",
    "ALUM",
    "ChildTuning",
    "compile_blocks",
    "CrossHolder",
    "CWGNC",
    "DoubleBackprop",
    "FGM",
    "ForwardPass",
    "FreeLB",
    "HyPe",
    "JacHess",
    "Jacobian",
    "L2SP",
    "LabelSmoothing",
    "LLRD",
    "LNSR",
    "method",
    "METHODS",
    "Mixout",
    "NEFTune",
    "Noise",
    "NonFiniteLoss",
    "Objective",
    "Penalty",
    "PGD",
    "Plain",
    "R3F",
    "R4F",
    "RDrop",
    "regularize",
    "Regularizer",
    "ReInit",
    "SAM",
    "SiFT",
    "SMART",
    "SmoothTrainer",
    "TaskLoss",
    "Traits",
    "UEGR",
    "VAT",
]

__version__ = "0.1.0"

# On CPUs with bfloat16 arithmetic bitsandbytes, which peft imports wherever it is installed,
# advises in every process to install another package, even where nothing is stored in 4 bits.
logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)

_PLACES = {  # the others are methods
    "NonFiniteLoss": "smoothtune.errors",
    "Objective": "smoothtune.core.objective",
    "compile_blocks": "smoothtune.nn.compile",
    "ForwardPass": "smoothtune.core.forward",
    "Penalty": "smoothtune.core.regularizer",
    "Regularizer": "smoothtune.core.regularizer",
    "TaskLoss": "smoothtune.core.regularizer",
    "Traits": "smoothtune.core.traits",
    "method": "smoothtune.core.regularizer",
    "SmoothTrainer": "smoothtune.trainer.trainer",
    "regularize": "smoothtune.trainer.trainer",
}


def __getattr__(name: str) -> Any:
    """Import a name when it is asked for: `smoothtune --help` need not wait for torch."""
    if name not in __all__:
        raise AttributeError(f"module 'smoothtune' has no attribute {name!r}")
    return getattr(import_module(_PLACES.get(name, "smoothtune.methods")), name)


def __dir__() -> list[str]:
    """All that can be imported."""
    return sorted({*globals(), *__all__})
