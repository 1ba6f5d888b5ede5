"""Fine-tune pre-trained language models so that they stay smooth."""

from smoothtune.methods import METHODS
from smoothtune.methods.cwgnc import CWGNC
from smoothtune.methods.l2_sp import L2SP
from smoothtune.methods.lnsr import LNSR
from smoothtune.methods.mixout import Mixout
from smoothtune.methods.noise import Noise
from smoothtune.methods.plain import Plain
from smoothtune.methods.r3f import R3F, R4F
from smoothtune.objective import NonFiniteLoss, Objective
from smoothtune.passes import Pass
from smoothtune.regularizer import Regularizer
from smoothtune.trainer import SmoothTrainer, regularize

__all__ = [
    "CWGNC",
    "L2SP",
    "LNSR",
    "METHODS",
    "R3F",
    "R4F",
    "Mixout",
    "Noise",
    "NonFiniteLoss",
    "Objective",
    "Pass",
    "Plain",
    "Regularizer",
    "SmoothTrainer",
    "regularize",
]

__version__ = "0.1.0"
