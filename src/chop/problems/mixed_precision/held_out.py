"""Held-out rows: configurations of a search judged on rows that no trial saw."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from chop.problems.mixed_precision.problem import SCORES, PrecisionProblem
from chop.search import Config
from chop.statistics.intervals import LEVEL_TEXT, bootstrap
from chop.statistics.verdicts import get_sign, write_verdict
from chop.train import Metric
from chop.train.evaluator import Evaluator
from chop.train.evaluator import divergences as row_divergences
from chop.train.intervals import compute_interval, format_cell, format_interval
from chop.train.judge import interval_of_rows


@dataclass(frozen=True)
class HeldOutScore:
    """A configuration on rows that no trial saw.

    Attributes:
        value: the task's metric.
        interval: of the value, see `chop.train.intervals.compute_interval`.
        predictions: (K, ...) as the metric takes them, K the answers that are compared.
        divergences: of classes float64 (K,), KL from the float model's answers in nats; of
            pictures the mean over their pixels.
        losses: float64 (K,), the task's loss of each answer; None where it is not searched for.
    """

    value: float
    interval: tuple[float, float] | None
    predictions: Tensor
    divergences: Tensor | None
    losses: Tensor | None = None

    def formatted(self, metric: Metric) -> str:
        """The metric with its interval."""
        return metric.format_value(self.value) + format_interval(self.interval, metric)

    def format_cell(self, metric: Metric) -> str:
        """The same for a table."""
        return format_cell(self.value, self.interval, metric)

    @property
    def kl(self) -> float | None:
        """The mean divergence."""
        return None if self.divergences is None else self.divergences.mean().item()


class HeldOutRows:
    """Judges configurations of a problem on rows that no trial saw.

    Args:
        found: the problem.
        held_out: the rows.
        goal: the first objective of the search, by which `compare` decides if it is the task's
            metric, "kl" or "loss"; else the metric decides.
    """

    __test__ = False

    def __init__(
        self, found: PrecisionProblem, held_out: Evaluator, goal: str | None = None
    ) -> None:
        self.found, self.held_out = found, held_out
        self.metric: Metric = held_out.task.metric
        self.goal = goal if goal in SCORES else self.metric.name
        self.is_judged, self.has_rows = found.judge is not None, True
        if not self.is_judged:
            self.reference = held_out.of(found.model(None)).logits()

    def score(self, config: Config | None) -> HeldOutScore:
        """Scores a configuration; None is the float model."""
        if self.found.judge is not None:
            rows, self.has_rows = self.found.judge.rows(self.found.model(config))
            interval = interval_of_rows(rows) if self.has_rows else None
            return HeldOutScore(self.metric.score(rows, rows), interval, rows, None)
        logits = self.held_out.of(self.found.model(config)).logits()
        divergences = None
        if self.held_out.task.is_categorical:
            divergences = row_divergences(self.reference, logits)
            divergences = divergences.reshape(len(divergences), -1).mean(1)  # over pixels
        predictions, expected = self.metric.read(logits, self.held_out.labels)
        value = self.held_out.scores(logits)[self.held_out.task.metric.name]
        interval = compute_interval(self.metric, predictions.cpu(), expected.cpu())
        losses = self._losses(logits) if self.goal == "loss" else None
        return HeldOutScore(value, interval, predictions, divergences, losses)

    def _losses(self, logits: Tensor) -> Tensor:
        pairs = zip(logits.float().split(1), self.held_out.labels.split(1), strict=True)
        return torch.stack([self.held_out.task.loss(*pair).double() for pair in pairs])

    def compare(self, mine: HeldOutScore, other: HeldOutScore, label: str) -> tuple[str, str]:
        """What a searched configuration gains on one that needed no search.

        Intervals are those of the paired bootstrap: the same rows of both, drawn with replacement.

        Returns: the verdict for a line, and a sentence with the numbers. The search's goal decides;
            another number that differs beyond its error is named.
        """
        if torch.equal(mine.predictions, other.predictions) and mine.kl == other.kl:
            return (
                f", as of {label}",
                f"The best is {label} itself: the search found nothing better.",
            )
        if not self.has_rows or mine.predictions.shape != other.predictions.shape:
            gain = self.metric.gain(mine.value, other.value)
            text = f"{'better' if gain > 0 else 'no better'} than {label}"
            return (
                f", {text}, of no known error",
                f"Gained on {label}: {self.metric.name} {gain:+.3g}; one number has no interval.",
            )
        gains = self._gains(mine, other)
        signs = {name: get_sign(ends) for name, ends in gains.items()}
        verdict = write_verdict(signs, self.goal, label)
        scales = {self.metric.name: (100, " points") if self.metric.is_share else (1, "")}
        words, parts = {1: "better", 0: "within error", -1: "worse"}, []
        for name, (low, high) in gains.items():
            factor, unit = scales.get(name, (1, ""))
            ends = f"{factor * low:+.3g} to {factor * high:+.3g}{unit}"
            parts.append(f"{name} {ends} ({words[signs[name]]})")
        where = "" if self.is_judged else " on the test rows"
        gained = f"Gained on {label}{where}, {LEVEL_TEXT} intervals of paired rows: "
        return f", {verdict}", f"{gained}{'; '.join(parts)}: {verdict}."

    def _gains(self, mine: HeldOutScore, other: HeldOutScore) -> dict[str, tuple[float, float]]:
        """The interval of what is gained, by the name of the number."""
        metric = self.metric
        labels = mine.predictions
        if not self.is_judged:
            labels = metric.expect(labels, self.held_out.labels)
        ends = bootstrap(
            lambda i: metric.gain(
                metric.score(mine.predictions[i], labels[i]),
                metric.score(other.predictions[i], labels[i]),
            ),
            len(labels),
        )
        gains = {metric.name: ends}
        for name, parts in (
            ("kl", (mine.divergences, other.divergences)),
            ("loss", (mine.losses, other.losses)),
        ):
            if parts[0] is not None and parts[1] is not None:
                gains[name] = _mean_interval(parts[1] - parts[0])
        return gains


def _mean_interval(values: Tensor) -> tuple[float, float]:
    return bootstrap(lambda i: values[i].mean().item(), len(values))
