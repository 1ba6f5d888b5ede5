"""All methods by the name they have on the command line and in run files."""

from smoothtune.core.regularizer import Regularizer
from smoothtune.methods.alice import ALICE
from smoothtune.methods.alum import ALUM
from smoothtune.methods.child_tuning import ChildTuning
from smoothtune.methods.cross_holder import CrossHolder
from smoothtune.methods.cwgnc import CWGNC
from smoothtune.methods.double_backprop import DoubleBackprop
from smoothtune.methods.fgm import FGM
from smoothtune.methods.freelb import FreeLB
from smoothtune.methods.hype import HyPe
from smoothtune.methods.jachess import JacHess
from smoothtune.methods.jacobian import Jacobian
from smoothtune.methods.l2_sp import L2SP
from smoothtune.methods.label_smoothing import LabelSmoothing
from smoothtune.methods.llrd import LLRD
from smoothtune.methods.lnsr import LNSR
from smoothtune.methods.mixout import Mixout
from smoothtune.methods.neftune import NEFTune
from smoothtune.methods.noise import Noise
from smoothtune.methods.pgd import PGD
from smoothtune.methods.plain import Plain
from smoothtune.methods.r3f import R3F, R4F
from smoothtune.methods.r_drop import RDrop
from smoothtune.methods.reinit import ReInit
from smoothtune.methods.sam import SAM
from smoothtune.methods.sift import SiFT
from smoothtune.methods.smart import SMART
from smoothtune.methods.uegr import UEGR
from smoothtune.methods.vat import VAT

METHODS: dict[str, type[Regularizer]] = {
    method.name: method
    for method in (
        Plain,
        LNSR,
        Noise,
        R3F,
        R4F,
        L2SP,
        Mixout,
        CWGNC,
        JacHess,
        Jacobian,
        CrossHolder,
        DoubleBackprop,
        ChildTuning,
        HyPe,
        LabelSmoothing,
        LLRD,
        NEFTune,
        RDrop,
        ReInit,
        UEGR,
        SMART,
        SiFT,
        ALUM,
        ALICE,
        VAT,
        FreeLB,
        FGM,
        PGD,
        SAM,
    )
}
