"""Outcome of a run: key numbers for lists of runs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Outcome:
    """Key numbers of a finished run. Numbers that were not measured are None.

    Attributes:
        data: data set. "" if the job has none.
        metric: name of the metric, with the rows if they are not test rows.
        value: metric of the resulting model.
        reference: metric of the float model.
        is_share: True if the metric is a share of 1, shown in percent.
        bits: average storage per weight.
        size_bytes: size of the weights' file, or of the parameters if no file is written.
    """

    data: str
    metric: str = ""
    value: float | None = None
    reference: float | None = None
    is_share: bool = False
    bits: float | None = None
    size_bytes: int | None = None
