r"""R3F and R4F: robust representations through regularized fine-tuning.

Reference: Aghajanyan, Shrivastava, Gupta, Goyal, Zettlemoyer, Gupta: Better Fine-Tuning by Reducing
    Representational Collapse, ICLR 2021 (arXiv 2008.03156). Code: fairseq, examples/rxf.

Equation:
    $$total = L(f(x), y) + weight \cdot (KL(p \,\|\, \tilde{p}) + KL(\tilde{p} \,\|\, p))$$
    $$\tilde{p} = f(x + z)$$
    $z \sim N(0, \sigma^2 I)$ or $z \sim U(-\sigma, \sigma)$.
    R4F: the same with the head Lipschitz-1, here by spectral normalization of its linear layers.

Departures:
    * fairseq cuts the graph below the noise, so the word embeddings get no gradient through the
      noisy pass; the equation does not. `compat="fairseq"` cuts it.
    * fairseq computes and drops the term for regression (weight 0 and 100 give the same loss);
      here regression uses the squared difference of the scores (RECONSTRUCTED).
      `compat="fairseq"` drops it too.
    * fairseq's term is a sum over the batch beside a summed task loss; here both are means.
    * Dropout masks of the two passes are independent, as in the code. With sigma = 1e-5 the term is
      then R-Drop in practice: beside the masks, noise that small changes next to nothing.
    * In 16-bit training the passes are float32 where only noise tells them apart. Other masks do
      so by far more than 16 bits round (benchmarks/results/bf16-terms.md).
    * With a bound the clean prediction is a constant: the equation's gradient runs through both
      passes, at one more backward pass.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor, nn

from smoothtune.core.forward import Dropout, ForwardPass
from smoothtune.core.predictions import heads
from smoothtune.core.regularizer import NonNegative, Penalty, Positive, method
from smoothtune.core.traits import Traits
from smoothtune.functional.divergences import divergence
from smoothtune.functional.noise import relative_norm
from smoothtune.functional.parametrizations import refuse_computed, substitute, trained_weight
from smoothtune.nn import rng
from smoothtune.nn.architecture import embedding_table, head_modules
from smoothtune.nn.dropout import has_dropout
from smoothtune.nn.model_facts import predicts_tokens


@method(
    "r3f",
    Traits(
        group="stability",
        step="2 passes",
        lowers=("noise divergence", "worst divergence"),
        points=("word",),
        small_difference=True,
    ),
)
class R3F(Penalty):
    """R3F: the prediction must not change under small noise on the word embeddings."""

    weight: NonNegative | None = None
    """lambda, in place of share. fairseq: 1."""
    share: Positive | None = 0.3
    """The term's gradient, as a share of the task's."""
    noise: Literal["normal", "uniform"] = "uniform"
    """Distribution of z. fairseq's RTE recipe: uniform."""
    sigma: Positive = 1e-5
    """Standard deviation, or half width, of z in units of the embedding. fairseq: 1e-5."""
    dropout: Dropout = "independent"
    """Dropout masks of the noisy pass relative to the clean one. fairseq: independent."""
    compat: Literal["fairseq"] | None = None
    """"fairseq": the noisy pass gives the word embeddings no gradient, and regression no term."""

    def __post_init__(self):
        super().__post_init__()
        self._masks_differ = False

    def attach(self, model: nn.Module) -> None:
        """See whether the passes of the model have masks that can differ."""
        self._masks_differ = self.dropout == "independent" and has_dropout(model)

    @property
    def traits(self) -> Traits:
        """How different the predictions are decides which products are exact enough."""
        if self._masks_differ:
            return replace(super().traits, products="bfloat16")
        return replace(super().traits, products="tf32" if self.sigma >= 1e-3 else "float32")

    def loss(self, clean: ForwardPass) -> Tensor | None:
        """Symmetric KL; the squared difference for regression."""
        if self.compat and heads(clean.run())[0].regression:
            return None
        draws = rng.uniform_like if self.noise == "uniform" else rng.normal_like
        real = clean.mask[..., None]
        embedded = clean.run().embeddings()
        wide = torch.promote_types(embedded.dtype, torch.float32)
        z = self.sigma * draws(embedded.to(wide)) * real
        target = self.clean_target(clean)
        noisy = target.at(z, dropout=self.dropout, detach=self.compat == "fairseq")
        self.diagnostics["delta_ratio"] = relative_norm(z, embedded, clean.mask)
        return divergence(target, noisy)


class SpectralNorm:
    """W -> W / sigma_max(W), so that x -> W x is Lipschitz with constant 1."""

    def __call__(self, weight: Tensor, training: bool) -> Tensor:
        """Divide by the largest singular value, which has no algorithm in 16 bits."""
        wide = weight.to(torch.promote_types(weight.dtype, torch.float32))
        return weight / torch.linalg.matrix_norm(wide, 2)


@method("r4f", replace(R3F.declared, reparametrizes=True))
class R4F(R3F):
    """R4F: R3F with a spectrally normalized head."""

    def __post_init__(self):
        super().__post_init__()
        self._head: dict[nn.Module, Callable[[], None]] = {}  # with what undoes it

    def attach(self, model: nn.Module) -> None:
        """Normalize the linear layers of the head.

        Raises:
            ValueError: the model has no linear layer outside its base model, a language-model
                head that is the word embeddings too, or one whose weight is computed from others.
        """
        layers = _head_layers(model)
        if not layers:
            raise ValueError(
                f"{type(model).__name__} has no linear layer outside its base model, so r4f has no "
                "head to normalize: use r3f"
            )
        super().attach(model)
        refuse_computed(layers, ["weight"])
        self._head = {
            layer: substitute(layer, SpectralNorm(), saves="effective") for layer in layers
        }

    def detach(self, model: nn.Module) -> None:
        """Write the normalized weights into the head."""
        for undo in self._head.values():
            undo()
        self._head = {}

    def state_dict(self) -> dict[str, Tensor]:
        """The head's weights before normalization; a checkpoint holds them normalized."""
        return {str(i): trained_weight(layer).detach() for i, layer in enumerate(self._head)}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore them."""
        for i, layer in enumerate(self._head):
            trained_weight(layer).data.copy_(state[str(i)])


def _head_layers(model: nn.Module) -> list[nn.Linear]:
    if not predicts_tokens(model):
        return [module for module in head_modules(model) if isinstance(module, nn.Linear)]
    head = model.get_output_embeddings()  # type: ignore[operator]
    if head.weight is embedding_table(model):
        raise ValueError(
            f"the head of {type(model).__name__} is its word embeddings too, so r4f cannot "
            "normalize the one and leave the other: use r3f"
        )
    return [head]
