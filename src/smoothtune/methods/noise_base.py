"""Base of LNSR and its ablation: the noise of the papers, at one point of the model."""

import functools
import logging
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from pydantic import NonNegativeInt, PositiveInt
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from smoothtune.core.forward import Dropout, ForwardPass
from smoothtune.core.regularizer import STRICT, LossTerm, Positive
from smoothtune.core.traits import Traits
from smoothtune.functional import neighbors
from smoothtune.functional.noise import (
    NoiseKind,
    RescaleOver,
    gaussian,
    relative_norm,
    rescale,
    special_ids,
)
from smoothtune.nn.architecture import embedding_table, unwrap
from smoothtune.nn.hooks import Layer, Point

logger = logging.getLogger(__name__)
warn_once = functools.cache(logger.warning)


@dataclass(config=STRICT, kw_only=True)
class NoisyEmbeddings(LossTerm):
    """Base of the methods that run the model on embeddings with LNSR's noise.

    Raises:
        ValueError: in-manifold noise anywhere but at the word embeddings.
    """

    noise: NoiseKind = "standard"
    """Kind of noise; the papers use both."""
    noise_ratio: Positive | None = None
    """||eps|| / ||x||. Papers: 0.05 (standard), 0.10-0.20 (in-manifold); default 0.05 and 0.10."""
    layer: Layer | None = None
    """b: where noise enters, "word" or a block number from 0. Default: 0, in-manifold "word"."""
    k: PositiveInt = 10
    """Nearest neighbors of in-manifold noise. Paper: 10."""
    metric: neighbors.Metric = "l2"
    """What near means: Euclidean distance, or the angle. Paper: not stated."""
    min_count: NonNegativeInt = 1
    """How often a neighbor occurs in the training texts, at least; 0: special tokens alone are left
    out. Paper: not stated."""
    orthonormal: bool = True
    """Basis vectors of length 1. Paper: text says orthogonal, Claim 2 needs orthonormal."""
    rescale_over: RescaleOver = "token"
    """What the rescaling runs over; "none" leaves N(0, noise_ratio^2). Paper: not stated."""

    def __post_init__(self):
        super().__post_init__()
        manifold = self.noise == "in_manifold"
        if manifold and self.layer not in (None, "word"):
            raise ValueError(
                'in-manifold noise lives in the word-embedding space: use layer="word", or '
                'noise="standard" at the input of a block'
            )
        self._point: Layer = self.layer if self.layer is not None else "word" if manifold else 0
        default = 0.10 if manifold else 0.05
        self._ratio = self.noise_ratio if self.noise_ratio is not None else default
        self._neighbors: neighbors.Neighbors | None = None
        self._special: set[int] = set()  # which the configuration of the model names
        self._moves = False
        self._forget_texts()

    def _forget_texts(self) -> None:
        self._counts: Tensor | None = None  # of the tokens in the training texts
        self._named: set[int] = set()  # special tokens, by the tokenizer
        self._decode: Callable[[int], str] | None = None
        self._counted = self._audited = False
        self._read_for: weakref.ref[Tensor] | None = None  # the word embeddings of their model

    @property
    def traits(self) -> Traits:
        """In-manifold noise keeps the pre-trained word embeddings."""
        return replace(super().traits, whole_weights=self.noise == "in_manifold")

    def points(self) -> tuple[Point, ...]:
        """Where noise enters."""
        return (self._point,)

    # --- neighbors of in-manifold noise --------------------------------------------------------

    def read_training_rows(self, rows: Any, tokenizer: Any = None) -> None:
        """Count the tokens of the training texts: others are no neighbors of in-manifold noise.

        Trainers call it. Call it yourself in a plain loop, before the first update::

            method = LNSR(noise="in_manifold")
            method.read_training_rows(rows, tokenizer)  # or a loader

        Args:
            rows: each holds `input_ids`; rows without, or without a length, are not counted.
            tokenizer: names the special tokens, which are no neighbors either.
        """
        if self.noise != "in_manifold" or not neighbors.countable(rows):
            return
        if self._neighbors is None and self._read_for is not None:
            self._forget_texts()
        tokenizer = getattr(tokenizer, "tokenizer", tokenizer)  # of a processor
        self._counts, self._counted = neighbors.token_counts(rows), True
        self._decode = getattr(tokenizer, "convert_ids_to_tokens", None)
        self._named |= set(getattr(tokenizer, "all_special_ids", ()))
        if self._neighbors is not None:
            self._index(self._neighbors.table)

    def attach(self, model: nn.Module) -> None:
        """Index the pre-trained embeddings for their neighbors; texts of another model are none."""
        if self.noise == "in_manifold":
            table = embedding_table(model)
            if self._read_for is not None and self._read_for() is not table:
                self._forget_texts()
            self._moves, self._special = table.requires_grad, special_ids(model)
            self._index(table)
            self._read_for = weakref.ref(table)

    def _index(self, table: Tensor) -> None:
        keep = torch.ones(len(table), dtype=torch.bool)
        if self._counts is not None:
            if len(self._counts) > len(keep):
                raise ValueError(
                    f"the training texts hold token {len(self._counts) - 1}, and the model has "
                    f"{len(keep)} word embeddings: tokenize with the tokenizer of the model"
                )
            counts = F.pad(self._counts.cpu(), (0, len(keep) - len(self._counts)))
            keep = counts >= self.min_count
        keep[[i for i in sorted(self._special | self._named) if i < len(keep)]] = False
        self._find(table, keep)

    def _find(self, table: Tensor, among: Tensor) -> None:
        self._neighbors = neighbors.Neighbors(table, self.k, candidates=among, metric=self.metric)

    def detach(self, model: nn.Module) -> None:
        """Forget the neighbors."""
        self._neighbors = None

    def state_dict(self) -> dict[str, Tensor]:
        """Which tokens may be neighbors, and the table that says so, where training moves it."""
        if self._neighbors is None:
            return {}
        table = {"table": self._neighbors.table} if self._moves else {}
        return {"candidates": self._neighbors.candidates} | table

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore them."""
        if self._neighbors is not None and "candidates" in state:
            device = self._neighbors.table.device
            table = state.get("table", self._neighbors.table).to(device)
            self._counted = True
            self._find(table, state["candidates"])

    # --- an update -----------------------------------------------------------------------------

    def noisy(self, clean: ForwardPass, dropout: Dropout) -> ForwardPass:
        """The pass on a draw of the noise, whose size is logged."""
        if self.noise == "in_manifold" and not self._counted and self.min_count:
            warn_once(
                "%s: it is not known which tokens the training texts hold, so unused ones of the "
                "vocabulary may be neighbors: call read_training_rows(tokenized rows, tokenizer) "
                "of the method before training, or set min_count=0",
                self.name,
            )
        delta, x = self.draw(clean), clean.embeddings(self._point)
        self.diagnostics["delta_ratio"] = relative_norm(delta, x, clean.mask)
        return clean.at(delta, self._point, dropout=dropout)

    def draw(self, clean: ForwardPass) -> Tensor:
        """(B, T, D) one draw of the noise, zero on padding."""
        x, mask = clean.embeddings(self._point), clean.mask
        if self.noise == "standard":
            return gaussian(x, mask, self._ratio, self.rescale_over)
        if self._neighbors is None:
            self.attach(unwrap(clean.model))
        assert self._neighbors is not None
        if not self._audited:
            self._audited = True
            rows = neighbors.audit(self._neighbors, self._decode)
            logger.info("in-manifold noise: %s", "; ".join(map(": ".join, rows)))
        table = embedding_table(unwrap(clean.model))
        draws = neighbors.in_manifold(clean.input_ids, table, self._neighbors, self.orthonormal)
        return rescale(draws, x, mask, self._ratio, self.rescale_over)
