"""Report of a precision search: figures, and tables with intervals.

Test numbers are given for float, of one option everywhere, of what needs no search, and of the best
alone. The rest of a Pareto front has numbers of the search only: a reader who chose among it by
test numbers would be left without a test, as trials that were chosen by them would.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from chop.actions.search.figures import draw_search
from chop.actions.search.warm_start import LABEL
from chop.actions.settings.search import SearchConfig
from chop.actions.sweep.record import write_figure
from chop.mixed_precision import PrecisionProblem
from chop.mixed_precision.problem import SCORES
from chop.report.layer_maps import plot_layer_map
from chop.report.plots import Curve, plot_accuracy
from chop.search import Config, Result, TrialRecord
from chop.train import Metric
from chop.train.evaluator import Evaluator
from chop.train.intervals import bootstrap, format_interval, interval_note, interval_of


@dataclass(frozen=True)
class HeldOutScore:
    """A configuration on rows that no trial saw.

    Attributes:
        value: the task's metric.
        interval: of the value, see `chop.train.intervals.interval_of`.
        predictions: (K, ...) as the metric takes them, K the answers that are compared.
        divergences: of classes float64 (K,), KL from the float model's answers in nats.
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
        self.reference = held_out.of(found.model(None)).logits()

    def score(self, config: Config | None) -> HeldOutScore:
        """Of None, the float model."""
        logits = self.held_out.of(self.found.model(config)).logits()
        labels, divergences = self.held_out.labels, None
        if self.held_out.task.is_categorical:
            p, q = (x.double().log_softmax(-1) for x in (self.reference, logits))
            divergences = F.kl_div(q, p, reduction="none", log_target=True).sum(-1)
        predictions = self.metric.predict(logits, labels)
        value = self.held_out.scores(logits)[self.held_out.task.metric.name]
        interval = interval_of(self.metric, predictions.cpu(), labels.cpu())
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
        gains = self._gains(mine, other)
        signs = {name: sign_of(ends) for name, ends in gains.items()}
        verdict = verdict_of(signs, self.goal, label)
        scales = {self.metric.name: (100, " points") if self.metric.is_share else (1, "")}
        words, parts = {1: "better", 0: "within error", -1: "worse"}, []
        for name, (low, high) in gains.items():
            factor, unit = scales.get(name, (1, ""))
            ends = f"{factor * low:+.3g} to {factor * high:+.3g}{unit}"
            parts.append(f"{name} {ends} ({words[signs[name]]})")
        gained = f"Gained on {label} on the test rows, 95 % intervals of paired rows: "
        return f", {verdict}", f"{gained}{'; '.join(parts)}: {verdict}."

    def _gains(self, mine: HeldOutScore, other: HeldOutScore) -> dict[str, tuple[float, float]]:
        """The interval of what is gained, by the name of the number."""
        labels, metric = self.held_out.labels, self.metric
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


def sign_of(ends: tuple[float, float]) -> int:
    """1 where an interval lies above 0, -1 below, 0 where it holds 0."""
    low, high = ends
    return (low > 0) - (high < 0)


def verdict_of(signs: Mapping[str, int], goal: str, label: str) -> str:
    """Which configuration is better, in words.

    >>> verdict_of({"accuracy": -1, "kl": 1}, "kl", "no search")
    'better than no search by more than its error, but worse in accuracy'
    """
    own = signs[goal]
    verdict = {1: "better", 0: "not better", -1: "worse"}[own]
    parts = [f"{verdict} than {label} by more than its error"]
    for name, sign in signs.items():
        if name != goal and sign:
            joined = "and" if (sign > 0) == (own > 0) else "but"
            parts.append(f"{joined} {'better' if sign > 0 else 'worse'} in {name}")
    return ", ".join(parts)


def _mean_interval(values: Tensor) -> tuple[float, float]:
    return bootstrap(lambda i: values[i].mean().item(), len(values))


def table_row(
    label: str, values: Mapping[str, float], metric: Metric, test: HeldOutScore | None
) -> dict[str, Any]:
    """A line of the table.

    Args:
        label: what the formats are called.
        values: numbers and costs on the rows of the search.
        metric: the task's.
        test: None leaves the columns of the test rows empty.
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
    test_kl = None if test is None else test.kl
    if "kl" in values:
        row["search kl"] = f"{values['kl']:.4g}"
    row[f"test {metric.name}"] = None if test is None else test.value
    row["95% interval"] = interval and " to ".join(map(metric.format_value, interval))
    if "kl" in values:
        row["test kl"] = None if test_kl is None else f"{test_kl:.4g}"
    return row


def note_of(
    searched: str, count: int, held_out: Evaluator, front: list[TrialRecord], compared: str
) -> str:
    """What stands below the table.

    Args:
        searched: which rows trials were measured on, and how many.
        count: of the test rows.
        held_out: those.
        front: what was found.
        compared: what the search gains.
    """
    parts = [f"search: {searched}.", f"test: {count} test rows, which no choice was made by."]
    parts.append(interval_note(held_out.task.metric))
    if len(held_out.labels) > count:
        parts.append("Tokens of one text count as independent.")
    if len(front) > 1:
        parts.append(
            "Of the Pareto front only the best by the first goal has test numbers: to choose "
            "among the others by them would leave no test."
        )
    return " ".join([*parts, compared]).strip()


def shown_of(result: Result) -> list[TrialRecord]:
    """The front, or the nearest where nothing keeps within the budgets."""
    return result.front or result.ranked[:1]


def draw_precision(
    config: SearchConfig,
    found: PrecisionProblem,
    result: Result,
    begin: Mapping[str, Config],
    rows: list[dict[str, Any]],
    title: str,
) -> None:
    """Writes the figures into `config.folder`, those of `draw_search` among them.

    `accuracy` (named by the metric): that on the test rows against average bits, of the best,
    beside the same format everywhere and what needs no search; with several goals on the rows of
    the search, of the front. `formats`: the bits of each layer.

    Args:
        config: where to.
        found: what was searched over.
        result: with what was measured.
        begin: what needed no search, by its label.
        rows: the table: float, one option everywhere (if measured), `begin`, and what the search
            found.
        title: above each figure.
    """
    metric, shown = found.evaluator.task.metric, shown_of(result)
    where = "search" if len(shown) > 1 else "test"
    uniform = [row for row in rows if row["formats"] in found.options]
    first, last = 1 + len(uniform), 1 + len(uniform) + len(begin)
    parts = {"the same everywhere": uniform, LABEL: rows[first:last], "searched": rows[last:]}
    curves = [
        Curve(label, [(row["bits"], row[f"{where} {metric.name}"]) for row in part])
        for label, part in parts.items()
        if part
    ]
    write_figure(
        config.folder / metric.name,
        plot_accuracy,
        curves,
        {"float": rows[0][f"{where} {metric.name}"]},
        xlabel="bits per weight",
        title=f"{title}: {metric.name} on the {where} rows",
        metric=metric,
    )
    mixed = {**begin, **{f"trial {trial.number}": trial.config for trial in shown}}
    cells = {
        (name, label): found.bits(name, chosen[name])
        for name in found.space.by_name
        for label, chosen in mixed.items()
    }
    write_figure(
        config.folder / "formats",
        plot_layer_map,
        cells,
        xlabel="",
        measure="bits",
        title=f"{title}: bits of each layer",
    )
    shares = (metric.name,) if metric.is_share else ()
    draw_search(config, result, found.space, title, shares)
