"""Measurement of a candidate: metric, bits per parameter and number of quantized operators."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from chop.actions.compress.table import Candidate, Row
from chop.errors import ConfigError
from chop.ir.graph import MaseGraph
from chop.ir.parameters import parameter_bits
from chop.nn.quantized import QuantizedOperator
from chop.quantization.summary import layer_rows, poor_fit
from chop.quantization.unreached import describe_unreached
from chop.report.report import say
from chop.runs.progress import Stages
from chop.train.intervals import Score
from chop.workloads.workload import Workload

FLOAT, QUANTIZED, TRAINING = "float", "quantized", "training"
"""Kinds of stages; stages of a kind take about equally long."""


class Measured(NamedTuple):
    """Candidates of a compression.

    Attributes:
        exact: the float graph.
        rounded: graphs rounded to each format.
        trained: graphs trained back by QAT.
        note: reason why none was trained back, or None.
    """

    exact: Candidate
    rounded: Sequence[Candidate]
    trained: Sequence[Candidate] = ()
    note: str | None = None


def compute_scores(
    mg: MaseGraph, workload: Workload, stages: Stages, kind: str, title: str
) -> dict[str, Score]:
    """Scores a graph on validation and test rows, as one stage."""
    workload = workload.with_validation()
    scores: dict[str, Score] = {}
    with stages.stage(kind, title) as advance:
        # The user's function has its own rows, the same for choosing and reporting.
        if workload.judge is not None:
            return dict.fromkeys(("validation", "test"), _judged(mg, workload, kind, title))
        for number, name in enumerate(("validation", "test")):
            scores[name] = workload.score(
                mg.model,
                getattr(workload, name),
                lambda share, number=number: advance((number + share) / 2),  # type: ignore[misc]
            )
    return scores


def _judged(mg: MaseGraph, workload: Workload, kind: str, title: str) -> Score:
    """Scores a graph with the user's function; NaN, the worst, if it fails on a rounded model."""
    try:
        return workload.score(mg.model, workload.test)
    except ConfigError as error:
        if kind == FLOAT:
            raise
        say(f"{error} {title} is ranked last.")
        return Score(math.nan, None, None, 0)


def measure(
    mg: MaseGraph,
    method: str,
    label: str,
    workload: Workload,
    stages: Stages,
    skipped_note: str | None = None,
) -> Candidate:
    """Returns a graph with its metric, bits and number of quantized operators; see `Row`."""
    kind, title = (FLOAT, label) if method == FLOAT else (QUANTIZED, f"{method} {label}")
    scores = compute_scores(mg, workload, stages, kind, title)
    validation, test = scores.values()
    bits, numbers = parameter_bits(mg)
    operators = map(mg.get_module, mg.nodes)
    count = sum(isinstance(op, QuantizedOperator) and not op.spec.is_float for op in operators)
    lost = poor_fit(mg, layer_rows(mg))
    unreached = describe_unreached(mg, "formats")
    row = Row(
        method,
        label,
        validation.value,
        test.value,
        bits / max(numbers, 1),
        count,
        bits / 8 / 1000,
        lost,
        unreached,
        validation.interval,
        test.interval,
        skipped_note,
    )
    return Candidate(row, mg, scores)
