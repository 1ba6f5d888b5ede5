"""What a model folder of others may say: where its weights are, and what runs when it is loaded."""

import json
import pickle
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from smoothtune.errors import ModelError, OutputError
from smoothtune.files import RESULT, changed_file, read_json

INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
MAX_BYTES = {"config.json": 10_000_000, "tokenizer.json": 500_000_000}
MAX_BYTES |= {name: 200_000_000 for name in INDEXES}
MAX_LISTED = 5  # weights that an error names
MAX_SIZE = 2**31 - 1  # of a number in a configuration, such as a width or a number of labels


@contextmanager
def only_model_errors(what: str) -> Iterator[None]:
    """Turn whatever a library raises while it reads a model into ModelError: `what` failed."""
    try:
        yield
    except (ModelError, MemoryError):
        raise
    except pickle.UnpicklingError as error:
        raise ModelError(
            f"{what}: they are a pickle with more than tensors, which is unsafe; use a model with "
            "safetensors weights"
        ) from error
    except RecursionError as error:
        raise ModelError(f"{what}: a file is nested too deeply; get the model again") from error
    except Exception as error:  # a parser that is fed damage raises anything
        raise ModelError(f"{what}: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and "couldn't connect to" in str(error):
        return "there is no folder of that name here, and the hub cannot be reached"
    has_message = isinstance(error, OSError | ValueError | RuntimeError) and str(error)
    return str(error) if has_message else f"a file is damaged ({type(error).__name__}: {error})"


def check_files(folder: str | Path) -> None:
    """Check the sizes of a local folder's files of text, and where its index finds the weights."""
    for name, limit in MAX_BYTES.items():
        path = Path(folder) / name
        if path.is_file() and path.stat().st_size > limit:
            raise ModelError(f"{path} has more than {limit:,} bytes; get the model again")
    for name in INDEXES:
        if (Path(folder) / name).is_file():
            shard_names(Path(folder) / name)


def check_recorded(folder: str | Path) -> None:
    """Raise ModelError unless the files of a model that smoothtune trained are as it wrote them."""
    try:
        record = read_json(Path(folder) / RESULT) or {}
    except OutputError:  # what else has this name is not ours
        return
    if why := changed_file(Path(folder), record):
        raise ModelError(
            f"{folder} is not as smoothtune wrote it: {why}; restore the file, or train again. If "
            f"you changed it on purpose, take it out of the list `files` in {RESULT}"
        )


def shard_names(index: Path) -> list[str]:
    """Names of the files that hold the weights; ModelError unless all are beside their index."""
    try:
        weight_map = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        names = sorted(set(weight_map.values()))
    except (OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise ModelError(
            f"{index} is no index of weights ({type(error).__name__}: {error}); get the model again"
        ) from error
    for name in names:
        if not isinstance(name, str) or Path(name).name != name or name in (".", ".."):
            raise ModelError(
                f"{index} names the file {name!r}: weights must lie beside their index; get the "
                "model again, or from another source"
            )
        if not (index.parent / name).is_file():
            raise ModelError(f"{index} names the file {name!r}, which is missing")
    return names


def check_config(
    config: Any, model: str, trust_remote_code: bool, *, adapter: bool = False
) -> None:
    """Raise ModelError for what a configuration may not make transformers do with the model.

    It must ask for no code of the hub, unless `trust_remote_code`, for no quantized weights, unless
    it is that of an `adapter`, and hold numbers and types where they belong.
    """
    where = f"config.json of {model}"
    for part in [config, *(getattr(config, name, None) for name in config.sub_configs)]:
        for field in ("_attn_implementation", "_experts_implementation"):
            kernel = getattr(part, field, None)
            if isinstance(kernel, str):
                accepted = trust_remote_code or kernel.replace("_", "").isalnum()
            else:
                accepted = kernel is None
            if not accepted:
                raise ModelError(
                    f"{where} sets {field.strip('_')} to {kernel!r}, code that is not part of "
                    "transformers: remove the field, or give --trust-remote-code if you trust it"
                )
        quantization = getattr(part, "quantization_config", None)
        library = quantization.get("quant_method") if isinstance(quantization, dict) else None
        if quantization is not None and not (adapter and library == "bitsandbytes"):
            raise ModelError(
                f"{where} has a quantization_config: quantized weights are not trained or "
                "evaluated here; use the model in full precision, and frozen_weights: 4bit to "
                "store it in fewer bits"
            )
        dtype = getattr(part, "dtype", None)
        if not (dtype is None or isinstance(dtype, torch.dtype)):
            raise ModelError(f"{where}: dtype {dtype!r} is no type of numbers; write float32")
    names = getattr(config, "architectures", None) or []
    if not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
        raise ModelError(f"{where}: architectures {names!r} is no list of names; remove the field")
    for name, value in config.to_dict().items():
        if isinstance(value, int) and abs(value) > MAX_SIZE:
            raise ModelError(f"{where}: {name} is {value}, too large; get the model again")


def refuse_new_weights(
    source: str, model: Any, missing: Collection[str], sizes: Mapping[str, Sequence[Any]]
) -> None:
    """Refuse files that lack weights of the model below its head, which would be random.

    A pooler between the model and its head may be new, as language models have none. `missing` are
    names of weights that are in no file; `sizes`, by name, are that in the file and that of the
    model where they differ, if known.
    """
    names = [name for name, _ in model.named_parameters()]
    inside = f"{model.base_model_prefix}."
    if not any(name.startswith(inside) for name in names):  # a model that does not say its head
        inside = "" if set(names) <= {*missing, *sizes} else inside
    lacking = sorted(x for x in missing if x.startswith(inside) and "pooler" not in x.split("."))
    wrong = sorted(name for name in sizes if name.startswith(inside))
    if not lacking and not wrong:
        return
    total = sum(name.startswith(inside) for name in names)
    gaps = [f"lacks {name}" for name in lacking]
    gaps += [f"has {name} of {_other_size(*sizes[name])}" for name in wrong]
    if len(gaps) > MAX_LISTED:
        gaps[MAX_LISTED:] = [f"and so on: {len(gaps)} of {total} weights"]
    raise ModelError(
        f"the weights of {source} do not fit its config.json. The file {'; '.join(gaps)}. These "
        "would be random: get the model again. If they are to be new, give allow_new_weights: true "
        "(--allow-new-weights), or from_scratch: true for all"
    )


def _other_size(*sizes: Sequence[int]) -> str:
    shapes = [" x ".join(map(str, size)) for size in sizes]
    return "size " + ", not ".join(shapes) if shapes else "another size"
