r"""R-Drop: two dropout passes must agree.

Reference: Liang, Wu, Li, Wang, Meng, Qin, Chen, Zhang, Liu: R-Drop: Regularized Dropout for Neural
    Networks, NeurIPS 2021 (arXiv 2106.14448). Code: dropreg/R-Drop.

Equation:
    $$total = \frac{1}{2} (L_1 + L_2)
    + \alpha \cdot \frac{1}{2} (KL(p_1 \,\|\, p_2) + KL(p_2 \,\|\, p_1))$$
    $L_i$, $p_i$: task loss and prediction under two independent draws of the dropout masks.
    Regression:
    $$total = \frac{1}{2} (L_1 + L_2) + \alpha (f_1 - f_2)^2$$

Departures:
    * The two task losses are averaged, so that a step is as long as a plain one, as in the README;
      the paper's equation and its fairseq code add them up.
    * KL is summed over classes and averaged over examples. The README's `.sum()` over the batch
      ties alpha to the batch size; bert4torch averages over the C classes too and divides by 4, so
      its alpha is 2 C times ours.
    * The released regression takes the task loss of the first pass only; here both.
    * Both passes carry gradient, in the task losses and in the KL.
    * A model without dropout gets no term from this method: its two passes are the same.
"""

from torch import Tensor

from smoothtune.core.forward import ForwardPass
from smoothtune.core.regularizer import NonNegative, TaskLoss, method
from smoothtune.core.traits import Between, Traits
from smoothtune.functional.divergences import divergence, symmetric_kl


def half_symmetric_kl(p: Tensor, q: Tensor) -> Tensor:
    """1/2 (KL(P || Q) + KL(Q || P)) of logits (..., C); shape (...)."""
    return 0.5 * symmetric_kl(p, q)


@method(
    "r_drop",
    Traits(
        group="sub-models",
        step="2 passes",
        lowers=("dropout divergence",),
        searched={"alpha": Between(0.1, 10.0, log=True)},
        compares_classes=True,
    ),
)
class RDrop(TaskLoss):
    """R-Drop: the predictions of two dropout passes must agree."""

    alpha: NonNegative = 1.0
    """Weight of the divergence. Released BERT model: 1."""

    def loss(self, clean: ForwardPass) -> Tensor:
        """Mean task loss of two passes and their divergence; without labels the divergence."""
        clean.run()
        second = clean.at()
        apart = divergence(clean, second, half_symmetric_kl)
        self.diagnostics["divergence"] = apart
        if not clean.labeled:
            return self.alpha * apart
        assert clean.loss is not None
        assert second.loss is not None
        return 0.5 * (clean.loss + second.loss) + self.alpha * apart
