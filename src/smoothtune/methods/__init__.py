"""All methods by the name they have on the command line and in run files."""

from smoothtune.methods.cwgnc import CWGNC
from smoothtune.methods.l2_sp import L2SP
from smoothtune.methods.lnsr import LNSR
from smoothtune.methods.mixout import Mixout
from smoothtune.methods.noise import Noise
from smoothtune.methods.plain import Plain
from smoothtune.methods.r3f import R3F, R4F
from smoothtune.regularizer import Regularizer

METHODS: dict[str, type[Regularizer]] = {
    "plain": Plain,
    "lnsr": LNSR,
    "noise": Noise,
    "r3f": R3F,
    "r4f": R4F,
    "l2_sp": L2SP,
    "mixout": Mixout,
    "cwgnc": CWGNC,
}
