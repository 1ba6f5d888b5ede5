"""What a method can be about: quantities that `smoothtune evaluate --effect` measures.

Of every quantity less is what the papers claim. `smoothtune.evaluation.effect` measures them.
"""

from typing import Literal

Quantity = Literal[
    "noise sensitivity",
    "layer Jacobian",
    "layer Hessian",
    "logit Jacobian",
    "logit Hessian",
    "loss gradient",
    "worst divergence",
    "noise divergence",
    "dropout divergence",
    "weight distance",
    "sharpness",
    "gradient spread",
    "calibration error",
]

QUANTITIES: dict[Quantity, str] = {
    "noise sensitivity": "relative change of the hidden states when noise of 5 % enters the first "
    "block, a mean over the blocks",
    "layer Jacobian": "||dz/dx|| of the pooled token z after every block, x the word embeddings",
    "layer Hessian": "||d^2 z/dx^2|| of the same",
    "logit Jacobian": "||df/dx|| of the predictions f: logits or scores",
    "logit Hessian": "||d^2 f/dx^2|| of the same",
    "loss gradient": "||dL/dx|| of the task loss of an example",
    "worst divergence": "divergence of the predictions under the worst perturbation found of the "
    "word embeddings",
    "noise divergence": "divergence of the predictions under random noise on the word embeddings",
    "dropout divergence": "divergence of the predictions of two dropout passes",
    "weight distance": "||w - w0|| / ||w0|| to the pre-trained weights, without the new head",
    "sharpness": "rise of the task loss one step of length 0.05 up its gradient in the weights",
    "gradient spread": "largest over median gradient norm of a weight tensor",
    "calibration error": "ECE",
}
"""What is measured, by name."""
