"""Norms of a pass's derivatives with respect to the word embeddings, by a chosen estimator."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from smoothtune.core.forward import ForwardPass
from smoothtune.core.predictions import heads
from smoothtune.functional import derivative_norms
from smoothtune.functional.derivative_norms import Estimate, Probe
from smoothtune.nn.architecture import embedding_table, unwrap, word_embeddings
from smoothtune.nn.causal_lm import by_example, label_logits
from smoothtune.nn.hooks import WEIGHT_SIDE
from smoothtune.nn.model_facts import predicts_tokens, problem_type

EstimatorName = Literal["exact", "per_layer", "projected", "directional", "finite_difference"]
DifferenceScheme = Literal["symmetric", "forward"]
Reader = Callable[[ForwardPass], list[Tensor]]  # L outputs (B, d_l) of a pass

ROWS = 4096  # number of word embeddings that their rms is taken of


class _WithoutHooks(nn.Module):
    """A module without those of FSDP2, which would take the first that runs for the whole model."""

    def __init__(self, module: nn.Module):
        super().__init__()
        self.module = module

    def forward(self, ids: Tensor) -> Any:
        return self.module.forward(ids)


@dataclass
class InputDerivatives:
    """Estimates Jacobian and Hessian norms of any outputs at the word embeddings.

    Args:
        estimator: by name; None: "projected" (one VJP) for the Jacobian alone, "finite_difference"
            (three or four forward passes) with the Hessian.
        hessian: estimate the Hessian, too.
        num_probes: random probes, at least 1; unused by "exact".
        probe: their distribution.
        difference_step: h of finite differences, relative to the rms of the word embeddings.
        difference: "symmetric", or "forward" from the clean pass.
        dims: output dimensions drawn by "per_layer".
    """

    estimator: EstimatorName | None
    hessian: bool
    num_probes: int
    probe: Probe
    difference_step: float
    difference: DifferenceScheme = "symmetric"
    dims: int = 10

    def __post_init__(self):
        default: EstimatorName = "finite_difference" if self.hessian else "projected"
        self.name = self.estimator or default
        self.rms: float | None = None

    @property
    def order(self) -> Literal[1, 2, 3]:
        """Order of the derivatives that training takes."""
        if self.name == "finite_difference":
            return 1
        return 3 if self.hessian or self.name == "directional" else 2

    def attach(self, model: nn.Module) -> None:
        """Measure the rms of the pre-trained embeddings, the unit of `difference_step`.

        Raises:
            ValueError: they are not one tensor.
        """
        table = embedding_table(model)
        stride = max(1, len(table) // ROWS)
        ids = torch.arange(0, len(table), stride, device=table.device)
        module = word_embeddings(model)
        with torch.no_grad():  # through the module, which may scale what it looks up
            if hasattr(table, "full_tensor"):  # sharded by FSDP2
                parameters = {"module.weight": table.full_tensor()}
                rows = torch.func.functional_call(_WithoutHooks(module), parameters, (ids,))
            else:
                rows = module(ids)
        if not isinstance(rows, Tensor):
            raise ValueError(
                f"the word embeddings, {type(module).__name__}, give a {type(rows).__name__}, not "
                f"a tensor: {WEIGHT_SIDE}"
            )
        self.rms = rows.double().square().mean().sqrt().item()

    def state_dict(self) -> dict[str, Tensor]:
        """The unit of `difference_step`."""
        return {"rms": torch.tensor(self.rms, dtype=torch.float64)}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore it."""
        self.rms = state["rms"].item()

    def estimate(self, clean: ForwardPass, read: Reader, weights: Tensor) -> Estimate:
        """J and H of every example, (B,) each, summed over the outputs with their weights.

        Args:
            clean: where derivatives are taken.
            read: pass -> L outputs (B, d_l).
            weights: (L,).
        """
        x = clean.zeros()
        weights = weights.to(x)
        options: Any = {"hessian": self.hessian, "probes": self.num_probes, "probe": self.probe}
        if self.name == "finite_difference":

            def function(delta: Tensor) -> list[Tensor]:
                return read(clean.at(delta * clean.mask[..., None], dropout="shared"))

            center = read(clean.run()) if self.difference == "forward" else None
            return derivative_norms.finite_difference(
                function, x, weights, step=self.absolute_step, center=center, **options
            )
        outputs, leaf = [z.to(x.dtype) for z in read(clean.run())], clean.delta()
        if self.name == "exact":
            return derivative_norms.exact(outputs, leaf, weights, hessian=self.hessian)
        if self.name == "per_layer":
            return derivative_norms.per_layer(outputs, leaf, weights, dims=self.dims, **options)
        if self.name == "directional":
            return derivative_norms.directional(outputs, leaf, weights, **options)
        return derivative_norms.projected(outputs, leaf, weights, **options)

    @property
    def unit(self) -> float:
        """Root mean square of the pre-trained word embeddings; a RuntimeError before `attach`."""
        if self.rms is None:
            raise RuntimeError("attach the method to a model first: objective.bind(model, ...)")
        return self.rms

    @property
    def absolute_step(self) -> float:
        """Finite-difference step h, in embedding units."""
        return self.difference_step * self.unit

    @torch.no_grad()
    def jacobian_norms(self, clean: ForwardPass, read: Reader, probes: int) -> Tensor:
        """(L,) root of the batch mean of ||J_l||^2, in evaluation mode, by forward passes."""

        def function(delta: Tensor) -> list[Tensor]:
            moved = ForwardPass(
                unwrap(clean.model),
                clean.batch,
                compute_loss=clean.compute_loss,
                deltas={"word": delta * clean.mask[..., None]},
                side=clean.side,
                dropout="off",
            )
            return read(moved.run())

        squares = [
            derivative_norms.finite_difference_per_layer(
                function, clean.zeros(), hessian=False, step=self.absolute_step
            ).jacobian.mean(1)
            for _ in range(probes)
        ]
        return torch.stack(squares).mean(0).sqrt()


def num_scores(run: ForwardPass) -> Tensor:
    """(B,) how many numbers an example's prediction consists of, at least 1."""
    if "start_logits" in run.outputs:
        return (2 * run.mask.sum(1)).clamp(min=1)
    (head,) = heads(run)
    several = problem_type(unwrap(run.model)) == "multi_label_classification"  # a number a label
    each = 1 if several else head.logits.shape[-1]
    return (each * head.mask.sum(1)).clamp(min=1)


def scores(run: ForwardPass) -> Tensor:
    """(B, N) all numbers that an example's prediction consists of; zero where they do not count."""
    outputs = run.outputs
    if "start_logits" in outputs:
        spans = torch.stack([outputs["start_logits"], outputs["end_logits"]], -1)
        return (spans * run.mask[..., None]).flatten(1)
    if predicts_tokens(unwrap(run.model)):
        return by_example(label_logits(run.logits, run.batch), run.batch).flatten(1)
    (head,) = heads(run)
    return (head.logits * head.mask[..., None]).flatten(1)
