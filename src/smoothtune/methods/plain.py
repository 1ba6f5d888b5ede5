"""Plain fine-tuning.

Reference: none; the baseline of every comparison.

Equation: the task loss.

Departures: none.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic.dataclasses import dataclass

from smoothtune.core.regularizer import STRICT, Regularizer


@dataclass(config=STRICT, kw_only=True)
class Plain(Regularizer):
    """Plain fine-tuning: no term, no change."""

    name: ClassVar[str] = "plain"
    does_nothing: ClassVar[bool] = True
