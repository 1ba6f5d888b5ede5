"""From a study to its cells, and how settings are chosen without looking at the development set.

Where an entry has several settings, each is trained on a part of the training rows and compared on
the rest of them, for every task, model and size. The best one is then trained with all seeds and
meets the development set once. Cells of one seed share training rows, their order and the initial
head, whatever the method, so comparisons are paired by seed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from smoothtune.config import RunConfig
from smoothtune.data.demo_sentences import sentiment
from smoothtune.data.sources import load_splits
from smoothtune.errors import ConfigError, DataError, Problem
from smoothtune.files import cache_folder, write_atomic
from smoothtune.loading import task_of
from smoothtune.models.load import load_base, weights_fingerprint
from smoothtune.study.cells import Cell, Extras, Fingerprints, Records, identity
from smoothtune.study.cells import digest as digest_of
from smoothtune.study.config import DEMO, Condition, Study
from smoothtune.study.entries import Entry
from smoothtune.tasks.labels import check_splits, infer_labels
from smoothtune.tasks.prepare import prepare

SELECTION = "selection"
Key = tuple[int, int]
"""Numbers of a condition and an entry."""


@dataclass(frozen=True)
class Choice:
    """Settings of an entry under a condition, and the one that is used."""

    condition: Condition
    entry: Entry
    tried: int
    setting: int | None
    """Number of the best setting; None while it is not known, or none could be trained."""
    scores: dict[str, float | None]
    """Mean headline score on held-out training rows, by setting."""


class Plan:
    """The cells of a study; what they read is fingerprinted once.

    Args:
        study: the study.
        folder: the study's output folder, for parts of training data; None to plan only.
    """

    def __init__(self, study: Study, folder: Path | None) -> None:
        self.study, self.folder = study, folder
        config = study.config
        self.extras = Extras(tuple(sorted(set(config.evaluate))), config.noise_curve)
        self._data: dict[str, str] = {}
        self._weights: dict[str, str] = {}

    def selection(self) -> dict[Key, dict[int, list[Cell]]]:
        """Cells that choose, by condition and entry, then by setting."""
        found: dict[Key, dict[int, list[Cell]]] = {}
        for (c, e), settings in self._settings().items():
            if len(settings) > 1:
                found[c, e] = {s: self._selection_cells(c, e, s) for s in settings}
        return found

    def selection_cells(self) -> list[Cell]:
        """All cells that choose."""
        groups = self.selection().values()
        return [cell for group in groups for cells in group.values() for cell in cells]

    def choices(self, records: Records) -> dict[Key, Choice]:
        """The chosen settings, as far as the records say."""
        found = {}
        for key, by_setting in self.selection().items():
            condition, entry = self.study.conditions[key[0]], self.study.entries[key[1]]
            means = {s: _mean_score(cells, records) for s, cells in by_setting.items()}
            known = {s: mean for s, mean in means.items() if mean is not None}
            complete = all(
                records.read(cell.id) or records.failure(cell.id)
                for cells in by_setting.values()
                for cell in cells
            )
            best = max(known, key=lambda s: known[s]) if known and complete else None
            scores = {entry.settings[s].describe(): mean for s, mean in means.items()}
            found[key] = Choice(condition, entry, len(by_setting), best, scores)
        return found

    def final(self, choices: Mapping[Key, Choice]) -> list[Cell]:
        """Cells that are reported, for which the setting is known; first seed first."""
        cells = []
        for seed in self.study.config.seeds:
            for (c, e), settings in self._settings().items():
                chosen = choices[c, e].setting if (c, e) in choices else settings[0]
                if chosen is not None:
                    run = self.study.runs[c, e, chosen].model_copy(update={"seed": seed})
                    cells.append(self._cell(c, e, chosen, run, self.extras, selection=False))
        return cells

    def _settings(self) -> dict[Key, list[int]]:
        """Numbers of the settings to try, for every condition and entry."""
        found: dict[Key, list[int]] = {}
        for c, e, s in self.study.runs:
            found.setdefault((c, e), []).append(s)
        most = self.study.config.max_settings
        for key, settings in found.items():
            if most is not None and len(settings) > most:
                draw = np.random.default_rng(0)
                chosen = draw.choice(len(settings), most, replace=False)
                found[key] = [settings[index] for index in sorted(chosen)]
        return found

    def _selection_cells(self, c: int, e: int, s: int) -> list[Cell]:
        cells = []
        for seed in self.study.selection_seeds:
            run = self.study.runs[c, e, s].model_copy(update={"seed": seed})
            part = self._part_of_training_rows(run)
            run = run.model_copy(update={"data": str(part), "max_train_samples": None})
            cells.append(self._cell(c, e, s, run, Extras(), selection=True))
        return cells

    def _cell(
        self, c: int, e: int, s: int, run: RunConfig, extras: Extras, *, selection: bool
    ) -> Cell:
        condition, entry = self.study.conditions[c], self.study.entries[e]
        run = run.model_copy(update={"data": _at_hand(run), "output_dir": "unset"})
        known = identity(run, extras, self.fingerprints(run))
        return Cell(
            label=entry.label,
            setting=entry.settings[s].describe(),
            task=condition.task,
            model=condition.model,
            max_train_samples=condition.max_train_samples,
            seed=run.seed,
            selection=selection,
            config=run,
            extras=extras,
            changes=entry.settings[s].changes,
            id=digest_of(known)[:16],
            identity=known,
        )

    # --- what runs read ----------------------------------------------------------------------

    def fingerprints(self, run: RunConfig) -> Fingerprints:
        """Of the data and the base weights of a run.

        Raises:
            DataError, ModelError: they are not at hand, or cannot be used.
        """
        source = run.data or task_of(run).hub_id or ""
        data = _once(self._data, f"{run.task} {source}", lambda: data_fingerprint(source, run))
        weights = _once(self._weights, run.model, lambda: _base_weights(run))
        extra = None
        if run.unlabeled is not None:
            place = run.unlabeled
            extra = _once(self._data, f"unlabeled {place}", lambda: _unlabeled(place, run))
        return Fingerprints(data, weights, extra)

    def weight_bytes(self) -> int:
        """Size of the largest model's weights in float32, by its configuration's count."""
        models = {condition.fields["model"] for condition in self.study.conditions}
        sizes = [_parameters(model) for model in models]
        return 4 * max(sizes, default=0)

    def _part_of_training_rows(self, run: RunConfig) -> Path:
        """A folder with two parts of the rows that a run trains on: to train, and to compare on."""
        source = _at_hand(run) or task_of(run).hub_id or ""
        share = self.study.config.selection_share
        key = [self.fingerprints(run).data, run.seed, run.max_train_samples, share]
        name = hashlib.sha256(json.dumps(key).encode()).hexdigest()[:16]
        folder = (self.folder or cache_folder()) / SELECTION / name
        if not (folder / "validation.parquet").exists():
            write_parts(source, run, share, folder)
        return folder


def write_parts(source: str, run: RunConfig, share: float, folder: Path) -> None:
    """Write ``train.parquet`` and ``validation.parquet``, both from the rows that a run trains on.

    Args:
        source: the data.
        run: says which rows, by its seed and `max_train_samples`.
        share: part of them that becomes the validation split.
        folder: where to write.

    Raises:
        DataError: there are too few rows.
        ConfigError: the task is of another kind than classification or regression.
    """
    task, base = task_of(run), load_base(run.model, trust_remote_code=run.trust_remote_code)
    if task.task_type != "text-classification":
        message = f"lists of values to choose from do not work with {task.task_type} yet"
        raise ConfigError([Problem("", "task", message)])
    prepared = prepare(
        source,
        task,
        base.tokenizer,
        max_train_samples=run.max_train_samples,
        max_eval_samples=1,
        seed=run.seed,
    )
    rows = load_splits(source, task)["train"]
    order = np.random.default_rng(run.seed).permutation(prepared.train["example_id"][:])
    held_out = round(share * len(order))
    if held_out < 1 or held_out == len(order):
        raise DataError(f"{source}: {len(order)} training rows are too few to choose settings on")
    folder.mkdir(parents=True, exist_ok=True)
    for name, chosen in (("train", order[held_out:]), ("validation", order[:held_out])):
        partial = folder / f".{name}.partial"
        rows.select(chosen, keep_in_memory=True).to_parquet(str(partial))
        partial.replace(folder / f"{name}.parquet")


def data_fingerprint(source: str, run: RunConfig) -> str:
    """Sha256, in hex, of the columns that a task reads, in all splits, whatever the file format.

    Raises:
        DataError: the source cannot be read or does not fit the task.
    """
    source = _demo_folder() if source == DEMO else source
    task = task_of(run)
    splits = load_splits(source, task)
    if task.task_type == "text-classification":
        task = infer_labels(task, splits["train"], source)
        used = {"train", "validation", task.validation_split} & set(splits)
        check_splits({name: splits[name] for name in used}, task, source)
    columns = (*task.text_columns, *task.choice_columns, task.label_column)
    digest = hashlib.sha256()
    for name in sorted(set(splits) - {"test"}):
        for column in columns:
            if column in splits[name].column_names:
                content = json.dumps([name, column, splits[name][column][:]], default=str)
                digest.update(content.encode())
    return digest.hexdigest()


def _unlabeled(source: str, run: RunConfig) -> str:
    task, digest = task_of(run), hashlib.sha256()
    for name, split in sorted(load_splits(source, task).items()):
        for column in task.text_columns:
            digest.update(json.dumps([name, column, split[column][:]]).encode())
    return digest.hexdigest()


def _at_hand(run: RunConfig) -> str | None:
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


def _base_weights(run: RunConfig) -> str:
    base = load_base(run.model, trust_remote_code=run.trust_remote_code)
    return weights_fingerprint(base.source)


def _parameters(model: str) -> int:
    """Parameters of a base model, from its configuration alone."""
    import torch
    from transformers import AutoModel

    base = load_base(model)
    with torch.device("meta"):
        return int(AutoModel.from_config(base.config).num_parameters())


def _once(known: dict[str, str], key: str, make: Callable[[], str]) -> str:
    if key not in known:
        known[key] = make()
    return known[key]


def _mean_score(cells: list[Cell], records: Records) -> float | None:
    """Mean headline score; None unless every run gave one."""
    scores: list[float] = []
    for cell in cells:
        record: dict[str, Any] = records.read(cell.id) or {}
        if record.get("status") != "done":
            return None
        result = record["result"]
        scores.append(result["metrics"][result["headline"]])
    return float(np.mean(scores))
