"""Settings of `smoothtune predict`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from smoothtune.config.fields import (
    DATA,
    MODEL,
    OUTPUT,
    SAMPLING,
    Count,
    DataFields,
    Name,
    SpanFields,
)


class Prediction(SpanFields, DataFields):
    """Predictions for new rows; what is unset is taken from the model folder's ``result.json``."""

    data: Annotated[Name, DATA]
    """CSV, TSV, JSONL or Parquet file with the columns of the task; labels are not needed."""
    max_seq_length: Annotated[Count | None, DATA] = None
    """Longest input in tokens; unset: as in training, else 128, or 384 for question answering."""

    model: Annotated[Name, MODEL]
    """minilm, a fine-tuned model folder, the name of one in $SMOOTHTUNE_MODELS, or a hub id."""

    batch_size: Annotated[Count, SAMPLING] = 32
    """Rows per forward."""

    to: Annotated[Name, OUTPUT]
    """File for the rows with their predictions: .csv, .jsonl or .parquet."""
    probabilities: Annotated[bool, OUTPUT] = False
    """Also write the probability of every class, in columns probability_LABEL."""
    calibrated: Annotated[bool, OUTPUT] = False
    """Divide logits by the temperature that `smoothtune evaluate --calibration` has left in the
    model's folder."""
    coverage: Annotated[Annotated[float, Field(gt=0, lt=1)] | None, OUTPUT] = None
    """Also write a set of classes that holds the right one with this probability, such as 0.9, in
    the column prediction_set; by scores that `smoothtune evaluate --calibration` has left in the
    model's folder."""
    overwrite: Annotated[bool, OUTPUT] = False
    """Replace the file."""
