"""Wrong labels put into training rows, to see what a method makes of them."""

import hashlib
from dataclasses import replace

import numpy as np

from smoothtune.errors import DataError
from smoothtune.tasks.prepare import Prepared


def with_label_noise(prepared: Prepared, share: float, seed: int) -> Prepared:
    """Replace the labels of a random share of the training rows, each by any other class.

    Args:
        prepared: data with one class for each row.
        share: of the training rows, in [0, 1]; rounded to whole rows.
        seed: of the choice of rows and of their new labels; a smaller share is a part of a larger.

    Raises:
        DataError: the labels are no classes of rows.
    """
    task, rows = prepared.task, prepared.train
    if task.head.problem_type != "single_label_classification":
        raise DataError(f"{task.name}: label_noise needs one class for each row; leave it out")
    generator = np.random.default_rng([seed, 1])
    labels = np.array(rows["labels"][:])
    order = generator.permutation(len(labels))
    other = (labels + generator.integers(1, task.num_labels, len(labels))) % task.num_labels
    wrong = order[: round(share * len(labels))]
    labels[wrong] = other[wrong]
    columns, kind = rows.column_names, rows.features["labels"]
    rows = rows.remove_columns("labels").add_column("labels", labels, feature=kind)
    report = replace(
        prepared.report.splits["train"],
        labels=task.rows.label_counts(rows, rows),
        note=f"{share:.0%} of the labels replaced by others",
    )
    splits = prepared.report.splits | {"train": report}
    content = f"{prepared.fingerprint} label_noise {share} {seed}"
    return replace(
        prepared,
        train=rows.select_columns(columns),
        report=replace(prepared.report, splits=splits),
        fingerprint=hashlib.sha256(content.encode()).hexdigest(),
    )
