"""Finds the embeddings, the blocks, the pre-trained part and the head of a model."""

import functools
from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from transformers.pytorch_utils import Conv1D

from smoothtune.nn.model_facts import (
    ENCODER_DECODERS,
    Side,
    declaring,
    has_vocabulary_head,
    is_causal,
    is_encoder_decoder,
    reads_text,
    transformer,
)

_PARALLEL = (nn.parallel.DistributedDataParallel, nn.DataParallel)


@functools.cache
def is_fsdp1(cls: Any) -> bool:
    """Whether a class is FSDP1, or a subclass; by name, as its import takes a second."""
    return any(base.__name__ == "FullyShardedDataParallel" for base in cls.__mro__)


def is_embedding_model(model: nn.Module) -> bool:
    """Whether an unwrapped model is a SentenceTransformer, whose prediction is an embedding."""
    return transformer(model) is not model


def is_multiple_choice_model(model: nn.Module) -> bool:
    """Whether an unwrapped model makes one prediction from several sequences."""
    return type(model).__name__.endswith("ForMultipleChoice")


def unwrap(model: nn.Module) -> nn.Module:
    """The user's module inside DDP, FSDP or torch.compile wrappers.

    Several times in a step: unlike accelerate's, it does not look at every submodule.
    """
    while True:
        kind: Any = type(model)
        if (wrapped := model._modules.get("_orig_mod")) is not None:  # what torch.compile wraps
            model = wrapped
        elif isinstance(model, _PARALLEL) or is_fsdp1(kind):
            model = cast(nn.Module, model.module)
        else:
            return model


def weights_of(model: nn.Module) -> list[nn.Parameter]:
    """`list(model.parameters())`, as an update asks for it: in less than half the time."""
    waiting: list[nn.Module | None] = [model]
    seen: set[nn.Module] = set()
    weights: dict[int, nn.Parameter] = {}
    while waiting:
        module = waiting.pop()
        if module is None or module in seen:
            continue
        seen.add(module)
        if own := module._parameters:
            weights |= {id(weight): weight for weight in own.values() if weight is not None}
        if inside := module._modules:
            waiting += reversed(inside.values())
    return list(weights.values())


def trained_weights(model: nn.Module, optimizer: Optimizer | None = None) -> list[nn.Parameter]:
    """The trained weights of a model, wrapped or not, and what its optimizer holds beside them.

    A loss may have weights of its own: a head outside the model, or those of a loss of
    sentence-transformers. An optimizer that holds none of the model's, as DeepSpeed's, adds none.
    """
    own = [weight for weight in weights_of(unwrap(model)) if weight.requires_grad]
    groups = [] if optimizer is None else optimizer.param_groups
    held = [weight for group in groups for weight in group["params"] if weight.requires_grad]
    numbers = {id(weight) for weight in own}
    outside = [weight for weight in held if id(weight) not in numbers]
    return own + outside if len(outside) < len(held) else own


def stack(model: nn.Module, side: Side = "encoder") -> nn.Module:
    """The stack of blocks on one side of an encoder-decoder; any other model is one by itself.

    The word embeddings that the whole model names may never run: those of T5 and BART, and of
    T5's encoder alone. The stacks have a module each, or one together.
    """
    inner = declaring(model)
    kind = getattr(getattr(inner, "config", None), "model_type", "")
    if not hasattr(inner, "get_encoder"):  # a head of transformers 4
        inner = getattr(inner, getattr(inner, "base_model_prefix", ""), inner)
    if is_encoder_decoder(inner) and reads_text(inner) and hasattr(inner, "get_decoder"):
        return inner.get_decoder() if side == "decoder" else inner.get_encoder()  # type: ignore
    return inner.get_encoder() if kind in ENCODER_DECODERS else model  # type: ignore


def word_embeddings(model: nn.Module, side: Side = "encoder") -> nn.Module:
    """The word-embedding layer of an unwrapped model, or of one side of an encoder-decoder.

    Raises:
        ValueError: a model that is no transformers model has not exactly one `nn.Embedding`.
    """
    model = transformer(stack(model, side))
    if callable(getattr(model, "get_input_embeddings", None)):
        try:
            words = model.get_input_embeddings()  # type: ignore[operator]
        except NotImplementedError:
            words = None
        if not isinstance(getattr(words, "weight", None), Tensor):
            raise ValueError(
                f"{type(model).__name__} has no table of word embeddings: use a weight-side method "
                "such as mixout or l2_sp"
            )
        return words
    tables = [module for module in model.modules() if isinstance(module, nn.Embedding)]
    if len(tables) != 1:
        raise ValueError(
            f"{type(model).__name__} has {len(tables)} nn.Embedding layers, so which one holds "
            "the words is not known. Give it a method `get_input_embeddings()` that returns it."
        )
    return tables[0]


def embedding_table(model: nn.Module) -> Tensor:
    """(V, D) the word-embedding matrix of an unwrapped model."""
    table = word_embeddings(model).weight
    assert isinstance(table, Tensor)
    return table


def blocks(model: nn.Module, side: Side = "encoder") -> nn.ModuleList:
    """The blocks of an unwrapped model, or of one side of an encoder-decoder, bottom first.

    Raises:
        ValueError: the model has no list of blocks as long as its configuration says.
    """
    model = stack(model, side)
    config = getattr(transformer(model), "config", None)
    num_layers = getattr(config, "num_hidden_layers", None)
    if side == "decoder":  # BART's stacks have one configuration together
        num_layers = getattr(config, "decoder_layers", num_layers)
    for parent in model.modules():
        lists = {
            child: name
            for name, child in parent._modules.items()
            if isinstance(child, nn.ModuleList) and len(child) == num_layers
        }
        if len(lists) == 1:
            return next(iter(lists))
        if lists:
            names = ", ".join(lists.values())
            raise ValueError(
                f"{type(model).__name__} keeps the parts of its {num_layers} blocks in separate "
                f"lists, {names}, so its hidden states cannot be reached: use a "
                "method that perturbs the word embeddings and compares predictions, such as r3f"
            )
    raise ValueError(
        f"{type(model).__name__} has no nn.ModuleList of config.num_hidden_layers={num_layers} "
        "blocks, so its hidden states cannot be reached. Give a module of your own that list and "
        "a `config` with num_hidden_layers and hidden_size, or use a method that perturbs the word "
        "embeddings and compares predictions, such as r3f."
    )


def embedding_norm(model: nn.Module, side: Side = "encoder") -> nn.Module:
    """The LayerNorm at the end of an unwrapped model's embeddings; block 0 if it has none."""
    model = stack(model, side)
    if isinstance(norm := getattr(model, "layernorm_embedding", None), nn.LayerNorm):
        return norm  # BART's, which stands beside the blocks
    word = word_embeddings(model)
    embeddings = next(m for m in model.modules() if word in m.children())
    norms = [m for m in embeddings.children() if isinstance(m, nn.LayerNorm)]
    holds_blocks = any(isinstance(m, nn.ModuleList) for m in embeddings.modules())
    return blocks(model)[0] if holds_blocks or len(norms) != 1 else norms[0]


def base_model(model: nn.Module) -> nn.Module:
    """The pre-trained part of a model: without its new head, or all of it if it has none.

    A head over the vocabulary is no new one: it was pre-trained with the rest.
    """
    if has_vocabulary_head(model):
        return model
    if hasattr(model, "peft_config"):  # whose own `model` is the whole of it, head included
        model = model.get_base_model()  # type: ignore[operator]
    inner = transformer(model)  # of a CrossEncoder, with its head
    return getattr(inner, getattr(inner, "base_model_prefix", ""), model)


def pooled_positions(model: nn.Module, mask: Tensor) -> Tensor:
    """(B,) the token that the head of an unwrapped model reads: the last in decoders, or the first.

    Args:
        model: unwrapped.
        mask: (B, T) real tokens.

    Raises:
        ValueError: the head of an encoder-decoder reads none of the encoder's tokens.
    """
    if is_encoder_decoder(model):
        raise ValueError(
            "the head of an encoder-decoder reads the decoder's tokens, so no token of a stack "
            "is pooled: compare all tokens (tokens of lnsr), or a random one (token of jachess)"
        )
    if is_causal(model):
        return (torch.arange(mask.shape[1], device=mask.device) * mask).argmax(1)
    return mask.int().argmax(1)


def head_modules(model: nn.Module) -> list[nn.Module]:
    """Modules outside the pre-trained part, without those that PEFT's copies stand in for."""
    replaced = [getattr(module, "original_module", None) for module in model.modules()]
    others = [part for part in (base_model(model), *replaced) if isinstance(part, nn.Module)]
    apart = {model}.union(*(part.modules() for part in others))
    return [module for module in model.modules() if module not in apart]


def trainable(model: nn.Module) -> Iterator[tuple[str, nn.Parameter, bool]]:
    """(name, parameter, whether it belongs to the new head) of every trained parameter."""
    inside = {id(parameter) for parameter in base_model(model).parameters()}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            yield name, parameter, id(parameter) not in inside


def linear_layers(model: nn.Module, *, head: bool, frozen: bool = False) -> list[nn.Module]:
    """Linear layers of an unwrapped model: nn.Linear, and GPT-2's Conv1D.

    Args:
        model: unwrapped.
        head: with those of the head.
        frozen: with those that are frozen.
    """
    new = set(head_modules(model))
    return [
        module
        for module in model.modules()
        if isinstance(module, nn.Linear | Conv1D)
        and (frozen or module.weight.requires_grad)
        and (head or module not in new)
    ]
