"""Tiny random models of the classes of transformers, from their own configurations."""

import dataclasses
import re
from contextlib import suppress

import torch
from transformers import PretrainedConfig
from transformers.models.auto import modeling_auto

LARGEST = 3_000_000
"""Parameters; a class that is larger after shrinking is left out."""
VOCABULARY, FIRST_WORD, IGNORED = 99, 8, -100
NOT_TASKS = ("BACKBONE", "IMAGE", "TEXT_ENCODING", "RETRIEVAL")  # without a loss, or listed twice
ORDER = [  # the heads of texts first
    "SEQUENCE_CLASSIFICATION",
    "CAUSAL_LM",
    "MASKED_LM",
    "SEQ_TO_SEQ_CAUSAL_LM",
    "TOKEN_CLASSIFICATION",
    "QUESTION_ANSWERING",
    "MULTIPLE_CHOICE",
    "NEXT_SENTENCE_PREDICTION",
    "IMAGE_CLASSIFICATION",
    "IMAGE_TEXT_TO_TEXT",
    "AUDIO_CLASSIFICATION",
    "CTC",
    "SPEECH_SEQ_2_SEQ",
    "PRETRAINING",
]
SIZES = [  # the first pattern that fits the name of a whole number says what it becomes at most
    (r"^num_feat_extract_layers$|_id$|_index$|_ids$|_seed$|^seed$", None),
    (r"num_kv_shared_layers|num_nextn|mtp|^n_shared_experts$", 1),
    (r"(key_value|kv)_heads$", 2),
    (r"^mamba_(n|num)_heads$", 8),
    (r"heads$|^n_head$", 4),
    (r"^(n|num)_groups?$|^topk_group$|^n_expert_group$|^num_expert_group$", 1),
    (r"experts_per_tok|^moe_topk$|^moe_k$|^top_?k$", 2),
    (r"experts$", 4),
    (r"(layers?|blocks)$|^depth$|^layers$", 2),
    (r"rotary_dim|head_dim|^d_kv$|d_head$|dim_head|head_size|^attention_head_size$", 8),
    (r"codebook_size", 64),
    (r"vocab|num_embeddings|num_code", VOCABULARY),
    (r"position|^n_ctx$|context_length|max_seq|_len$|max_length|sliding_window|window$", 64),
    (r"^window_size$", 2),
    (r"image_size|img_size|crop_size", 32),
    (r"patch_size", 8),
    (r"rank$", 8),
    (r"hidden|d_model|embd|embed|emb_dim|width|dim$|size$|channels$|units$|filters$", 32),
    (r"intermediate|ffn|mlp|d_ff|d_inner|feedforward|n_inner", 32),
]
SIZES_OF_LISTS = {
    "depths": 1,
    "conv_dim": 32,
    "tdnn_dim": 32,
    "stem_channels": 16,
    "hidden_sizes": 32,
    "encoder_hidden_sizes": 32,
}
UNSET = {"head_dim": 8, "vocab_size": VOCABULARY}
OTHER_FIELDS = {  # where sizes depend on each other
    "reformer": {"axial_pos_embds_dim": (16, 16), "axial_pos_shape": (1, 5), "is_decoder": True},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "mamba2": {"num_heads": 8},
    "layoutlmv3": {"coordinate_size": 6, "shape_size": 4},
    "nystromformer": {"num_landmarks": 1, "segment_means_seq_len": 5},
    "deepseek_v2": {"topk_group": 1, "n_group": 1, "num_experts_per_tok": 2},
    "t5": {"decoder_start_token_id": 0},
    "xmod": {"default_language": "en_XX"},
    "esmc": {"num_key_value_heads": 4},
} | {name: {"embed_dim": 24} for name in ("swin", "swinv2", "donut-swin", "maskformer-swin")}
KINDS_OF_LAYERS = ("layer_types", "mlp_layer_types", "layers_block_type")
DROPOUT = re.compile(r"drop(out)?|_pdrop$")
OTHER_NOISE = re.compile(
    r"layer_?drop|mask_time_prob|mask_feature_prob|jitter|drop_path|stochastic"
)


def classes() -> dict[str, tuple[str, str]]:
    """(head, model type) of every class that an automatic class may return, by its name.

    A class with several heads, such as one for pre-training, has the first of `ORDER`.
    """
    names = (re.fullmatch(r"MODEL_FOR_(\w+)_MAPPING_NAMES", name) for name in dir(modeling_auto))
    heads = sorted(match[1] for match in names if match and match[1] not in NOT_TASKS)
    found: dict[str, tuple[str, str]] = {}
    for head in sorted(heads, key=lambda h: ORDER.index(h) if h in ORDER else len(ORDER)):
        for model_type, value in getattr(modeling_auto, f"MODEL_FOR_{head}_MAPPING_NAMES").items():
            for cls in [value] if isinstance(value, str) else value:
                found.setdefault(cls, (head, model_type))
    return found


def size(name: str, value: int) -> int:
    """What a whole number of a configuration becomes."""
    for pattern, limit in SIZES:
        if re.search(pattern, name):
            return value if limit is None else min(value, limit)
    return value


def shrunk(name, value):
    """A field of a configuration made small."""
    if isinstance(value, PretrainedConfig):
        return tiny_config(type(value), value)
    if name in KINDS_OF_LAYERS and isinstance(value, list):
        return [*dict.fromkeys(value), *value][:2]
    if isinstance(value, dict):
        return {k: [2, 1, 1] if k == "mrope_section" else v for k, v in value.items()}
    if isinstance(value, bool) or value is None:
        return UNSET.get(name) if value is None else value
    if isinstance(value, int):
        return size(name, value)
    if isinstance(value, list | tuple) and (limit := SIZES_OF_LISTS.get(name)):
        return type(value)(min(v, limit) for v in value)
    return value


def tiny_config(cls, default=None) -> PretrainedConfig:
    """A configuration with two layers, 32 features and 99 words, as far as its fields are known."""
    default = cls() if default is None else default
    fields = {}
    for field in dataclasses.fields(cls):
        with suppress(Exception):  # fields that differ from layer to layer cannot be read
            fields[field.name] = getattr(default, field.name)
    small = {name: shrunk(name, value) for name, value in fields.items()}
    small = {name: value for name, value in small.items() if value is not fields[name]}
    if "kv_lora_rank" in fields:
        small["num_key_value_heads"] = 4
    return cls(**small | special_tokens(fields) | OTHER_FIELDS.get(cls.model_type, {}))


def special_tokens(fields):
    """Ids of special tokens that the small vocabulary has; padding is never another one of them."""
    ids = {
        name: value
        for name, value in fields.items()
        if re.fullmatch(r"(pad|bos|eos|sep|cls|mask|unk|decoder_start)_token_id", name)
    }
    taken = {v for v in ids.values() if isinstance(v, int) and 0 <= v < FIRST_WORD}
    free = [i for i in range(FIRST_WORD) if i not in taken]
    found = {}
    for name, value in ids.items():
        missing = value is None and name in ("pad_token_id", "eos_token_id")
        if missing or (isinstance(value, int) and not 0 <= value < VOCABULARY):
            found[name] = free.pop(0) if free else FIRST_WORD - 1
    return found


def make_config(cls, head, dropout=0.0):
    """The tiny configuration of a class, for its head."""
    config = tiny_config(cls.config_class)
    with suppress(AttributeError):  # the fast kernels have no float64
        config._experts_implementation = "eager"
    for part in parts(config):
        part.use_cache = False
        for name, value in list(vars(part).items()):
            if OTHER_NOISE.search(name) and isinstance(value, float):
                setattr(part, name, 0.0)
            elif DROPOUT.search(name) and isinstance(value, float):
                setattr(part, name, dropout)
        if head == "CAUSAL_LM" and hasattr(part, "is_decoder"):
            part.is_decoder = not getattr(part, "is_encoder_decoder", False)
        for name in ("output_router_logits",):
            if hasattr(part, name):
                setattr(part, name, True)
    if head.endswith("CLASSIFICATION"):
        config.num_labels = 3
    return config


def parts(config):
    """A configuration and those inside it."""
    yield config
    for value in list(vars(config).values()):
        if isinstance(value, PretrainedConfig):
            yield from parts(value)


def count(cls, config):
    """Number of parameters, without making them."""
    with torch.device("meta"):
        model = cls(config)
    return sum(p.numel() for p in model.parameters())


def make_model(cls, head, dropout=0.0):
    """A random model in training mode, with one rate for all its dropouts."""
    torch.manual_seed(0)
    model = cls(make_config(cls, head, dropout))
    with torch.no_grad():
        for p in model.parameters():  # the usual 0.02 makes everything nearly constant
            p.add_(0.1 * torch.randn_like(p))
    return model.train()
