"""The main metric against the strength of a disturbance: of texts, tokens or embeddings."""

from collections.abc import Callable, Iterable, Sequence

from smoothtune.report.curves import (
    LOSES,
    LOST,
    ROUNDING,
    Curve,
    CurvePoint,
    area,
    crossing,
    mean_and_range,
    metric_label,
)

CHANGED = "share of rows that change"
"""Of a disturbance of tokens or words; at a rate of 0.1, or of those that are attacked."""
Scores = Callable[[Sequence[float]], Iterable[Sequence[float]]]
"""From strengths to the metric of each, one number for every sample."""


def disturbance_curve(
    scores: Scores,
    metric: str,
    title: str,
    *,
    x_label: str,
    line: str,
    levels: Sequence[float],
    further: Sequence[float] = (),
    num_samples: int = 1,
) -> Curve:
    """Measure a metric at every strength.

    Args:
        scores: measures.
        metric: its name.
        title: how the model is disturbed, "under ..." or "with ...".
        x_label: strength, with the unit.
        line: name of the line.
        levels: strengths, rising from 0.
        further: larger ones, each measured while the metric has not lost 10 points (0.1).
        num_samples: draws at every strength above 0, of which the range is a band.

    Returns:
        The means; `numbers` hold `clean`, the `area` over `levels`, which all models have, and
        where the metric falls so far `loses 10 points at`, the strength that costs 0.1.
    """

    def measured(some: Sequence[float]) -> list[CurvePoint]:
        return [mean_and_range(x, ys) for x, ys in zip(some, scores(some), strict=True)]

    points = measured(levels)
    for level in further:
        if points[-1].y <= points[0].y - LOST + ROUNDING:
            break
        points += measured([level])
    if num_samples == 1:
        points = [CurvePoint(point.x, point.y) for point in points]
    numbers = {"area": area(points[: len(levels)]), "clean": points[0].y}
    if (lost := crossing(points, points[0].y - LOST)) is not None:
        numbers[LOSES] = lost
    band = f"range of {num_samples} samples" if num_samples > 1 else ""
    label = metric_label(metric)
    return Curve(f"{metric} {title}", x_label, label, {line: points}, band, numbers=numbers)
