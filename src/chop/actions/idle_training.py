"""Note on training that changed no score."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from chop.base.notices import assume


def describe_idle_training(metric: str, settings: str, options: str) -> str:
    """Returns a sentence on training that changed no score, with a way out.

    Args:
        metric: name of the metric.
        settings: formats or points that were trained.
        options: prefix of the options of training, qat or finetune.
    """
    return (
        f"Training did not change the {metric} of {settings}. Train for more epochs "
        f"(--{options}-epochs) or at a higher rate (--{options}-lr)."
    )


def note_idle_training(
    rows: Sequence[Mapping[str, Any]], stages: tuple[str, str], metric: str, options: str
) -> None:
    """Records an assumption if training changed no score of a sweep.

    Points with the score of the float model have nothing to regain, and do not count.

    Args:
        rows: rows of a sweep, with `float` and the stages.
        stages: column before and after training.
        metric: see `describe_idle_training`.
        options: see `describe_idle_training`.
    """
    before, after = stages
    lossy = [row for row in rows if after in row and row[before] != row["float"]]
    if lossy and all(row[before] == row[after] for row in lossy):
        settings = f"all {len(lossy)} points below float" if len(lossy) > 1 else "the point"
        assume(describe_idle_training(metric, settings, options))
