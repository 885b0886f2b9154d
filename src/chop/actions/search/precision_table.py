"""Table of a precision search: its rows, and the note below it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from chop.problems.mixed_precision.held_out import HeldOutScore
from chop.search import TrialRecord
from chop.statistics.intervals import LEVEL_TEXT
from chop.train import Metric
from chop.train.evaluator import Evaluator
from chop.train.intervals import interval_note


def table_row(
    label: str,
    values: Mapping[str, float],
    metric: Metric,
    test: HeldOutScore | None,
    circuit: Sequence[tuple[str, int]] = (),
) -> dict[str, Any]:
    """Returns a row of the table.

    Args:
        label: label of the formats.
        values: scores and costs on the search rows.
        metric: metric of the task.
        test: score on the test rows, or None for empty columns.
        circuit: names of circuit costs with a column, and their decimal places.
    """
    interval = None if test is None or test.interval is None else test.interval
    row = {
        "formats": label,
        "bits": values["bits"],
        "activation_bits": f"{values['activation_bits']:.2f}",
        "kilobytes": f"{values['bytes'] / 1000:.1f}",
        f"search {metric.name}": values[metric.name],
        "search loss": f"{values['loss']:.4f}",
    }
    for name, places in circuit:
        row[name] = f"{values[name]:.{places}f}" if name in values else None
    test_kl = None if test is None else test.kl
    if "kl" in values:
        row["search kl"] = f"{values['kl']:.4g}"
    row[f"test {metric.name}"] = None if test is None else test.value
    row["95% interval"] = interval and " to ".join(map(metric.format_value, interval))
    if "kl" in values:
        row["test kl"] = None if test_kl is None else f"{test_kl:.4g}"
        ends = None if test is None else test.kl_interval
        row["kl interval"] = ends and " to ".join(f"{end:.4g}" for end in ends)
    return row


def judged_row(
    label: str,
    values: Mapping[str, float],
    metric: Metric,
    score: HeldOutScore | None,
    circuit: Sequence[tuple[str, int]] = (),
) -> dict[str, Any]:
    """Returns the table row if a function of the user computes the score on its own rows."""
    interval = None if score is None else score.interval
    return {
        "formats": label,
        "bits": values["bits"],
        "activation_bits": f"{values['activation_bits']:.2f}",
        "kilobytes": f"{values['bytes'] / 1000:.1f}",
        metric.name: values[metric.name],
        "95% interval": interval and " to ".join(map(metric.format_value, interval)),
        **{name: f"{values[name]:.{n}f}" if name in values else None for name, n in circuit},
    }


def judged_note(about: str, has_rows: bool, compared: str) -> str:
    """Returns the note below the table if a function of the user computes the score."""
    kind = f"{LEVEL_TEXT} confidence intervals over one number per row."
    single = "The function gives one number, without a confidence interval."
    return f"{about} {kind if has_rows else single} {compared}".strip()


def table_note(
    searched: str,
    count: int,
    tested: str,
    held_out: Evaluator,
    front: list[TrialRecord],
    compared: str,
) -> str:
    """Returns the note below the table.

    Args:
        searched: number and kind of the search rows.
        count: number of test rows.
        tested: number and kind of the test rows.
        held_out: evaluator on the test rows.
        front: Pareto front of the search.
        compared: gain of the search, in words.
    """
    parts = [f"search: {searched}.", f"test: {tested}, used for reporting only."]
    parts.append(interval_note(held_out.task.metric))
    if len(held_out.labels) > count:
        parts.append("They are over whole texts, because tokens of a text depend on each other.")
    if len(front) > 1:
        parts.append(
            "Only the best of the Pareto front by the first goal has test scores: choosing among "
            "the others by test scores would leave no unseen test data."
        )
    return " ".join([*parts, compared]).strip()
