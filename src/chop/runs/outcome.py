"""Outcome of a run: the main numbers shown in a list of runs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Outcome:
    """Main numbers of a finished run. Numbers that were not measured are None.

    Attributes:
        data: the data set; "" where the job has none.
        metric: its name, with the rows that it is of, where these are not test rows.
        value: the metric of the model that came of the run.
        reference: the same of the float model.
        is_share: the metric is a share of 1 and printed in percent.
        bits: average storage of a weight.
        size_bytes: size of the weights' file, or of the parameters if no file is written.
    """

    data: str
    metric: str = ""
    value: float | None = None
    reference: float | None = None
    is_share: bool = False
    bits: float | None = None
    size_bytes: int | None = None
