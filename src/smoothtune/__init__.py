"""Fine-tune pre-trained language models so that they stay smooth."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from smoothtune.core.forward import ForwardPass
    from smoothtune.core.objective import Objective
    from smoothtune.core.regularizer import Regularizer
    from smoothtune.errors import NonFiniteLoss
    from smoothtune.methods import *
    from smoothtune.trainer.trainer import SmoothTrainer, regularize

__all__ = [
    "SAM",
    "SMART",
    "SiFT",
    "ALICE",
    "ALUM",
    "VAT",
    "FreeLB",
    "FGM",
    "PGD",
    "UEGR",
    "ReInit",
    "RDrop",
    "NEFTune",
    "LLRD",
    "LabelSmoothing",
    "HyPe",
    "ChildTuning",
    "CWGNC",
    "L2SP",
    "LNSR",
    "METHODS",
    "R3F",
    "R4F",
    "CrossHolder",
    "DoubleBackprop",
    "JacHess",
    "Jacobian",
    "Mixout",
    "Noise",
    "NonFiniteLoss",
    "Objective",
    "ForwardPass",
    "Plain",
    "Regularizer",
    "SmoothTrainer",
    "regularize",
]

__version__ = "0.1.0"

_PLACES = {  # the others are methods
    "NonFiniteLoss": "smoothtune.core.objective",
    "Objective": "smoothtune.core.objective",
    "ForwardPass": "smoothtune.core.forward",
    "Regularizer": "smoothtune.core.regularizer",
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
