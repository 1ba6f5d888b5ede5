r"""Layer-wise noise stability regularization.

Reference: Hua, Li, Dou, Xu, Luo: Noise Stability Regularization for Improving BERT Fine-tuning,
    NAACL 2021 (arXiv 2107.04835), and Improving Pre-trained Language Model Fine-tuning with Noise
    Stability Regularization, IEEE TNNLS 2023 (arXiv 2206.05658).

Equation:
    $$total = L(f(x), y) + R$$
    $$R = E_\epsilon \sum_{r=b}^{L} \lambda_r \|f^{b,r}(x^b + \epsilon) - f^{b,r}(x^b)\|^2$$
    (TNNLS eq. 11), where $x^b$ is the input of layer $b$ and $f^{b,r}$ maps it to the output of
    layer $r$.
    standard (TNNLS III-E.1): $\epsilon \sim N(0, I)$, rescaled to $\|\epsilon\| = 0.05 \|x\|$;
    in_manifold (TNNLS III-B.2): $\epsilon = \sum_j \epsilon_j d_j$, $d_j$ the Gram-Schmidt basis of
    the differences to the $k$ nearest neighbors in the word-embedding space.

Departures: no official code is public; what the papers leave open is RECONSTRUCTED here.
    * The squared norm is a sum over features (TNNLS Table I). Whether it also runs over tokens is
      not stated: `reduction="token_sum"` takes their mean, "sum" their sum, "mean" a mean over
      features and tokens. The gradient of the term depends on that by a factor of some thousands.
      With lambda = 1, on MiniLM, the mean has about 1 % of the task's gradient and changes nothing.
      The sum kept the model from learning (benchmarks/results/held-out.md). So the strength is
      a `share` of the task's gradient, which no reduction changes; `weight` is lambda.
    * The rescaling is done for every token; `rescale_over="sequence"` does it for every example.
      NAACL's Algorithm 1 has none, and states no sigma: `rescale_over="none"`.
    * The papers disagree about the layer: standard noise enters at the input of the first block
      (after position embeddings and LayerNorm), in-manifold noise at the word embeddings.
    * The magnitude of in-manifold noise is called noise scale, magnitude and mix ratio; here it is
      `noise_ratio` = ||eps|| / ||x||. Paper values: RTE 0.10, MRPC 0.12, CoLA 0.15, STS-B 0.20.
    * The text asks for an orthogonal basis, Claim 2 needs an orthonormal one: `orthonormal=True`.
    * Neighbors are those of the pre-trained embeddings (L2, the token itself left out); their
      differences are taken in the present embeddings. Among all tokens of the vocabulary they would
      be noise. In MiniLM, of the ten neighbors of the words of RTE 23 % are special or [unused]
      tokens, and [MASK] is one of 79 % of the words (SST-2: 24 %, 86 %). So they are tokens of the
      training texts and no special ones (`min_count`, `read_training_rows`). The most frequent
      neighbor is then one of 18 % of the words (14 %): short vectors are near to everything.
      `metric="cosine"`, which knows no lengths, leaves 0.4 %.
    * With a weight both passes carry gradient, as in Algorithm 1. With a bound the clean states are
      constants, as the prose has it, which calls them a virtual label: so the term's gradient is
      known apart from the task's without one more backward pass (docs/concepts.md).
    * Both passes see the same dropout masks, or R would not vanish without noise.
"""

from typing import Literal

import torch
from torch import Tensor, nn

from smoothtune.core.forward import Dropout, ForwardPass
from smoothtune.core.regularizer import NonNegative, Penalty, Positive, method
from smoothtune.core.traits import Traits
from smoothtune.methods.noise_base import NoisyEmbeddings
from smoothtune.nn.architecture import blocks


@method(
    "lnsr",
    Traits(
        group="stability",
        step="2 passes",
        lowers=("noise sensitivity",),
        hidden_states=True,
        small_difference=True,
        products="tf32",
    ),
)
class LNSR(NoisyEmbeddings, Penalty):
    """Layer-wise noise stability: hidden states must not move when the input is perturbed."""

    weight: NonNegative | None = None
    """lambda for all layers, in place of share. NAACL: 1."""
    share: Positive | None = 0.3
    """The term's gradient, as a share of the task's."""
    layer_weights: list[NonNegative] | None = None
    """lambda_r for the outputs of blocks b..L-1 (0-based). NAACL: all 1 (the default); TNNLS
    searches 0.2-1."""
    reduction: Literal["mean", "token_sum", "sum"] = "token_sum"
    """The squared norm sums over features; "token_sum": mean over tokens, "sum": sum over them,
    "mean": mean over both. Paper: TNNLS Table I defines the norm; tokens are not stated."""
    tokens: Literal["all", "pooled"] = "all"
    """Compare all real tokens, or the one the head reads. Paper: not stated."""
    detach_clean: bool | None = None
    """Treat the clean hidden states as constants. Default: with a bound. Paper: Algorithm 1 does
    not, and the prose calls them a virtual label."""
    dropout: Dropout = "shared"
    """Dropout masks of the noisy pass relative to the clean one. Paper: not stated."""

    def __post_init__(self):
        super().__post_init__()
        self._first = 0 if self._point == "word" else self._point
        bounded = self.max_share is not None
        self._detaches = bounded if self.detach_clean is None else self.detach_clean

    @property
    def has_own_graph(self) -> bool:
        """Where the clean states are constants."""
        return self._detaches and self.max_share is not None

    def attach(self, model: nn.Module) -> None:
        """Index the embeddings; a ValueError where `layer_weights` does not fit the depth."""
        wanted = len(blocks(model, self.side)) - self._first
        if self.layer_weights is not None and len(self.layer_weights) != wanted:
            raise ValueError(
                f"layer_weights has {len(self.layer_weights)} entries; with noise at layer "
                f"{self._point!r} this model needs {wanted}, one for each block above"
            )
        super().attach(model)

    def loss(self, clean: ForwardPass) -> Tensor:
        """R of eq. 11."""
        above = slice(self._first + 1, None)
        clean = self.clean_target(clean.run())
        hidden = clean.hidden_states[above]
        noisy = self.noisy(clean, self.dropout).hidden_states[above]
        tokens = clean.mask.sum(1).clamp(min=1)
        distances = [
            self.distance(h.detach() if self._detaches else h, h_, clean, tokens)
            for h, h_ in zip(hidden, noisy, strict=True)
        ]
        if self.layer_weights is not None:
            pairs = zip(self.layer_weights, distances, strict=True)
            distances = [weight * distance for weight, distance in pairs]
        return torch.stack(distances).sum()

    def distance(self, h: Tensor, h_: Tensor, clean: ForwardPass, tokens: Tensor) -> Tensor:
        """() squared distance of two hidden states (B, T, D), a mean over examples.

        `clean` knows which tokens are real; their number `tokens` (B,) is at least 1.
        """
        squares = (h - h_).square()
        if self.tokens == "pooled":
            squares = clean.pooled(squares)
        per_token = squares.mean(-1) if self.reduction == "mean" else squares.sum(-1)
        if self.tokens == "pooled":
            return per_token.mean()
        sums = (per_token * clean.mask).sum(1)
        return (sums if self.reduction == "sum" else sums / tokens).mean()
