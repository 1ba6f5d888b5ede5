"""From a study to its cells.

Settings of an entry are compared on a part of the training rows, under every condition. The best
one is then trained with all seeds, and evaluated on the development set once.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from smoothtune.config.run import RunConfig
from smoothtune.config.task import configured_task
from smoothtune.errors import ConfigError, Problem
from smoothtune.files import cache_folder
from smoothtune.study.config import Study
from smoothtune.study.fields import ConditionKey
from smoothtune.study.inputs import (
    check_other_data,
    data_at_hand,
    fingerprints_of,
    model_settings,
    reading,
    weight_bytes,
)
from smoothtune.study.parts import write_parts
from smoothtune.study.records import Cell, Extras, Fingerprints, Records, cell_identity, digest

SELECTION = "selection"
Key = tuple[int, int]
"""Numbers of a condition and an entry."""


@dataclass(frozen=True)
class Choice:
    """Settings of an entry under a condition, and the one that is used."""

    condition: ConditionKey
    method: str
    """Label of the entry."""
    tried: int
    setting: int | None
    """Number of the best setting; None while it is not known, or none could be trained."""
    chosen: str | None
    """The same in one line."""
    complete: bool
    """Whether all of them have been tried."""
    scores: dict[str, float | None]
    """Mean score on held-out training rows, by setting."""


class Plan:
    """The cells of a study; what they read is fingerprinted once.

    Args:
        study: the study.
        folder: the study's output folder, for parts of training data; None to plan only.
        recorded: fingerprints that the folder holds, see `read_study`: neither data nor
            models are looked at, and what they do not tell of has not been run. None: read all.
    """

    def __init__(
        self,
        study: Study,
        folder: Path | None,
        recorded: Mapping[str, Fingerprints] | None = None,
    ) -> None:
        self.study, self.folder, self.recorded = study, folder, recorded
        self.prints: dict[str, Fingerprints] = {}
        """By cell, as `_cell_key` names it."""
        self._known: dict[str, str] = {}
        """Fingerprints by what they are of."""
        self._by_id: dict[str, Cell] = {}
        """The first cell with an id."""

    @cached_property
    def _settings(self) -> dict[Key, list[int]]:
        """Numbers of the settings of every condition and entry."""
        settings: dict[Key, list[int]] = {}
        for c, e, s in self.study.runs:
            settings.setdefault((c, e), []).append(s)
        return settings

    @cached_property
    def selection(self) -> dict[Key, dict[int, list[Cell]]]:
        """Cells that compare settings, by condition and entry, then by setting."""
        return {
            (c, e): {s: self._selection_cells(c, e, s) for s in settings}
            for (c, e), settings in self._settings.items()
            if len(settings) > 1
        }

    def selection_cells(self) -> list[Cell]:
        """All cells that compare settings."""
        groups = self.selection.values()
        return [cell for group in groups for cells in group.values() for cell in cells]

    def choices(self, records: Records) -> dict[Key, Choice]:
        """The chosen settings, as far as the records say."""
        choices = {}
        for (c, e), by_setting in self.selection.items():
            entry = self.study.entries[e]
            means = {s: _mean_score(cells, records) for s, cells in by_setting.items()}
            known = {s: mean for s, mean in means.items() if mean is not None}
            complete = all(
                records.row(cell.id) or records.failure(cell.id)
                for cells in by_setting.values()
                for cell in cells
            )
            best = max(known, key=lambda s: known[s]) if known and complete else None
            choices[c, e] = Choice(
                self.study.conditions[c].key,
                entry.label,
                tried=len(by_setting),
                setting=best,
                chosen=None if best is None else entry.settings[best].describe(),
                complete=complete,
                scores={entry.settings[s].describe(): mean for s, mean in means.items()},
            )
        return choices

    def final(self, choices: Mapping[Key, Choice]) -> list[Cell]:
        """Cells that are reported, for which the setting is known; first seed first."""
        cells = []
        for (c, e), settings in self._settings.items():
            s = choices[c, e].setting if (c, e) in choices else settings[0]
            if s is not None:
                cells.append(self._cell(c, e, s, self.study.runs[c, e, s], self._extras(c)))
        return [cell.with_seed(seed) for seed in self.study.config.seeds for cell in cells]

    def _extras(self, c: int) -> Extras:
        """What is measured on the models of a condition."""
        config, ood = self.study.config, self.study.conditions[c].ood
        return Extras(
            tuple(sorted(set(config.evaluate))),
            config.noise_curve,
            tuple(sorted(ood.items())),
            tuple(config.further_share) if ood else (),
        )

    def _selection_cells(self, c: int, e: int, s: int) -> list[Cell]:
        cells = []
        for seed in self.study.selection_seeds:
            run = self.study.runs[c, e, s].model_copy(update={"seed": seed})
            part = None if self.recorded is not None else str(self._part_of_training_rows(run))
            run = run.model_copy(update={"data": part, "max_train_samples": None})
            cells.append(self._cell(c, e, s, run, Extras(), selection=True))
        return cells

    def _cell(
        self, c: int, e: int, s: int, run: RunConfig, extras: Extras, *, selection: bool = False
    ) -> Cell:
        key = self._cell_key(c, e, s, run.seed if selection else None)
        if self.recorded is not None:
            prints = self.recorded.get(key, _unknown(extras))
        else:
            run = run.model_copy(update={"data": data_at_hand(run)})
            prints = self.prints[key] = fingerprints_of(run, extras, self._known)
            fits = repr((configured_task(run), run.data, extras.ood))
            if extras.ood and fits not in self._known:
                check_other_data(run, extras)
                self._known[fits] = ""
        run = run.model_copy(update={"output_dir": "unset"})
        entry = self.study.entries[e]
        cell = Cell(
            label=entry.label,
            setting=entry.settings[s].describe(),
            condition=self.study.conditions[c].key,
            selection=selection,
            config=run,
            extras=extras,
            changes=entry.settings[s].changes,
            identity=cell_identity(run, extras, prints),
        )
        if self.recorded is None:
            _refuse_other(cell, self._by_id.setdefault(cell.id, cell))
        return cell

    def _cell_key(self, c: int, e: int, s: int, seed: int | None) -> str:
        """What names a cell, or all cells that differ by the seed alone, wherever its data are.

        With a seed it is a cell that settings are chosen by, without one all that are reported.
        """
        entry = self.study.entries[e]
        task, model, size = self.study.conditions[c].key
        return json.dumps([task, model, size, entry.label, entry.settings[s].describe(), seed])

    def weight_bytes(self) -> int:
        """Size of the largest model's weights."""
        runs = {(run.model, run.trust_remote_code): run for run in self.study.runs.values()}
        return max(map(weight_bytes, runs.values()), default=0)

    def _part_of_training_rows(self, run: RunConfig) -> Path:
        """A folder with two parts of the rows that a run trains on: to train, and to compare on."""
        share = self.study.config.selection_share
        data = fingerprints_of(run, Extras(), self._known).data
        name = digest([data, run.seed, run.max_train_samples, share])[:16]
        folder = (self.folder or cache_folder()) / SELECTION / name
        if not (folder / "validation.parquet").exists():
            write_parts(run, share, folder)
        return folder


def _refuse_other(cell: Cell, first: Cell) -> None:
    """Conditions may share a run, unless they differ in what its id does not tell."""
    if cell.condition == first.condition:
        return
    beside: dict[str, tuple[str, Callable[[RunConfig], Any]]] = {
        "task": ("metrics, or the split that they are of", reading),
        "model": ("configuration or tokenizer, not in weights", model_settings),
    }
    for field, (what, of) in beside.items():
        if of(cell.config) != of(first.config):
            message = (
                f"{first.condition.title} and {cell.condition.title} differ in {what}, and a run "
                "is not known by that: make two studies, each with an output folder of its own"
            )
            raise ConfigError([Problem("", field, message)])


def _unknown(extras: Extras) -> Fingerprints:
    """Of a cell that was never planned in the folder; no record has them."""
    return Fingerprints("", "", ood=tuple((name, "") for name, _ in extras.ood))


def _mean_score(cells: list[Cell], records: Records) -> float | None:
    """Mean score; None unless every run gave one."""
    scores: list[float] = []
    for cell in cells:
        row = records.row(cell.id)
        if row is None or row.score is None:
            return None
        scores.append(row.score)
    return float(np.mean(scores))
