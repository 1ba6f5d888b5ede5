"""All methods by the name they have on the command line and in run files."""

from smoothtune.core.regularizer import Regularizer
from smoothtune.methods.alice import ALICE as ALICE
from smoothtune.methods.alum import ALUM as ALUM
from smoothtune.methods.child_tuning import ChildTuning as ChildTuning
from smoothtune.methods.cross_holder import CrossHolder as CrossHolder
from smoothtune.methods.cwgnc import CWGNC as CWGNC
from smoothtune.methods.double_backprop import DoubleBackprop as DoubleBackprop
from smoothtune.methods.fgm import FGM as FGM
from smoothtune.methods.freelb import FreeLB as FreeLB
from smoothtune.methods.hype import HyPe as HyPe
from smoothtune.methods.jachess import JacHess as JacHess
from smoothtune.methods.jacobian import Jacobian as Jacobian
from smoothtune.methods.l2_sp import L2SP as L2SP
from smoothtune.methods.label_smoothing import LabelSmoothing as LabelSmoothing
from smoothtune.methods.llrd import LLRD as LLRD
from smoothtune.methods.lnsr import LNSR as LNSR
from smoothtune.methods.mixout import Mixout as Mixout
from smoothtune.methods.neftune import NEFTune as NEFTune
from smoothtune.methods.noise import Noise as Noise
from smoothtune.methods.pgd import PGD as PGD
from smoothtune.methods.plain import Plain as Plain
from smoothtune.methods.r3f import R3F as R3F
from smoothtune.methods.r3f import R4F as R4F
from smoothtune.methods.r_drop import RDrop as RDrop
from smoothtune.methods.reinit import ReInit as ReInit
from smoothtune.methods.sam import SAM as SAM
from smoothtune.methods.sift import SiFT as SiFT
from smoothtune.methods.smart import SMART as SMART
from smoothtune.methods.uegr import UEGR as UEGR
from smoothtune.methods.vat import VAT as VAT

METHODS: dict[str, type[Regularizer]] = {
    value.name: value
    for value in list(globals().values())
    if isinstance(value, type) and issubclass(value, Regularizer) and value is not Regularizer
}
