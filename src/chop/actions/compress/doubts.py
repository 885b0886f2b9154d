"""Warnings about implausible scores of a compression, shown first in its report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from chop.actions.compress.table import Candidate
from chop.actions.idle_training import describe_idle_training
from chop.base.notices import assume
from chop.train import Metric
from chop.train.intervals import Score
from chop.train.metric import LOWER_IS_BETTER

if TYPE_CHECKING:
    from chop.workloads.workload import Workload

LARGE_DROP = 0.5
"""Allowed loss from which the report mentions it."""
LARGE_GAIN = 0.05
"""Gain over float from which the report doubts a number without an interval, as a share of it."""


def note_large_drop(max_drop: float, metric: Metric) -> None:
    """Records an allowed loss that nearly every format keeps, such as 1 given for 1 %."""
    if max_drop >= LARGE_DROP:
        assume(
            f"A loss of up to {metric.format_drop(max_drop)} is allowed (--max-drop {max_drop:g}), "
            "so that nearly every format passes. For 1 %, pass 0.01."
        )


def note_doubts(candidates: Sequence[Candidate], workload: Workload) -> None:
    """Records implausible scores as assumptions of the job.

    Reports disjoint intervals of the float model on validation and test rows, quantized models
    that beat float by more than its interval, numbers of a user's function that are all the same,
    and formats that training made worse or left as they were.
    """
    exact, metric = candidates[0], workload.task.metric
    doubts = (
        _about_splits(exact, workload),
        _about_better(candidates, workload, metric),
        _about_constant(candidates, workload),
        _about_training(candidates, metric),
        _about_idle_training(candidates, metric),
    )
    for text in doubts:
        if text:
            assume(text)


def note_test_drop(
    chosen: Candidate, exact: Candidate, workload: Workload, max_drop: float
) -> None:
    """Records that the chosen format loses more than `max_drop` on test rows, beyond its interval.

    It was chosen on validation rows, so test rows of another distribution can lose far more.
    """
    metric, interval = workload.task.metric, chosen.scores["test"].interval
    if interval is None:
        return
    reference = exact.scores["test"]
    best = interval[1 if metric.higher_is_better else 0]
    if not metric.within(best, reference.value, max_drop):
        name = workload.get_name("test")
        lost = metric.format_loss(chosen.scores["test"].value, reference.value)
        assume(
            f"On {name} rows {chosen.row.format} ({chosen.row.method}) loses {lost}, more than the "
            f"{metric.format_drop(max_drop)} of --max-drop, although it passed on validation rows. "
            f"Check that the {name} rows are prepared like the training rows."
        )


def _about_splits(exact: Candidate, workload: Workload) -> str:
    chosen, tested = exact.scores["validation"], exact.scores["test"]
    if not _is_beyond(chosen, tested, metric := workload.task.metric) and not _is_beyond(
        tested, chosen, metric
    ):
        return ""
    name = workload.get_name("test")
    apart = (
        f"Float {metric.name} is {chosen.format(metric)} on validation rows and "
        f"{tested.format(metric)} on {name} rows"
    )
    if _is_beyond(tested, chosen, metric):
        return f"{apart}: the two sets differ. The format was chosen on the validation rows."
    return (
        f"{apart}: the model was probably trained on the validation rows, so the choice of the "
        "format is too optimistic. Provide a split 'validation' that the model has not seen."
    )


def _is_beyond(better: Score, worse: Score, metric: Metric) -> bool:
    """Returns True if the whole interval of one score is better than that of another."""
    if better.interval is None or worse.interval is None:
        return False
    if metric.higher_is_better:
        return better.interval[0] > worse.interval[1]
    return better.interval[1] < worse.interval[0]


def _about_better(candidates: Sequence[Candidate], workload: Workload, metric: Metric) -> str:
    """Describes quantized models that beat float by more than its interval."""
    exact, *others = candidates
    end = 1 if metric.higher_is_better else 0
    for name in ("test", "validation"):
        score = exact.scores[name]
        margin = LARGE_GAIN * abs(score.value)
        ends = score.interval or (score.value - margin, score.value + margin)
        doubtful = [
            candidate
            for candidate in others
            if metric.gain(candidate.scores[name].value, ends[end]) > 0
        ]
        if doubtful:
            listed = ", ".join(
                f"{c.row.format} ({c.row.method}) {metric.format_value(c.scores[name].value)}"
                for c in doubtful
            )
            where = "" if workload.judge else f", on {workload.get_name(name)} rows"
            amount = "its interval" if score.interval else f"{LARGE_GAIN:.0%}"
            return (
                f"Better than float by more than {amount}{where}: {listed}, float "
                f"{exact.scores[name].format(metric)}. {_reason(doubtful, workload)}"
            )
    return ""


def _about_constant(candidates: Sequence[Candidate], workload: Workload) -> str:
    """Describes a user's function with one number for all models, also for badly fitting ones."""
    values = {candidate.row.validation for candidate in candidates}
    if workload.judge is None or len(values) > 1 or not any(c.row.poor_fit for c in candidates):
        return ""
    number = workload.task.metric.format_value(*values)
    return (
        f"{workload.judge.title} gives {number} for all models, also where a format fits badly. "
        "Check that the number depends on the outputs of the model."
    )


def _about_training(candidates: Sequence[Candidate], metric: Metric) -> str:
    """Describes formats that training made worse than the interval of the untrained model."""
    untrained = {c.row.format: c.scores["validation"] for c in candidates if c.row.method == "PTQ"}
    end = 0 if metric.higher_is_better else 1
    worse = []
    for candidate in candidates:
        before, after = untrained.get(candidate.row.format), candidate.scores["validation"]
        if candidate.row.method != "QAT" or before is None:
            continue
        bound = before.value if before.interval is None else before.interval[end]
        if metric.gain(bound, after.value) > 0:
            ends = [metric.format_value(score.value) for score in (before, after)]
            worse.append(f"{candidate.row.format} from {ends[0]} to {ends[1]}")
    if not worse:
        return ""
    return (
        f"Training made these formats worse on validation rows: {', '.join(worse)}. Try a smaller "
        "--qat-lr."
    )


def _about_idle_training(candidates: Sequence[Candidate], metric: Metric) -> str:
    """Describes formats with other scores than float, which training did not change."""
    scores = {(c.row.method, c.row.format): (c.row.validation, c.row.test) for c in candidates}
    exact = candidates[0].row.validation, candidates[0].row.test
    idle = [
        name
        for (method, name), after in scores.items()
        if method == "QAT" and exact != after == scores.get(("PTQ", name))
    ]
    return describe_idle_training(metric.name, ", ".join(idle), "qat") if idle else ""


def _reason(doubtful: Sequence[Candidate], workload: Workload) -> str:
    if all(candidate.row.method == "QAT" for candidate in doubtful):
        return (
            "QAT also continued the training of the model. For a fair comparison, train the float "
            "model as long (--train-epochs)."
        )
    inputs = (
        "pixels are scaled" if "pixel_values" in workload.test.columns else "inputs are prepared"
    )
    metric, start = workload.task.metric, "Rounding cannot improve a model: the"
    if metric.higher_is_better and metric.name not in workload.task.metrics:
        option = LOWER_IS_BETTER if workload.judge is None else "--lower-is-better"
        start = f"If lower {metric.name} is better, use {option}. Otherwise the"
    return (
        f"{start} float model probably gets other inputs than in training. Check how {inputs}, and "
        "the weights."
    )
