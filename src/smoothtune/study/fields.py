"""The keys of a study file that are not fields of a run."""

from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple

from pydantic import Field, field_validator

from smoothtune.config.evaluation import OOD_NAME, OtherData, PartName
from smoothtune.config.fields import Fields, Seed
from smoothtune.study.layout import Layout

PLAIN, LONGER = "plain", "plain_more_epochs"
DEMO = "demo"
"""The task of generated sentences."""

Share = Annotated[float, Field(gt=0, lt=1)]


class ConditionKey(NamedTuple):
    """What the methods of a study are compared on."""

    task: str
    model: str
    max_train_samples: int | None

    @property
    def title(self) -> str:
        """In words: ``sst2, minilm, 1000 examples``."""
        size = f"{self.max_train_samples} examples" if self.max_train_samples else ""
        return ", ".join(filter(None, (self.task, self.model, size)))


class StudyConfig(Fields):
    """What a study file holds beside the fields of a run."""

    title: str = ""
    notes: str = ""
    """Printed with the report: what is reconstructed, what is not comparable."""
    seeds: Annotated[list[Seed], Field(min_length=1)] = [0, 1, 2, 3, 4]
    more_epochs: Annotated[float, Field(gt=1)] | None = 2.0
    """Plain fine-tuning is also run this many times longer; null: not."""
    selection_seeds: Annotated[list[Seed], Field(min_length=1)] | None = None
    """Seeds with which settings are compared; unset: the first of `seeds`."""
    selection_share: Share = 0.2
    """Share of the training rows that settings are compared on."""
    evaluate: list[PartName] = []
    """Parts of `smoothtune evaluate` for every run."""
    noise_curve: bool = False
    """Score under Gaussian noise on the embeddings, for every run."""
    ood: dict[str, OtherData] = {}
    """Other data sets that every run is scored on, by name."""
    further_share: list[Share] = []
    """A copy of every model is also trained on such a share of each of them, and scored on the
    rest."""
    keep_models: bool = False
    """Keep the model folders, under ``models/``."""
    method_fields: dict[str, dict[str, Any]] = {}
    """Fields by method, or by label of an entry, that win over those of the entries."""
    protocol: str | None = None
    """The training of a paper: fields for all that the file leaves open."""
    layout: list[Layout] = []
    """The paper's tables and figures, as `smoothtune reproduce` draws them."""
    stand_ins: dict[str, str] = {}
    """By a model of the layout, the study's model that stands in for it; the study's other models
    stand in for the rest in their order."""

    @field_validator("seeds", mode="before")
    @classmethod
    def _a_list(cls, value: Any) -> Any:
        """A number may be meant as how many, or as which one."""
        if isinstance(value, int) or value == []:
            raise ValueError("write which ones: seeds: [0, 1, 2]")
        return value

    @field_validator("seeds")
    @classmethod
    def _once_each(cls, value: list[int]) -> list[int]:
        if len(set(value)) < len(value):
            raise ValueError("holds a seed twice")
        return value

    @field_validator("ood", mode="before")
    @classmethod
    def _sources(cls, value: Any) -> Any:
        """A source alone is enough, where its columns are those of the task."""
        if not isinstance(value, Mapping):
            return value
        for name in value:
            if not isinstance(name, str) or not OOD_NAME.fullmatch(name):
                raise ValueError(f"{name!r} is not a plain name for another data set")
        return {n: {"source": v} if isinstance(v, str) else v for n, v in value.items()}

    @field_validator("further_share", mode="before")
    @classmethod
    def _one_share(cls, value: Any) -> Any:
        return [value] if isinstance(value, float) else value
