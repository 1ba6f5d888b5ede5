"""The sections of a study's page: first what to do, with one figure, then all numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from smoothtune.report.page import Block, Figures, Findings, Folded, Heading, Plot, Section, Table
from smoothtune.study.report.aggregate import aggregate_table
from smoothtune.study.report.content import StudyContent
from smoothtune.study.report.effect_table import effect_table, quantity_table
from smoothtune.study.report.findings import condition_sentences, established, sentences
from smoothtune.study.report.methods import MethodResult, by_condition, secondary
from smoothtune.study.report.plots import Plots
from smoothtune.study.report.tables import (
    choice_table,
    comparisons_by_method,
    main_table,
    over_tasks_table,
    paper_table,
    score_table,
    secondary_table,
    stability_table,
    test_table,
)
from smoothtune.study.report.training import method_table, training_table

SCORES = (
    "Means in points with the standard deviation over seeds (N - 1); the best of a column is bold. "
    "A point is 0.01."
)
RANKS = (
    " Average and mean rank (1 is best) are over the tasks, whose metrics differ where the heads "
    "say so."
)
OVER_TASKS = (
    "In brackets: 95 % interval of the test that decides (for one comparison); p also after Holm's "
    "correction over the methods."
)
BESIDE_OVER_TASKS = (
    "Beside the score, over the conditions where a measure is there: minus plain, in brackets p "
    "after Holm's correction, for each measure apart:"
)
AGGREGATES = (
    "Of scores normalized so that 0 is the best constant answer of a task and 1 is perfect: the "
    "mean of the middle half over tasks and seeds (Agarwal et al. 2021), in brackets the 95 % "
    "interval of a bootstrap that resamples seeds within each task. Runs of one seed are paired, "
    "which these intervals do not use."
)
CONDITION = (
    "In brackets: 95 % interval. That of a difference belongs to the test that decides and to one "
    "comparison; the verdict is after Holm's correction over the methods. Test: {test}, "
    "two-sided. P(better): the probability of a higher score than plain's, over all pairs of seeds."
)
SPREAD = "Intervals by a bootstrap over seeds, too narrow when seeds are few."
BESIDE = (
    "Minus plain, in brackets p after Holm's correction over the methods, for each measure apart:"
)
EFFECT = (
    "Each method's own quantities on held-out rows, less of which is what its paper claims; of "
    "noise, random tokens and the score under attack more is better. Runs of one seed are paired; "
    "in brackets: 95 % interval by Student's t. Change: relative to plain's mean. p: paired "
    "t-test, and after Holm over the rows of a condition."
)
PRINTED = (
    "Printed numbers are in points{of}. Other models, sizes and data are not comparable with them; "
    "they stand here to compare the order of methods. {notes}"
)


def study_sections(content: StudyContent, plots: Plots, no_plots: str = "") -> list[Section]:
    """All that a page says.

    Args:
        content: what was found.
        plots: by condition; those of several conditions under None.
        no_plots: why there are none.
    """
    return [
        Section("In short", [*_in_short(content, plots)]),
        Section("Scores", [*_scores(content, plots, no_plots)]),
        Section("How it was trained", _training(content)),
        *(
            Section(condition.title, [*_condition(content, group, plots.of(condition))])
            for condition, group in by_condition(content.methods).items()
        ),
        Section("What the methods are about, and what models withstand", [*_effect(content)]),
        Section("Settings tried", _if_rows(choice_table(content.choices))),
        *_printed(content),
        Section("Failed runs", _if_rows(_failures(content))),
        Section("Software", [_versions(content)]),
    ]


def _in_short(content: StudyContent, plots: Plots) -> Iterator[Block]:
    first, *others = sentences(content)
    yield first
    if plots.first:
        yield Figures([plots.first])
    yield Findings(others)
    if content.notes:
        yield content.notes


def _scores(content: StudyContent, plots: Plots, no_plots: str) -> Iterator[Block]:
    several = len(by_condition(content.methods)) > 1
    yield SCORES + RANKS * several
    yield main_table(content.methods)
    if no_plots:
        yield f"Figures were left out: {no_plots}"
    if content.over_tasks:
        yield Heading("Differences from plain over all tasks")
        yield OVER_TASKS
        yield over_tasks_table(content.over_tasks)
        beside = secondary_table(comparisons_by_method(content.over_tasks_secondary))
        if beside.rows:
            yield BESIDE_OVER_TASKS
            yield beside
    if content.aggregates:
        yield Heading("Interquartile means")
        yield AGGREGATES
        yield aggregate_table(content.aggregates)
    if over := plots.of(None):
        yield Figures(over)


def _training(content: StudyContent) -> list[Block]:
    fields = method_table(content.method_fields)
    return [training_table(content.training), Folded("Fields of the methods", [fields])]


def _condition(
    content: StudyContent, group: Sequence[MethodResult], plots: Sequence[Plot]
) -> Iterator[Block]:
    title = group[0].condition.title
    yield Findings(condition_sentences(group, content.test))
    yield CONDITION.format(test=content.test)
    yield score_table(group)
    if plots and established(group):
        yield Figures(plots)
    elif plots:  # no difference is a sentence, not a row of figures
        yield Folded(f"Figures of {title}", [Figures(plots)])
    yield Heading("Stability, fit and calibration")
    yield SPREAD
    yield stability_table(group)
    beside, tests = secondary_table(secondary(group)), test_table(group)
    if beside.rows:
        yield BESIDE
        yield beside
    if tests.rows:
        yield Folded(f"All tests on {title}, uncorrected p-values", [tests])


def _effect(content: StudyContent) -> Iterator[Block]:
    if content.effect:
        yield Findings(content.effect_findings)
        yield EFFECT
        yield effect_table(content.effect)
        yield Folded("What is measured", [quantity_table(content.effect)])


def _printed(content: StudyContent) -> Iterator[Section]:
    for paper in content.paper:
        of = f" and of {paper.model}" if paper.model else ""
        text = PRINTED.format(of=of, notes=paper.notes).rstrip()
        yield Section(f"Printed: {paper.source}", [text, paper_table(paper, content.methods)])


def _failures(content: StudyContent) -> Table:
    head = ["run", "how it ended", "message"]
    return Table(head, [list(failure) for failure in content.failures], wraps=True)


def _versions(content: StudyContent) -> Table:
    rows = [[name, ", ".join(values)] for name, values in content.versions.items()]
    return Table(["software", "version"], rows, wraps=True)


def _if_rows(table: Table) -> list[Block]:
    return [table] if table.rows else []
