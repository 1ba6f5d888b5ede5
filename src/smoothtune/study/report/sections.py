"""The sections of a study's page: first what to do, with one figure, then all numbers."""

from collections.abc import Iterator, Sequence

from smoothtune.report.page import Block, Figures, Findings, Folded, Heading, Plot, Section, Table
from smoothtune.study.report.content import StudyContent
from smoothtune.study.report.findings import effect_findings, findings
from smoothtune.study.report.methods import MethodResult
from smoothtune.study.report.plots import Plots
from smoothtune.study.report.tables import (
    beside_table,
    choice_table,
    effect_table,
    main_table,
    over_tasks_table,
    quantity_table,
    score_table,
)

SCORES = (
    "Means in points with the standard deviation over seeds (N - 1); the best of a column is bold. "
    "A point is 0.01."
)
RANKS = (
    " Average and mean rank (1 is best) are over the tasks, whose metrics differ where the heads "
    "say so."
)
OVER_TASKS = (
    "In brackets behind points: 95 % interval by Student's t (for one comparison); p also after "
    "Holm's correction over the methods. Of other measures: minus plain, over the conditions that "
    "have the measure, in brackets p after Holm's correction for each measure apart. A dash: the "
    "method lacks a task. With a temperature: both models have one, and are judged on rows on "
    "which it was not fitted."
)
CONDITION = (
    "In brackets: 95 % interval by Student's t, of one comparison; the verdict is after Holm's "
    "correction over the methods. Test: paired t-test, two-sided."
)
BESIDE = (
    "Means, then minus plain, in brackets p after Holm's correction over the methods, for each "
    "measure apart. The interval of the ratio of variances is of a bootstrap over seeds, too "
    "narrow when seeds are few."
)
EFFECT = (
    "Each method's own quantities on held-out rows, less of which is what its paper claims; of "
    "noise, random tokens and the score under attack more is better. Runs of one seed are paired. "
    "Change: relative to plain's mean, or the difference itself where that is 0; over several "
    "conditions the mean of their changes; in brackets: 95 % interval by Student's t. p: paired "
    "t-test, and after Holm over the rows of a condition, for quantities, numbers relative to the "
    "logits, and robustness apart."
)
STRENGTH = (
    "How strong loss terms with a bound were: the norm of their gradient as a share of the task's, "
    "and in how many updates the bound held it. Means over all runs; the largest share is of one "
    "update."
)
FAILED = ["run", "how it ended", "message"]


def study_sections(content: StudyContent, plots: Plots, no_plots: str = "") -> list[Section]:
    """All that a page says."""
    return [
        Section("In short", [*_in_short(content, plots)]),
        Section("Scores", [*_scores(content, plots, no_plots)]),
        Section("How it was trained", [*_training(content)]),
        *(
            Section(condition.title, [*_condition(group, plots.by_condition.get(condition, []))])
            for condition, group in content.conditions.items()
        ),
        Section("What the methods are about, and what models withstand", [*_effect(content)]),
        Section("Settings tried", _if_rows(choice_table(content.choices))),
        Section("Runs without a result", _if_rows(_failures(content))),
        Section("Software", [_versions(content)]),
    ]


def _failures(content: StudyContent) -> Table:
    return Table(FAILED, [*map(list, content.failures)], wraps=True)


def _in_short(content: StudyContent, plots: Plots) -> Iterator[Block]:
    first, *others = findings(content)
    yield first
    if plots.first:
        yield Figures([plots.first])
    yield Findings(others)
    if content.notes:
        yield content.notes


def _scores(content: StudyContent, plots: Plots, no_plots: str) -> Iterator[Block]:
    yield SCORES + RANKS * (len(content.conditions) > 1)
    yield main_table(content.methods)
    if no_plots:
        yield f"Figures were left out: {no_plots}"
    if content.over_tasks:
        yield Heading("Differences from plain over all tasks")
        yield OVER_TASKS
        yield over_tasks_table(content.over_tasks)
    if over := plots.by_condition.get(None):
        yield Figures(over)


def _training(content: StudyContent) -> Iterator[Block]:
    yield content.training
    if content.strength.rows:
        yield STRENGTH
        yield content.strength
    yield Folded("Fields of the methods", [content.method_fields])


def _condition(group: Sequence[MethodResult], plots: Sequence[Plot]) -> Iterator[Block]:
    yield CONDITION
    yield score_table(group)
    if plots:
        yield Figures(plots)
    yield Heading("Stability, fit and calibration")
    yield BESIDE
    yield beside_table(group)


def _effect(content: StudyContent) -> Iterator[Block]:
    if content.effect:
        yield Findings(effect_findings(content.effect))
        yield EFFECT
        yield effect_table(content.effect)
        yield Folded("What is measured", [quantity_table(content.effect)])


def _versions(content: StudyContent) -> Table:
    rows = [[name, ", ".join(values)] for name, values in content.versions.items()]
    return Table(["software", "version"], rows, wraps=True)


def _if_rows(table: Table) -> list[Block]:
    return [table] if table.rows else []
