"""What a model says of itself: what it reads, what its loss is, which tokens see which.

All of it comes from the model's class, signature and configuration. A model that does not say so
counts as unknown: its own loss is used as it is, and methods that would have to know are refused.
"""

import functools
import inspect
from collections.abc import Mapping
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_IMAGE_MODELING_MAPPING_NAMES,
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_MASKED_LM_MAPPING_NAMES,
)
from transformers.utils.generic import can_return_loss

PROBLEM_TYPES = (None, "regression", "single_label_classification", "multi_label_classification")
SPANS = ("start_positions", "end_positions")
IGNORED = -100
"""The label of a token that is none."""
DECODER_IDS = "decoder_input_ids"
"""What the decoder of an encoder-decoder reads: its labels, shifted."""
Side = Literal["encoder", "decoder", "both"]

# Encoders that become decoders by `config.is_decoder`, as those with a masked-LM head do.
ENCODERS = {*MODEL_FOR_MASKED_LM_MAPPING_NAMES, "bert-generation", "xlnet", "cpmant"}

# Encoder-decoders whose embeddings, losses and shifts of labels are verified.
ENCODER_DECODERS = {"bart", "mbart", "t5"}


def transformer(model: nn.Module) -> nn.Module:
    """The transformers model of an unwrapped model: itself, or what a SentenceTransformer holds.

    The class is asked, as it is often in a step: a module is slow to say what it has not.
    """
    holds_one = hasattr(type(model), "transformers_model")
    return cast(Any, model).transformers_model or model if holds_one else model


def declaring(model: nn.Module) -> nn.Module:
    """The transformers model of an unwrapped model, without PEFT's or a SentenceTransformer's."""
    if hasattr(type(model), "get_base_model"):
        model = cast(Any, model).get_base_model()
    return transformer(model)


def is_encoder_decoder(model: nn.Module) -> bool:
    """Whether an unwrapped model reads one sequence and writes another."""
    return bool(getattr(getattr(declaring(model), "config", None), "is_encoder_decoder", False))


def has_vocabulary_head(model: nn.Module) -> bool:
    """Whether a model has a head over the vocabulary."""
    head = getattr(model, "get_output_embeddings", None)
    return callable(head) and head() is not None


def is_seq2seq_lm(model: nn.Module) -> bool:
    """Whether an unwrapped model's loss is the mean cross entropy of its decoder's label tokens."""
    model = declaring(model)
    kind = getattr(getattr(model, "config", None), "model_type", "")
    return kind in ENCODER_DECODERS and is_encoder_decoder(model) and has_vocabulary_head(model)


def _adapters(model: nn.Module) -> list[Any]:
    """The configurations of PEFT's adapters."""
    configs = getattr(model, "peft_config", None)
    return list(configs.values()) if isinstance(configs, Mapping) else []


def adds_tokens(model: nn.Module) -> bool:
    """Whether adapters put tokens of their own before a batch's, as prompt tuning does."""
    return any(
        getattr(each, "is_prompt_learning", False) and each.peft_type != "PREFIX_TUNING"
        for each in _adapters(model)
    )


def has_merged_adapters(model: nn.Module) -> bool:
    """Whether PEFT has merged adapters into the frozen weights, where they get no gradient."""
    return any(getattr(part, "merged_adapters", ()) for part in model.modules())


def predicts_tokens(model: nn.Module) -> bool:
    """Whether an unwrapped model is a language model: every label token is a prediction."""
    return is_causal_lm(model) or is_seq2seq_lm(model)


def is_causal_lm(model: nn.Module) -> bool:
    """Whether an unwrapped model's loss is the mean cross entropy of each label's next token.

    It has a language-model head, no encoder beside it, and its forward calls the `loss_function`
    that transformers chose for it, which is that of causal language models. Decoders with a loss of
    their own, such as BartForCausalLM and XLNet, do not count.
    """
    from transformers.loss.loss_utils import ForCausalLMLoss  # imports scipy

    model = declaring(model)
    return (
        _calls_loss_function(cast(Any, type(model)))
        and has_vocabulary_head(model)
        and not is_encoder_decoder(model)
        and reads_text(model)
        and getattr(model, "loss_function", None) is ForCausalLMLoss
    )


@functools.cache
def _calls_loss_function(cls: Any) -> bool:
    code = getattr(inspect.unwrap(cls.forward), "__code__", None)
    return code is not None and "loss_function" in code.co_names


def is_causal(model: nn.Module) -> bool:
    """Whether tokens see earlier ones only, so that only the last depends on all of them.

    Said by an attention module (`is_causal`), by the loss (`is_causal_lm`), or by the model type,
    where transformers has it as a decoder and not as an encoder too.
    """
    if any(getattr(module, "is_causal", False) is True for module in model.modules()):
        return True
    model = declaring(model)
    config = getattr(model, "config", None)
    if is_encoder_decoder(model) or getattr(config, "use_bidirectional_attention", False):
        return False
    kind = getattr(config, "model_type", "")
    if kind in MODEL_FOR_CAUSAL_IMAGE_MODELING_MAPPING_NAMES:  # pixels, one after the other
        return True
    return (kind in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES or is_causal_lm(model)) and (
        kind not in ENCODERS or bool(getattr(config, "is_decoder", False))
    )


def labels_at_the_token(model: nn.Module) -> bool:
    """Whether an unwrapped model is a token classifier, whose labels are not those of next tokens.

    transformers says so of every class by its `loss_type`, decoders too.
    """
    return getattr(declaring(model), "loss_type", None) == "ForTokenClassification"


def reads_text(model: nn.Module) -> bool:
    """Whether an unwrapped model's main input are token ids; a module of your own is believed to.

    Pixels, frames and boxes are no tokens: `pixel_values`, `input_values`, `input_features`.
    """
    return getattr(declaring(model), "main_input_name", "input_ids") == "input_ids"


@functools.cache
def label_names(cls: Any) -> tuple[str, ...]:
    """The arguments of a class's forward that hold labels, by transformers' rule."""
    arguments = inspect.signature(cls.forward).parameters
    return tuple(name for name in arguments if "label" in name or name in SPANS)


def has_labels(model: nn.Module, batch: Mapping[str, Any]) -> bool:
    """Whether an unwrapped model will compute a loss on a batch.

    So it does if one of its label arguments is there, if it is asked to (`return_loss`), and always
    if its forward names no label arguments, as in models that reconstruct their input.
    """
    cls: Any = type(declaring(model))
    names = label_names(cls)
    labeled = any(batch.get(name) is not None for name in (*names, "labels", *SPANS))
    return labeled or not names or bool(batch.get("return_loss", can_return_loss(cls)))


def added_loss(model: nn.Module, batch: Mapping[str, Any]) -> str | None:
    """What an unwrapped model adds to the cross entropy of its labels; None if that is nothing."""
    config = getattr(declaring(model), "config", None)
    text = getattr(config, "text_config", None) or config
    declared = any(getattr(part, "output_router_logits", False) for part in (config, text))
    if batch.get("output_router_logits", declared):
        return "the loss that balances its router (output_router_logits)"
    if any(getattr(each, "orth_reg_weight", 0) for each in _adapters(model)):
        return "AdaLoRA's loss of orthogonality (orth_reg_weight)"
    return None


def problem_type(model: nn.Module) -> str | None:
    """What an unwrapped model takes its labels for: one of `PROBLEM_TYPES`."""
    return getattr(getattr(declaring(model), "config", None), "problem_type", None)


def is_undeclared_regression(model: nn.Module) -> bool:
    """Whether an unwrapped sequence classifier takes labels for scores as it has one output."""
    return _undeclared_outputs(model) == 1


def undeclared_labels(model: nn.Module) -> bool:
    """Whether a sequence classifier's labels are one or several is decided by its first labels."""
    return _undeclared_outputs(model) > 1


def _undeclared_outputs(model: nn.Module) -> int:
    """Of a sequence classifier that does not say what its labels are; 0 of any other model."""
    model = declaring(model)
    if getattr(model, "loss_type", None) != "ForSequenceClassification" or problem_type(model):
        return 0
    return getattr(getattr(model, "config", None), "num_labels", 0)


def sides_of(model: nn.Module, side: Side = "both") -> list[Side]:
    """The sides that an unwrapped model has of those named, in the order in which they run."""
    if side == "encoder" or not is_encoder_decoder(model):
        return ["encoder"]
    both: list[Side] = ["encoder", "decoder"]
    return both if side == "both" else [side]


def with_decoder_inputs(model: nn.Module, batch: Mapping[str, Any]) -> dict[str, Any]:
    """The batch of an encoder-decoder language model with `decoder_input_ids`; others as they are.

    Raises:
        ValueError: it has no labels, so nothing says what the decoder predicts.
    """
    if not is_seq2seq_lm(model):
        return dict(batch)
    if batch.get("labels") is None:
        raise ValueError(
            "an encoder-decoder language model predicts its labels, and the batch has none: give "
            'it labels (with batch["unlabeled"] = True they are compared, and not learned)'
        )
    if batch.get(DECODER_IDS) is not None:
        return dict(batch)
    make: Any = declaring(model).prepare_decoder_input_ids_from_labels
    return {**batch, DECODER_IDS: make(batch["labels"])}


def decoder_mask(batch: Mapping[str, Any]) -> Tensor:
    """(B, T) True up to the last label: later tokens of the decoder reach no prediction."""
    labeled = (batch["labels"] != IGNORED).int()
    mask = labeled.flip(1).cummax(1).values.flip(1).bool()
    attended = batch.get("decoder_attention_mask")
    return mask if attended is None else mask & attended.bool()


def tokens_and_mask(
    model: nn.Module, batch: Mapping[str, Any], side: Side
) -> tuple[Tensor, Tensor]:
    """(B, T) what is read on a side, both together or any model, and which of it is real.

    Models for multiple choice put all their sequences into one batch.

    Raises:
        ValueError: the batch has no `input_ids`, does not say what the decoder reads, or has a mask
            of pairs of tokens.
    """
    parts = [
        _of_encoder(batch) if one == "encoder" else _of_decoder(batch)
        for one in sides_of(model, side)
    ]
    return joined([ids for ids, _ in parts]), joined([mask for _, mask in parts])


def _of_encoder(batch: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
    if "input_ids" not in batch:
        raise ValueError(
            f"a perturbation needs `input_ids`, and the batch has {', '.join(batch)}: use a "
            "weight-side method such as mixout or l2_sp"
        )
    ids, mask = batch["input_ids"], batch.get("attention_mask")
    if mask is None:
        mask = torch.ones_like(ids)
    elif mask.shape != ids.shape:
        raise ValueError(
            f"attention_mask has the shape {tuple(mask.shape)} and input_ids {tuple(ids.shape)}: a "
            "perturbation needs one that says of each token whether it is real, not of each pair"
        )
    return ids.flatten(0, -2), mask.flatten(0, -2).bool()


def _of_decoder(batch: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
    if batch.get(DECODER_IDS) is None or "labels" not in batch:
        raise ValueError(
            "a perturbation of the decoder needs labels, from which decoder_input_ids are made: "
            'use side="encoder"'
        )
    return batch[DECODER_IDS], decoder_mask(batch)


def joined(parts: list[Tensor]) -> Tensor:
    """(B, T, ...) what the sides hold, the encoder's first."""
    return parts[0] if len(parts) == 1 else torch.cat(parts, 1)
