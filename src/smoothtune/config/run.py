"""Settings of one run: `RunConfig`, read from a file, ``--set`` and options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import field_validator, model_validator

from smoothtune.config.draft import Draft
from smoothtune.config.names import (
    check_combinations,
    check_methods,
    check_names,
    check_task,
    clipping_methods,
    name_methods,
)
from smoothtune.config.run_fields import OUTPUT_FIELDS, RunFields
from smoothtune.errors import ConfigError

if TYPE_CHECKING:
    from smoothtune.core.regularizer import Regularizer


class RunConfig(RunFields):
    """One run, every field of every method filled in."""

    @model_validator(mode="before")
    @classmethod
    def _one_batch_of_each_kind(cls, values: Any) -> Any:
        """Updates have as many labeled rows with unlabeled ones beside them as without."""
        if not isinstance(values, Mapping) or values.get("unlabeled") is None:
            return values
        half = values.get("alternate", "batch") == "batch"
        return {"gradient_accumulation_steps": 2, **values} if half else values

    @field_validator("methods", mode="before")
    @classmethod
    def _complete_methods(cls, value: Any) -> Any:
        draft = Draft()
        draft.put("methods", value, "")
        try:
            check_methods(draft)
        except ConfigError as error:
            raise ValueError("; ".join(map(str, error.problems))) from error
        return draft.values["methods"]

    def regularizers(self) -> list[Regularizer]:
        """New instances of the configured methods."""
        from smoothtune.methods.find import find_method

        return [find_method(name)(**fields) for name, fields in self.methods.items()]

    def method_versions(self) -> dict[str, int]:
        """Version of each configured method's code, which is part of a run's identity."""
        regularizers = self.regularizers()
        return {name: r.traits.version for name, r in zip(self.methods, regularizers, strict=True)}

    def clip_norm(self) -> float:
        """`max_grad_norm`, with its default resolved for the configured methods."""
        if self.max_grad_norm is not None:
            return self.max_grad_norm
        return 0.0 if clipping_methods(self.methods) else 1.0

    def in_force(
        self, *, include: set[str] | None = None, exclude_unset: bool = False
    ) -> dict[str, Any]:
        """The fields as files and records show them: without those that say nothing of this run.

        `exclude_unset` leaves out what was not given. A default that was given stays: it may be
        another one than that of the type of task.
        """
        return self.model_dump(
            mode="json", include=include, exclude=self._silent(), exclude_unset=exclude_unset
        )

    def identity(self) -> dict[str, Any]:
        """The fields that decide the result: two runs with the same identity are the same run."""
        exclude = {"cost_steps", *OUTPUT_FIELDS, *self._silent()}
        return self.model_dump(mode="json", exclude=exclude)

    def _silent(self) -> set[str]:
        """Fields that say nothing of this run."""
        return {"alternate"} if self.unlabeled is None else set()


def load_config(
    file: str | Path | None = None,
    overrides: Sequence[str] = (),
    options: Mapping[str, Any] | None = None,
    methods: Sequence[str] = (),
) -> RunConfig:
    """Read one run from a file, ``key=value`` overrides and options; the later one wins.

    Args:
        file: a YAML run file.
        overrides: ``learning_rate=1e-4`` or ``methods.lnsr.weight=2``.
        options: fields by name, from the command line; None means not given.
        methods: ``lnsr`` or ``lnsr:noise=in_manifold,weight=2``; they replace the file's methods.

    Raises:
        ConfigError: with all problems, each with file, line and field.
    """
    draft = read_draft(file, overrides, options, methods)
    check_draft(draft)
    check_methods(draft)
    return draft.validated(RunConfig)


def check_draft(draft: Draft) -> None:
    """Check of a run what can be checked without importing torch; ConfigError with all problems."""
    check_names(draft)
    check_task(draft)
    check_combinations(draft)
    draft.validated(RunFields)
    draft.stop_at_problems()


def read_draft(
    file: str | Path | None = None,
    overrides: Sequence[str] = (),
    options: Mapping[str, Any] | None = None,
    methods: Sequence[str] = (),
) -> Draft:
    """The fields of a run before they are checked; arguments and errors as `load_config`."""
    draft = Draft(file or "")
    if file is not None:
        draft.read()
    if not draft.values:  # an unreadable file: report that alone
        draft.stop_at_problems()
    if "methods" in draft.values and any(each.startswith("methods") for each in overrides):
        name_methods(draft)
    for override in overrides:
        draft.override(override)
    draft.put_options(options or {})
    if isinstance(lora := draft.values.get("lora"), str):
        origin = draft.origin(("lora",))
        draft.put("lora", draft.parse_fields(lora, "lora", origin), origin)
    if methods:
        values = [draft.parse_method(spec, f"--method {spec}") for spec in methods]
        draft.put("methods", values, "--method")
    return draft
