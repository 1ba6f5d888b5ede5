r"""Re-initialization of the top blocks.

Reference: Zhang, Wu, Katiyar, Weinberger, Artzi: Revisiting Few-sample BERT Fine-tuning, ICLR 2021
    (arXiv 2006.05987). Code: asappresearch/revisit-bert-finetuning.

Equation:
    the last $N$ blocks and the pooler start from the model's random initialization
    (BERT: weights $N(0, initializer\_range^2)$, LayerNorm 1 and 0, biases 0), not from
    pre-training.

Departures:
    * The model's own initialization is used, so that it fits every architecture.
    * The paper goes with it a debiased Adam, which torch's AdamW is, and more steps: set these
      yourself.
    * A final norm above the blocks (decoders) stays pre-trained.
    * Encoder-decoders: the last N blocks of the decoder, below the output (RECONSTRUCTED).
    * Methods that remember the starting point (l2_sp, mixout) see it after re-initialization.
"""

import torch
from pydantic import NonNegativeInt
from torch import nn

from smoothtune.core.regularizer import Regularizer, method
from smoothtune.core.traits import Between, Traits
from smoothtune.functional.parametrizations import refuse_computed
from smoothtune.nn import rng
from smoothtune.nn.architecture import base_model, blocks
from smoothtune.nn.model_facts import sides_of


@method(
    "reinit",
    Traits(
        group="updates",
        step="1 pass",
        searched={"layers": Between(1, 3)},
        whole_weights=True,
        resets_weights=True,
    ),
)
class ReInit(Regularizer):
    """The top blocks start from random weights."""

    layers: NonNegativeInt = 1
    """N, number of blocks from the top. Paper: 1 to 6 of 24, chosen by task."""
    pooler: bool = True
    """Re-initialize the pre-trained pooler, where there is one. Paper: yes."""

    def attach(self, model: nn.Module) -> None:
        """Draw the new weights; `detach` leaves them.

        Raises:
            ValueError: the model has fewer blocks, no initialization of its own, does not train
                what would be re-initialized, or computes it from other weights.
        """
        layers = blocks(model, sides_of(model)[-1])
        if self.layers > len(layers):
            raise ValueError(
                f"layers={self.layers}, but {type(model).__name__} has {len(layers)} blocks"
            )
        if not hasattr(model, "_init_weights"):
            raise ValueError(
                f"{type(model).__name__} is no transformers model, so reinit does not know how its "
                "weights are initialized: do so yourself before training"
            )
        parts = list(layers[len(layers) - self.layers :])
        pooler = getattr(base_model(model), "pooler", None)
        if self.pooler and pooler is not None:
            parts.append(pooler)
        if not all(weight.requires_grad for part in parts for weight in part.parameters()):
            raise ValueError(
                "reinit would put random weights into layers that are frozen (by LoRA, perhaps): "
                "train them, lower `layers`, or leave reinit out"
            )
        refuse_computed(module for part in parts for module in part.modules())
        device = next(model.parameters()).device
        stream = rng.stream(device, torch.initial_seed(), self.name, 0, every_process=True)
        with torch.no_grad(), stream:
            for part in parts:
                for weight in part.parameters():
                    vars(weight).pop("_is_hf_initialized", None)  # or loaded weights are left alone
                # children first: some models give a block's layers a scale of their own
                part.apply(model._init_weights)  # type: ignore[arg-type]
