"""What the runs of a study read: data and weights, with fingerprints."""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from datasets import Dataset

from smoothtune.config.evaluation import OtherData
from smoothtune.config.run import RunConfig
from smoothtune.config.task import configured_task
from smoothtune.data.demo_sentences import sentiment
from smoothtune.evaluation.transfer import as_task, labeled_rows, source_of
from smoothtune.files import cache_folder, write_atomic
from smoothtune.models.load import Base, load_base, weights_fingerprint
from smoothtune.study.fields import DEMO
from smoothtune.study.records import Extras, Fingerprints
from smoothtune.tasks.base import Task


def data_fingerprint(source: str, run: RunConfig) -> str:
    """Sha256, in hex, of the columns that a task reads, in all splits, whatever the file format.

    Raises:
        DataError: the source cannot be read or does not fit the task.
    """
    task = configured_task(run)
    splits = task.load_splits(source)
    task = task.with_labels(splits["train"], source)
    used = {"train", "validation", task.validation_split} & set(splits)
    task.rows.check({name: splits[name] for name in used}, source)
    kept = {name: split for name, split in splits.items() if name != "test"}
    return _fingerprint(kept, task.rows.columns)


def unlabeled_fingerprint(source: str, run: RunConfig) -> str:
    """The same of the texts of an unlabeled source."""
    task = configured_task(run)
    return _fingerprint(task.load_splits(source, labeled=False), task.text_columns)


def other_fingerprint(other: OtherData, run: RunConfig) -> str:
    """The same of another data set."""
    task = as_task(other, configured_task(run))
    return _fingerprint(task.load_splits(source_of(other), need_train=False), task.rows.columns)


def check_other_data(run: RunConfig, extras: Extras) -> None:
    """Raise DataError where other data sets do not fit: a run would find out after its training."""
    task = configured_task(run)
    source = data_at_hand(run) or task.hub_id or ""
    task = task.with_labels(task.load_splits(source)["train"], source)
    for _, other in extras.ood:
        labeled_rows(other, task)


def _fingerprint(splits: Mapping[str, Dataset], columns: Iterable[str]) -> str:
    """Sha256, in hex, of columns of all splits, those that are there."""
    digest = hashlib.sha256()
    for name, split in sorted(splits.items()):
        for column in columns:
            if column in split.column_names:
                content = json.dumps([name, column, split[column][:]], default=str)
                digest.update(content.encode())
    return digest.hexdigest()


def fingerprints_of(
    run: RunConfig, extras: Extras, known: dict[str, str] | None = None
) -> Fingerprints:
    """Of all that a run reads, as it is now; those in `known` are not taken again."""
    known = {} if known is None else known

    def once(what: str, fingerprint: Callable[..., str], *arguments: Any) -> str:
        if what not in known:
            known[what] = fingerprint(*arguments)
        return known[what]

    task, texts = configured_task(run), run.unlabeled
    source = data_at_hand(run) or task.hub_id or ""
    return Fingerprints(
        once(f"{task} {source}", data_fingerprint, source, run),
        once(f"weights {run.model}", base_weights_fingerprint, run),
        once(f"unlabeled {task} {texts}", unlabeled_fingerprint, texts, run) if texts else None,
        tuple(
            (name, once(f"ood {task} {other}", other_fingerprint, other, run))
            for name, other in extras.ood
        ),
    )


def data_at_hand(run: RunConfig) -> str | None:
    """The data of a run; the demo's generated sentences are written to files first."""
    return _demo_folder() if run.data == DEMO else run.data


def _demo_folder() -> str:
    """The generated sentences as files in the user's cache."""
    folder = cache_folder() / DEMO
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in zip(("train", "validation"), sentiment(), strict=True):
        text = "".join(json.dumps(row) + "\n" for row in rows)
        if not (folder / f"{name}.jsonl").exists():
            write_atomic(folder / f"{name}.jsonl", text)
    return str(folder)


def base_weights_fingerprint(run: RunConfig) -> str:
    """Sha256, in hex, of the weights that a run starts from."""
    return weights_fingerprint(_base_of(run).source)


def _base_of(run: RunConfig) -> Base:
    return load_base(run.model, trust_remote_code=run.trust_remote_code)


def reading(run: RunConfig) -> Task:
    """What a task's name decides beside its columns, as its metrics and their split."""
    return replace(
        configured_task(run), name="", hub_id=None, hub_config=None, sep=None, encoding=None
    )


def model_settings(run: RunConfig) -> str:
    """A base model's configuration and tokenizer, as they are loaded."""
    base = _base_of(run)
    config = base.config.to_dict() | {"_name_or_path": ""}
    backend = getattr(base.tokenizer, "backend_tokenizer", None)
    tokens = backend.to_str() if backend else base.tokenizer.get_vocab()
    return json.dumps([config, tokens, base.tokenizer.special_tokens_map], default=str)


def weight_bytes(run: RunConfig) -> int:
    """Size of a base model's weights in float32, by its configuration's count."""
    import torch
    from transformers import AutoModel

    config, code = _base_of(run).config, run.trust_remote_code
    with torch.device("meta"):
        empty = AutoModel.from_config(config, trust_remote_code=code)
    return 4 * int(empty.num_parameters())
