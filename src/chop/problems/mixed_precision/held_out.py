"""Scores of configurations on held-out rows, which no trial used."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from chop.problems.mixed_precision.problem import SCORES, PrecisionProblem
from chop.search import Config
from chop.statistics.intervals import DRAWS, LEVEL_TEXT, Interval
from chop.statistics.verdicts import get_sign, write_verdict
from chop.train import Metric
from chop.train.evaluator import Evaluator
from chop.train.evaluator import divergences as row_divergences
from chop.train.intervals import (
    compute_interval,
    format_cell,
    format_interval,
    interval_over_rows,
)
from chop.train.judge import interval_of_rows


@dataclass(frozen=True)
class HeldOutScore:
    """Scores of a configuration on held-out rows.

    Attributes:
        value: task metric.
        interval: confidence interval of the value, see `chop.train.intervals.compute_interval`.
        predictions: (K, ...) predictions for the metric; K is the number of compared answers.
        divergences: float64 (K,) KL divergence from the float model's answers in nats, for classes.
            For images, the mean over pixels.
        losses: float64 (K,) task loss of each answer. None if the loss is not an objective.
        kl_interval: confidence interval of the mean divergence, over rows.
    """

    value: float
    interval: tuple[float, float] | None
    predictions: Tensor
    divergences: Tensor | None
    losses: Tensor | None = None
    kl_interval: tuple[float, float] | None = None

    def formatted(self, metric: Metric) -> str:
        """Formats the metric with its interval."""
        return metric.format_value(self.value) + format_interval(self.interval, metric)

    def format_cell(self, metric: Metric) -> str:
        """Formats the metric for a table."""
        return format_cell(self.value, self.interval, metric)

    @property
    def kl(self) -> float | None:
        """Mean divergence."""
        return None if self.divergences is None else self.divergences.mean().item()


class HeldOutRows:
    """Scorer of a problem's configurations on held-out rows.

    Args:
        problem: problem with the choices.
        held_out: held-out rows.
        goal: first objective of the search. `compare` decides by it if it is "kl", "loss" or the
            task metric, else by the task metric.
    """

    __test__ = False

    def __init__(
        self, problem: PrecisionProblem, held_out: Evaluator, goal: str | None = None
    ) -> None:
        self.problem, self.held_out = problem, held_out
        self.metric: Metric = held_out.task.metric
        self.goal = goal if goal in SCORES else self.metric.name
        self.is_judged, self.has_rows = problem.judge is not None, True
        if not self.is_judged:
            self.reference = held_out.of(problem.model(None)).logits()

    def score(self, config: Config | None) -> HeldOutScore:
        """Scores a configuration; None is the float model."""
        if self.problem.judge is not None:
            rows, self.has_rows = self.problem.judge.rows(self.problem.model(config))
            interval = interval_of_rows(rows) if self.has_rows else None
            return HeldOutScore(self.metric.score(rows, rows), interval, rows, None)
        logits = self.reference
        if config is not None:
            logits = self.held_out.of(self.problem.model(config)).logits()
        divergences = kl_interval = None
        if self.held_out.task.is_categorical:
            divergences = row_divergences(self.reference, logits)
            divergences = divergences.reshape(len(divergences), -1).mean(1)  # over pixels
            kl_interval = self._interval_of_mean(divergences)
        predictions, expected = self.metric.read(logits, self.held_out.labels)
        value = self.held_out.scores(logits)[self.held_out.task.metric.name]
        interval = compute_interval(
            self.metric, predictions.cpu(), expected.cpu(), self.held_out.sizes
        )
        losses = self._losses(logits) if self.goal == "loss" else None
        return HeldOutScore(value, interval, predictions, divergences, losses, kl_interval)

    def _losses(self, logits: Tensor) -> Tensor:
        pairs = zip(logits.float().split(1), self.held_out.labels.split(1), strict=True)
        return torch.stack([self.held_out.task.loss(*pair).double() for pair in pairs])

    def compare(self, mine: HeldOutScore, other: HeldOutScore, label: str) -> tuple[str, str]:
        """Compares a searched configuration with a baseline.

        Intervals are from the paired bootstrap over rows; all tokens of a text are one row.

        Returns: a short verdict, and a sentence with the numbers. The goal of the search decides;
            other significant differences are mentioned.
        """
        if torch.equal(mine.predictions, other.predictions) and mine.kl == other.kl:
            return (
                f", equal to {label}",
                f"The search result equals {label}.",
            )
        is_paired = self.has_rows and mine.predictions.shape == other.predictions.shape
        gains = self._gains(mine, other) if is_paired else {}
        if self.goal not in gains:
            gain = self.metric.gain(mine.value, other.value)
            text = f"{'better' if gain > 0 else 'no better'} than {label}"
            return (
                f", {text}, of unknown error",
                f"Gain over {label}: {self.metric.name} {gain:+.3g}, without an interval.",
            )
        signs = {name: get_sign(ends) for name, ends in gains.items()}
        verdict = write_verdict(signs, self.goal, label)
        scales = {self.metric.name: (100, " points") if self.metric.is_share else (1, "")}
        words, parts = {1: "better", 0: "within error", -1: "worse"}, []
        for name, (low, high) in gains.items():
            factor, unit = scales.get(name, (1, ""))
            ends = f"{factor * low:+.3g} to {factor * high:+.3g}{unit}"
            parts.append(f"{name} {ends} ({words[signs[name]]})")
        where = "" if self.is_judged else " on the test rows"
        gained = f"Gain over {label}{where}, {LEVEL_TEXT} intervals over paired rows: "
        return f", {verdict}", f"{gained}{'; '.join(parts)}: {verdict}."

    def _gains(self, mine: HeldOutScore, other: HeldOutScore) -> dict[str, tuple[float, float]]:
        """Returns the interval of the gain by name of the number."""
        metric = self.metric
        labels = mine.predictions
        if not self.is_judged:
            labels = metric.expect(labels, self.held_out.labels)
        ends = self._interval(
            lambda i: metric.gain(
                metric.score(mine.predictions[i], labels[i]),
                metric.score(other.predictions[i], labels[i]),
            ),
            len(labels),
        )
        gains = {} if ends is None else {metric.name: ends}
        for name, parts in (
            ("kl", (mine.divergences, other.divergences)),
            ("loss", (mine.losses, other.losses)),
        ):
            if parts[0] is not None and parts[1] is not None:
                ends = self._interval_of_mean(parts[1] - parts[0])
                gains |= {} if ends is None else {name: ends}
        return gains

    def _interval_of_mean(self, values: Tensor) -> Interval | None:
        return self._interval(lambda i: values[i].mean().item(), len(values))

    def _interval(self, statistic: Callable[[Tensor], float], count: int) -> Interval | None:
        """Returns the bootstrap interval over rows of a statistic of `count` answers."""
        sizes = [1] * count if self.is_judged else self.held_out.sizes
        return interval_over_rows(statistic, sizes, DRAWS)
