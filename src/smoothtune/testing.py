"""The contract every method keeps on every architecture, for our methods and for those of others.

::

    @pytest.mark.parametrize("architecture", ARCHITECTURES)
    @pytest.mark.parametrize("clause", CLAUSES)
    def test_contract(architecture, clause):
        clause(lambda: MyMethod(), architecture)

Models are tiny, random and in float64. Draws are made reproducible with `fixed_draws`, so that a
batch can be compared with its halves and with a longer padded version of itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import tree_map
from transformers import (
    AutoModelForSequenceClassification,
    BertConfig,
    DebertaV2Config,
    GPT2Config,
    LlamaConfig,
    ModernBertConfig,
    OPTConfig,
    PretrainedConfig,
    RobertaConfig,
)

from smoothtune import divergence, random
from smoothtune.objective import Objective
from smoothtune.passes import Pass
from smoothtune.regularizer import Regularizer
from smoothtune.support import REFUSED

_ATTENTION = F.scaled_dot_product_attention
MakeMethod = Callable[[], Regularizer]

PAD, VOCABULARY = 1, 40
_COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "max_position_embeddings": 32,
    "pad_token_id": PAD,
}
ARCHITECTURES: dict[str, Callable[[], PretrainedConfig]] = {
    "bert": lambda: BertConfig(**_COMMON),
    "roberta": lambda: RobertaConfig(**_COMMON),
    "deberta": lambda: DebertaV2Config(
        **_COMMON, relative_attention=True, pos_att_type=["p2c", "c2p"], type_vocab_size=0
    ),
    "modernbert": lambda: ModernBertConfig(
        **_COMMON, cls_token_id=2, sep_token_id=3, bos_token_id=2, eos_token_id=3
    ),
    "opt": lambda: OPTConfig(**_COMMON, ffn_dim=16, word_embed_proj_dim=8),
    "llama": lambda: LlamaConfig(**_COMMON),
    "gpt2": lambda: GPT2Config(
        vocab_size=VOCABULARY, n_embd=8, n_layer=2, n_head=2, n_positions=32, pad_token_id=PAD
    ),
}
LEFT_PADDED = {"opt", "llama"}  # the models that are themselves indifferent to left padding
_DROPOUT = [
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
    "dropout",
    "attention_dropout",
    "embedding_dropout",
    "mlp_dropout",
    "classifier_dropout",
    "pooler_dropout",
    "resid_pdrop",
    "embd_pdrop",
    "attn_pdrop",
]


def tiny_model(
    architecture: str, *, num_labels: int = 3, dropout: float = 0.0, dtype=torch.float64
) -> nn.Module:
    """A random two-layer classifier (or regressor, num_labels=1) in training mode."""
    config = ARCHITECTURES[architecture]()
    for name in _DROPOUT:
        if hasattr(config, name):
            setattr(config, name, dropout)
    config.num_labels = num_labels
    config.use_cache = False
    torch.manual_seed(0)
    model = AutoModelForSequenceClassification.from_config(config).to(dtype)
    for parameter in model.parameters():  # the usual 0.02 makes everything nearly constant
        parameter.data.add_(0.1 * torch.randn_like(parameter))
    return model.train()


def tiny_batch(
    *, padding: int = 0, left: bool = False, num_labels: int = 3, rows: slice = slice(None)
) -> dict[str, Tensor]:
    """Four examples of 6, 4, 5 and 3 tokens, padded to 6 + `padding`."""
    lengths = [6, 4, 5, 3]
    generator = torch.Generator().manual_seed(1)
    ids = torch.full((4, 6 + padding), PAD)
    mask = torch.zeros_like(ids)
    for row, length in enumerate(lengths):
        where = slice(-length, None) if left else slice(0, length)
        ids[row, where] = torch.randint(5, VOCABULARY, (length,), generator=generator)
        mask[row, where] = 1
    labels = torch.tensor([0, 2, 1, 0]) if num_labels > 1 else torch.tensor([0.3, -1, 2, 0.5])
    labels = labels if num_labels > 1 else labels.double()
    batch = {"input_ids": ids, "attention_mask": mask, "labels": labels}
    return {name: tensor[rows] for name, tensor in batch.items()}


@contextmanager
def fixed_draws(*, left: bool = False) -> Iterator[None]:
    """Draws that depend only on the position in an example, counted from the unpadded side."""

    def pattern(x: Tensor) -> Tensor:
        inner = x.shape[1:] if x.ndim > 1 else x.shape
        index = torch.stack(torch.meshgrid(*map(torch.arange, inner), indexing="ij"), -1).double()
        if left and x.ndim > 2:
            index[..., 0] -= inner[0]
        phase = (index * torch.tensor([0.7, 1.9, 3.1])[: index.shape[-1]]).sum(-1)
        return torch.sin(phase + 0.5).to(x.dtype).expand_as(x).clone()

    with (
        mock.patch.object(random, "normal_like", lambda x: 1.4 * pattern(x)),
        mock.patch.object(random, "uniform_like", pattern),
        mock.patch.object(random, "keep_mask", lambda shape, p, like: _alternate(shape, like)),
        mock.patch.object(F, "dropout", _scale_features),
        mock.patch.object(F, "scaled_dot_product_attention", _attention_without_dropout),
    ):
        yield


def _alternate(shape: tuple[int, ...], like: Tensor) -> Tensor:
    return (torch.arange(like.new_empty(shape).numel()) % 3 > 0).view(shape).to(like)


def _scale_features(
    x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Tensor:
    """In place of dropout: depends on the rate and the feature; nothing for attention weights."""
    if not training or x.ndim > 3:
        return x
    return x * (1 + p * torch.sin(1.3 * torch.arange(x.shape[-1], dtype=x.dtype)))


def _attention_without_dropout(*args: Any, **kwargs: Any) -> Tensor:
    return _ATTENTION(*args, **kwargs | {"dropout_p": 0.0})


@contextmanager
def all_in_float64() -> Iterator[None]:
    """Let models that compute parts in float32 whatever their type (RMSNorm, softmax) use float64.

    Otherwise finite differences and sums in another order agree to 1e-6 at best.
    """
    with (
        mock.patch.object(torch, "float32", torch.float64),
        mock.patch.object(torch, "float", torch.float64),
        mock.patch.object(torch.Tensor, "float", torch.Tensor.double),
    ):
        yield


@contextmanager
def frozen_perturbations(recorded: list[Any], *, replay: bool) -> Iterator[None]:
    """Record perturbations of `Pass.at` and targets of divergences, or use those recorded again.

    Methods treat them as constants although they depend on the weights; finite differences must do
    so too.
    """
    original, stored = Pass.at, iter(recorded)

    def at(self: Pass, delta: Any = None, *args: Any, **kwargs: Any) -> Pass:
        if not replay:
            recorded.append(tree_map(_leaf, delta))
        delta = next(stored) if replay else delta
        return original(self, delta, *args, **kwargs)

    def constant(x: Tensor) -> Tensor:
        if replay:
            return next(stored)
        recorded.append(x.detach())
        return recorded[-1]

    with mock.patch.object(Pass, "at", at), mock.patch.object(divergence, "constant", constant):
        yield


def _leaf(tensor: Tensor | None) -> Tensor | None:
    return (
        tensor if tensor is None else tensor.detach().clone().requires_grad_(tensor.requires_grad)
    )


# --- the clauses ---------------------------------------------------------------------------------


def reaches_parameters(make: MakeMethod, architecture: str) -> None:
    """Finite value; the gradient reaches the parameters."""
    model = tiny_model(architecture)
    with fixed_draws():
        gradient = _gradient(Objective(make()), model, tiny_batch())
    assert torch.isfinite(gradient).all()
    assert gradient.abs().max() > 0


def off_at_weight_zero(make: MakeMethod, architecture: str) -> None:
    """Weight 0 is plain fine-tuning bit for bit, dropout and later draws included."""
    method = make()
    settings = method.settings() | {"weight": 0.0, "every": 1}
    results = []
    for regularizers in [(), (type(method)(**settings),)]:
        model = tiny_model(architecture, dropout=0.2)
        torch.manual_seed(3)
        gradient = _gradient(Objective(*regularizers), model, tiny_batch())
        results.append((gradient, torch.rand(1)))
    assert torch.equal(results[0][0], results[1][0])
    assert torch.equal(results[0][1], results[1][1])


def leaves_ambient_draws(make: MakeMethod, architecture: str) -> None:
    """A step leaves the global generators where plain fine-tuning leaves them."""
    after = []
    for regularizers in [(), (make(),)]:
        model = tiny_model(architecture, dropout=0.2)
        objective = Objective(*regularizers).attach(model)
        torch.manual_seed(3)
        objective(model, tiny_batch())
        after.append(torch.rand(1))
        objective.detach()
    assert torch.equal(*after) or make().draws_weights


def ignores_padding(make: MakeMethod, architecture: str) -> None:
    """More padding changes neither value nor gradient."""
    for left in (False, True) if architecture in LEFT_PADDED else (False,):
        with fixed_draws(left=left), all_in_float64():
            values = [
                _gradient(
                    Objective(make()),
                    tiny_model(architecture),
                    tiny_batch(padding=padding, left=left),
                )
                for padding in (0, 3)
            ]
        torch.testing.assert_close(*values, rtol=1e-6, atol=1e-9)


def is_mean_over_examples(make: MakeMethod, architecture: str) -> None:
    """The gradient of a batch is the mean of its halves': exact under accumulation and DDP.

    What a method measures on its first batch is measured once, on the whole one. A method that
    climbs the loss of a whole batch is refused there.
    """
    if make().climbs_in_weights:
        assert {"DDP", "FSDP2"} <= set(REFUSED["climbs in weights"])
        return
    with fixed_draws(), all_in_float64():
        model = tiny_model(architecture)
        objective = Objective(make()).attach(model)
        objective(model, tiny_batch())
        state = objective.state_dict()
        whole, first, second = (
            _gradient(
                Objective(make()),
                tiny_model(architecture),
                tiny_batch(rows=rows),
                raw=True,
                state=state,
            )
            for rows in (slice(None), slice(0, 2), slice(2, 4))
        )
    torch.testing.assert_close(whole, (first + second) / 2, rtol=1e-6, atol=1e-9)


def has_right_gradient(make: MakeMethod, architecture: str) -> None:
    """The parameter gradient equals central finite differences in float64."""
    model = tiny_model(architecture)
    objective = Objective(make()).attach(model)
    batch = tiny_batch()
    recorded: list[Any] = []
    weights: list[Tensor] = [p for p in model.parameters() if p.requires_grad]
    torch.manual_seed(5)
    direction = [torch.randn_like(p) for p in weights]
    with fixed_draws(), all_in_float64():
        with frozen_perturbations(recorded, replay=False):
            gradients = torch.autograd.grad(objective(model, batch), weights, allow_unused=True)
        slope = sum(
            (g * d).sum() for g, d in zip(gradients, direction, strict=True) if g is not None
        )
        values, h = [], 1e-6
        for sign in (1, -1):
            with torch.no_grad():
                for weight, d in zip(weights, direction, strict=True):
                    weight.add_(sign * h * d)
            with frozen_perturbations(recorded, replay=True):
                values.append(objective(model, batch).item())
            with torch.no_grad():
                for weight, d in zip(weights, direction, strict=True):
                    weight.sub_(sign * h * d)
    expected = torch.tensor((values[0] - values[1]) / (2 * h), dtype=torch.float64)
    torch.testing.assert_close(torch.as_tensor(slope), expected, rtol=1e-5, atol=1e-7)


def leaves_no_trace(make: MakeMethod, architecture: str) -> None:
    """`loss` touches no gradient and no mode; `detach` leaves modules, hooks and keys as found."""
    model = tiny_model(architecture, dropout=0.1)
    before = _fingerprint(model)
    objective = Objective(make()).attach(model)
    attached = _fingerprint(model)
    with all_in_float64():
        predictions = _predict(model)
    objective(model, tiny_batch())
    assert _fingerprint(model) == attached
    assert all(p.grad is None for p in model.parameters())
    objective.detach()
    assert _fingerprint(model) == before
    with all_in_float64():  # while attached, attention may be another implementation
        torch.testing.assert_close(_predict(model), predictions, rtol=1e-9, atol=1e-12)


def resumes(make: MakeMethod, architecture: str) -> None:
    """State round trip: the step after loading equals the step of the uninterrupted run."""
    model = tiny_model(architecture, dropout=0.1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    objective = Objective(make()).bind(model, optimizer)
    _step(objective, model, optimizer)
    weights = {key: value.clone() for key, value in model.state_dict().items()}
    state = {key: value.clone() for key, value in objective.state_dict().items()}
    _step(objective, model, optimizer)
    expected = {key: value.clone() for key, value in model.state_dict().items()}

    other = tiny_model(architecture, dropout=0.1)
    with torch.no_grad():  # a process that did not start from the pre-trained weights
        for parameter in other.parameters():
            parameter.add_(0.01)
    other_optimizer = torch.optim.SGD(other.parameters(), lr=0.1)
    resumed = Objective(make()).bind(other, other_optimizer)
    other.load_state_dict(weights)
    resumed.load_state_dict(state)
    _step(resumed, other, other_optimizer)
    for key, value in other.state_dict().items():
        torch.testing.assert_close(value, expected[key], rtol=1e-9, atol=1e-12)


def survives_checkpointing(make: MakeMethod, architecture: str) -> None:
    """Non-reentrant gradient checkpointing changes nothing, or is refused by name."""
    gradients = []
    for checkpointing in (False, True):
        model = tiny_model(architecture, dropout=0.1)
        if checkpointing:
            model.activation_checkpointing_enable()  # type: ignore[operator]
        torch.manual_seed(7)
        try:
            gradients.append(_gradient(Objective(make()), model, tiny_batch()))
        except ValueError as error:
            if not checkpointing or "activation checkpointing" not in str(error):
                raise
            return
    torch.testing.assert_close(*gradients, rtol=1e-7, atol=1e-10)


CLAUSES = [
    reaches_parameters,
    off_at_weight_zero,
    leaves_ambient_draws,
    ignores_padding,
    is_mean_over_examples,
    has_right_gradient,
    leaves_no_trace,
    resumes,
    survives_checkpointing,
]


def _gradient(
    objective: Objective,
    model: nn.Module,
    batch: dict[str, Tensor],
    *,
    raw: bool = False,
    state: Any = None,
) -> Tensor:
    """All parameter gradients of one step, flat: as the optimizer sees them, or before edits."""
    objective.attach(model)
    if state is not None:
        objective.load_state_dict(state)
    objective(model, batch).backward()
    if not raw:
        objective.gradients()
    flat = [
        torch.zeros_like(p).flatten() if p.grad is None else p.grad.flatten()
        for p in model.parameters()
    ]
    objective.detach()
    return torch.cat(flat)


def _step(objective: Objective, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    torch.manual_seed(11)
    objective(model, tiny_batch()).backward()
    optimizer.step()
    optimizer.zero_grad()


@torch.no_grad()
def _predict(model: nn.Module) -> Tensor:
    model.eval()
    logits = model(**tiny_batch())["logits"]
    model.train()
    return logits


def _fingerprint(model: nn.Module) -> list:
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_state_dict_hooks", "_backward_hooks")
    modules = [
        (name, type(module), module.training, getattr(module, "p", None))
        + tuple(len(getattr(module, kind)) for kind in hooks)
        for name, module in model.named_modules()
    ]
    trained = [(name, p.shape, p.requires_grad) for name, p in model.named_parameters()]
    return modules + trained + list(model.state_dict())
