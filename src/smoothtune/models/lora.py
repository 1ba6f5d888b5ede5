"""Low-rank adapters on a frozen model: created, saved and loaded with peft.

Reference: Hu et al., LoRA: Low-Rank Adaptation of Large Language Models, ICLR 2022.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from smoothtune.console import quiet
from smoothtune.errors import LoraError

if TYPE_CHECKING:
    from torch import Tensor, nn
    from transformers import PretrainedConfig


ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"
Name = Annotated[str, Field(min_length=1)]
Stored = Literal["float32", "bfloat16", "float16", "8bit", "4bit"]


class LoraSettings(BaseModel):
    """Adapters W + alpha / r B A on chosen linear layers; all other weights are frozen."""

    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, allow_inf_nan=False, use_attribute_docstrings=True
    )

    r: Annotated[int, Field(ge=1)] = 8
    """Rank of the adapters."""
    alpha: Annotated[float, Field(gt=0)] = 8.0
    """Adapters are scaled by alpha / r."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Dropout of the adapters' inputs."""
    target_modules: Annotated[list[Name], Field(min_length=1)] | Name | None = None
    """Names of layers, or all-linear; unset: peft's default for the architecture."""
    modules_to_save: Annotated[list[Name], Field(min_length=1)] | None = None
    """Modules that are trained and saved in full beside the head and what is new."""


def import_peft() -> Any:
    """Peft, an optional dependency; LoraError where it is not installed."""
    try:
        import peft
    except ImportError as error:
        raise LoraError('LoRA needs peft: pip install "smoothtune[lora]"') from error
    return peft


def stored_as(frozen_weights: Stored, unquantized: list[str]) -> dict[str, Any]:
    """Options of `from_pretrained` for the weights that adapters leave frozen.

    The modules `unquantized`, the head among them, are not quantized. Raises LoraError where
    bitsandbytes or, for float16, an accelerator is missing.
    """
    import torch

    if frozen_weights == "float16" and not torch.accelerator.is_available():
        raise LoraError(
            "frozen_weights: float16 needs an accelerator, as PyTorch has no layer norm for it "
            "beside bfloat16 on a processor: use bfloat16"
        )
    if frozen_weights in ("float32", "bfloat16", "float16"):
        return {"dtype": getattr(torch, frozen_weights)}
    from transformers import BitsAndBytesConfig

    if find_spec("bitsandbytes") is None:
        raise LoraError(
            f"frozen_weights: {frozen_weights} needs bitsandbytes: "
            'pip install "smoothtune[quantized]"'
        )
    quantization = BitsAndBytesConfig(
        load_in_8bit=frozen_weights == "8bit",
        load_in_4bit=frozen_weights == "4bit",
        bnb_4bit_quant_type="nf4",
        bnb_4bit_compute_dtype=torch.bfloat16,
        llm_int8_skip_modules=unquantized,
    )
    return {"dtype": torch.bfloat16, "quantization_config": quantization}


def add_lora(
    model: nn.Module,
    settings: LoraSettings,
    task_type: str | None,
    new_weights: Iterable[str],
    *,
    seed: int,
) -> Any:
    """Put adapters on a model and freeze the rest; returns a `PeftModel`, or raises LoraError.

    `task_type` is peft's name of it; None: it has none. The `new_weights`, which are not
    pre-trained, are trained in full. The adapters begin with values drawn with `seed`; the global
    random state is unchanged.
    """
    import torch  # not above: the settings alone are needed to check a run file

    peft = import_peft()
    _refuse_absent(model, settings)
    modules_to_save = {*_head_modules(model, new_weights), *(settings.modules_to_save or ())}
    config = peft.LoraConfig(
        task_type=task_type,
        r=settings.r,
        lora_alpha=settings.alpha,
        lora_dropout=settings.dropout,
        target_modules=settings.target_modules,
        modules_to_save=sorted(modules_to_save),
    )
    try:
        with _quiet_peft(), torch.random.fork_rng():
            torch.manual_seed(seed)
            adapted = peft.get_peft_model(model, config)
    except ValueError as error:
        raise LoraError(f"{error} {_advice(model)}") from error
    for weight in adapted.parameters():
        if weight.requires_grad:  # a new head has the type of the frozen weights
            weight.data = weight.data.float()
    return adapted


def adapter_summary(model: Any) -> str:
    """Where the adapters of a model are, and how many of its weights are trained."""
    targets = next(iter(model.peft_config.values())).target_modules
    layers = targets if isinstance(targets, str) else ", ".join(sorted(targets))
    trained, total = model.get_nb_trainable_parameters()
    share = f"{100 * trained / total:.2g} % of all"
    return f"lora: adapters on {layers}; {trained / 1e6:.2f}M parameters are trained, {share}"


@contextmanager
def _quiet_peft() -> Iterator[None]:
    """Hide peft's warnings about its own deprecated names and about GPT-2's Conv1D layers."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*is_gradient_checkpointing", FutureWarning)
        warnings.filterwarnings("ignore", "fan_in_fan_out is set to", UserWarning)
        yield


def _refuse_absent(model: nn.Module, settings: LoraSettings) -> None:
    """Refuse names that no module has, which peft leaves out in silence beside others."""
    paths = [f".{name}" for name, _ in model.named_modules()]
    targets = settings.target_modules if isinstance(settings.target_modules, list) else []
    if absent := [n for n in targets if not any(p.endswith(f".{n}") for p in paths)]:
        names = ", ".join(absent)
        raise LoraError(f"lora.target_modules: no layer is named {names}. {_advice(model)}")
    saved = settings.modules_to_save or []
    if absent := [n for n in saved if not any(p.endswith(n) for p in paths)]:
        names = ", ".join(absent)
        raise LoraError(f"lora.modules_to_save: {type(model).__name__} has no module {names}")


def _advice(model: nn.Module) -> str:
    linear = [n for n, m in model.named_modules() if type(m).__name__ in ("Linear", "Conv1D")]
    names = sorted({name.split(".")[-1] for name in linear})
    return (
        f"Set target_modules to layers of {type(model).__name__}, such as {', '.join(names)}, "
        "or to all-linear, without brackets"
    )


def _head_modules(model: nn.Module, new_weights: Iterable[str]) -> set[str]:
    """Modules outside the base model, and new modules inside it."""
    prefix = getattr(model, "base_model_prefix", "")
    outside = [name for name, module in model.named_children() if list(module.parameters())]
    inside = [name.rpartition(".")[0] for name in new_weights if name.startswith(f"{prefix}.")]
    return {name for name in outside if name != prefix} | set(inside)


def is_adapter(folder: str | Path) -> bool:
    """Whether a folder holds a peft adapter instead of a full model."""
    return (Path(folder) / ADAPTER_CONFIG).is_file()


def save(model: Any, folder: Path, weights: dict[str, Tensor] | None = None) -> None:
    """Write a plain model, or an adapter in peft's format with the model's ``config.json``.

    `weights` are whole ones by name, where the model has parts of them.
    """
    if not hasattr(model, "peft_config"):
        model.save_pretrained(folder, state_dict=weights)
        return
    model.save_pretrained(folder, state_dict=weights, save_embedding_layers=False)
    base = model.get_base_model()
    base.config.architectures = [type(base).__name__]  # as in the configuration of a full model
    base.config.save_pretrained(folder)


def merged(model: Any) -> Any:
    """The plain model with the adapters merged into its weights; other models unchanged."""
    if not hasattr(model, "peft_config"):
        return model
    plain = model.merge_and_unload()
    vars(plain).pop("peft_config", None)  # which peft before 0.19 leaves there
    return plain


def merged_copy(model: Any) -> Any:
    """The plain model in float32, its adapters merged; the model itself keeps them.

    A model without adapters is returned as it is. Raises ValueError for quantized weights.
    """
    if not hasattr(model, "peft_config"):
        return model
    if getattr(model.get_base_model(), "is_quantized", False):
        raise ValueError("the frozen weights are stored in too few bits to be compared")
    return merged(copy.deepcopy(model).float())


def load_merged(
    folder: str, auto_model: Any, config: PretrainedConfig, **options: Any
) -> tuple[Any, set[str]]:
    """Load the model that an adapter was trained on, and merge the adapter into it, in float32.

    Where the adapter's configuration stores weights in fewer bits, they are rounded so first.
    Raises LoraError where peft or weights are missing, or the base model cannot be loaded.

    Args:
        folder: holds the adapter.
        auto_model: transformers' auto class for its task.
        config: of the adapted model, with its labels.
        options: for `from_pretrained`; not of the type of weights.

    Returns:
        The plain model, and the names of weights in neither the base model nor the adapter.
    """
    peft = import_peft()
    import torch
    from safetensors import safe_open
    from transformers import BitsAndBytesConfig

    from smoothtune.models.checks import check_files  # imports torch
    from smoothtune.nn.hf_versions import mismatched_sizes

    if not (Path(folder) / ADAPTER_WEIGHTS).is_file():
        raise LoraError(f"{folder} has no {ADAPTER_WEIGHTS}; adapters are read from safetensors")
    base = peft.PeftConfig.from_pretrained(folder).base_model_name_or_path
    if not isinstance(base, str) or not base or ".." in Path(base).parts or ":" in base:
        raise LoraError(
            f"{folder} is an adapter of {base!r}, which is neither a hub id nor a folder's whole "
            f"path; write it into base_model_name_or_path in {ADAPTER_CONFIG}"
        )
    check_files(base)
    half = config.dtype in (torch.float16, torch.bfloat16)
    options["dtype"] = config.dtype if half else torch.float32
    if (quantization := getattr(config, "quantization_config", None)) is not None:
        options["quantization_config"] = BitsAndBytesConfig.from_dict(quantization)
        del config.quantization_config
    # the model that it was trained on, with its frozen weights rounded as then
    try:
        model, info = auto_model.from_pretrained(
            base, config=config, ignore_mismatched_sizes=True, output_loading_info=True, **options
        )
    except (OSError, ValueError) as error:  # ValueError: a path, which is no name on the hub
        raise LoraError(
            f"{folder} is an adapter of {base}, which cannot be loaded: {error}. Put that model "
            f"there, or change base_model_name_or_path in {ADAPTER_CONFIG}"
        ) from error
    if "quantization_config" in options:
        with quiet():
            model.dequantize(dtype=torch.float32)
    model.float()
    # the adapter, and what neither of them holds
    with safe_open(Path(folder) / ADAPTER_WEIGHTS, framework="pt") as file:
        saved = {name.removeprefix("base_model.model.") for name in file.keys()}  # noqa: SIM118
    with _quiet_peft():
        adapted = peft.PeftModel.from_pretrained(model, folder)
    new = set(info["missing_keys"]) | set(mismatched_sizes(info))
    return merged(adapted), new - saved
