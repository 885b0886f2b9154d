"""What trials so far make of a candidate: expected improvement within the budgets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.special import erfcx, log_ndtr

from chop.search.samplers.history import Coding, History
from chop.search.samplers.knapsack import best_sum
from chop.search.samplers.surrogate import (
    Array,
    Codes,
    ExactSum,
    GaussianProcess,
    Model,
    exact_sum,
    settings,
)

MOST = 256
"""Trials that a model knows: the better half, and the latest; half as many pruned ones."""
FITTED = 128
"""Trials that a model's settings are found from, chosen likewise."""
SHORTLIST = 96
"""Single changes of a configuration whose deviation is computed: those of most promising mean."""
FAR = 6.0
"""Values that lie further behind the best than so many times the median are drawn in."""


class Posterior:
    """Models of the numbers that matter in this trial.

    Args:
        coding: of the space.
        history: at least two measured configurations.
        draw: bounds the other objectives, where there are several.
    """

    def __init__(self, coding: Coding, history: History, draw: np.random.Generator) -> None:
        self.coding = coding
        self.history = history
        objective, limits = _one_objective(history, coding, draw)
        self.values = _finite(objective)
        self.excess = [_finite(limit) for limit in (*history.excess.T, *limits)]
        within = [excess <= 0 for excess in self.excess]
        self.feasible = np.logical_and.reduce(within, initial=True, axis=0) & np.isfinite(objective)
        self.order = self._ranked(len(self.values))
        self.limits = [self._model(excess) for excess in self.excess]
        self.objective = self._model(self.values, believe=True)
        values = winsorized(self.values)
        self.best = values[self.feasible].max() if self.feasible.any() else None
        most = max(map(len, coding.places))
        self.absent = np.arange(most) >= np.array(coding.counts)[:, None]

    def acquisition(self, codes: Codes) -> Array:
        """log (expected improvement x probability of keeping to the budgets), (C,).

        While nothing keeps to the budgets, the probability alone.
        """
        seen = self.coding.marked(codes)
        return self._acquisition([model.predict(seen) for model in self._models()])

    def changed(self, code: Codes) -> tuple[Codes, Array]:
        """The most promising single changes of a configuration (D,): (C, D), and their acquisition.

        Of more than `SHORTLIST` the rest is left out by a deviation that is taken to be that of
        the configuration itself.
        """
        models = self._models()
        (active,), (seen,) = self.coding.active(code[None, :]), self.coding.marked(code[None, :])
        rough = self._acquisition([(m.around(seen), m.predict(seen[None, :])[1]) for m in models])
        rough[self.absent | ~active[:, None]] = -np.inf
        rough[np.arange(len(code)), code] = -np.inf
        order = np.argsort(-rough, axis=None, kind="stable")[:SHORTLIST]
        choice, option = np.unravel_index(order[rough.flat[order] > -np.inf], rough.shape)
        codes = np.repeat(code[None, :], len(choice), axis=0)
        codes[np.arange(len(choice)), choice] = option
        if self.coding.is_conditional:  # a change may decide which other choices count
            return codes, self.acquisition(codes)
        return codes, self._acquisition([m.predict_changed(code, choice, option) for m in models])

    def filled(self, code: Codes) -> Codes:
        """What does not count in a configuration (D,) at its best option, for when it will."""
        (active,) = self.coding.active(code[None, :])
        worth = np.where(self.absent, -np.inf, self.objective.worth)
        return np.where(active, code, worth.argmax(1))

    @property
    def stale(self) -> int:
        """Trials since the best one; 0 with several objectives, or while none is within."""
        if self.history.values.shape[1] > 1 or not self.feasible.any():
            return 0
        return len(self.values) - 1 - int(np.where(self.feasible, self.values, -np.inf).argmax())

    def interaction_residuals(self) -> Array:
        """What measured configurations gave more than the sum of their options' effects: (N,)."""
        codes, model = self.coding.marked(self.history.measured), self.objective
        effects = model.worth[np.arange(codes.shape[1]), codes].sum(1)
        return self.values - model.constant - effects

    def _models(self) -> list[Model]:
        return [*self.limits, *([] if self.best is None else [self.objective])]

    def _acquisition(self, told: Sequence[tuple[Array, Array]]) -> Array:
        """From means and deviations, of the limits first."""
        count = len(self.limits)
        acquisition: Any = sum(log_ndtr(-mean / deviation) for mean, deviation in told[:count])
        for mean, deviation in told[count:]:
            acquisition = (
                acquisition
                + log_expected_improvement((mean - self.best) / deviation)
                + np.log(deviation)
            )
        return acquisition

    def additive_optimum(self) -> Codes:
        """What the additive effects alone say is best within the budgets: (1 or 0, D)."""
        limits = [(limit.worth, -limit.constant) for limit in self.limits]
        found = best_sum(self.objective.worth, self.coding.counts, limits)
        return np.empty((0, len(self.coding.counts)), int) if found is None else found[None, :]

    def _ranked(self, count: int) -> Codes:
        """The first measured ones, best first: within the budgets, then by their excess."""
        first = [excess[:count] for excess in self.excess]
        beyond = sum((np.maximum(e, 0) / (np.ptp(e) or 1.0) for e in first), start=np.zeros(count))
        return np.lexsort((-self.values[:count], beyond))

    def _kept(self, count: int, most: int) -> Codes:
        """Of the first trials, the places of the better and the latest."""
        if count <= most:
            return np.arange(count)
        latest = np.arange(count - most // 2, count)
        better = self._ranked(count)
        return np.sort(np.concatenate([better[~np.isin(better, latest)][: most // 2], latest]))

    def _model(self, values: Array, believe: bool = False) -> Model:
        measured, places = self.coding.marked(self.history.measured), self.coding.places
        exact = exact_sum(measured, values, self.coding.costs)
        if exact is not None:
            return exact
        count = last_fit(len(values))
        first = self._kept(count, FITTED)
        tame = winsorized if believe else np.asarray
        logs = settings(measured[first], tame(values[:count])[first], places)
        kept = self._kept(len(values), MOST)
        codes, values = measured[kept], tame(values)[kept]
        if believe:
            codes, values = self._with_unmeasured(codes, values, logs)
        return GaussianProcess(codes, values, places, logs)

    def _with_unmeasured(self, codes: Codes, values: Array, logs: Array) -> tuple[Codes, Array]:
        """Pruned configurations as poor ones, those that run as what is expected of them."""
        dropped, pending = self.history.dropped[-MOST // 2 :], self.history.pending
        if dropped:
            codes = np.concatenate([codes, self.coding.marked(np.array(dropped))])
            values = np.concatenate([values, np.full(len(dropped), np.quantile(values, 0.25))])
        if pending:
            process = GaussianProcess(codes, values, self.coding.places, logs)
            seen = self.coding.marked(np.array(pending))
            expected, _ = process.predict(seen)
            codes = np.concatenate([codes, seen])
            values = np.concatenate([values, expected])
        return codes, values


def last_fit(count: int) -> int:
    """The number of trials, up to this, at which settings were found last.

    They are found from the trials known then and hold for a sixteenth more of them or less, so
    that a resumed search finds the same.
    """
    return count - count % max(1, 2 ** (count.bit_length() - 5))


def _one_objective(
    history: History, coding: Coding, draw: np.random.Generator
) -> tuple[Array, Sequence[Array]]:
    """The objective of this trial (N,), and how far the others are beyond what is drawn for them.

    An objective that the costs explain is always one of the others: there is nothing to learn.
    """
    columns = [_finite(column) for column in history.values.T]
    if len(columns) == 1:
        return history.values[:, 0], []
    known = [exact_sum(history.measured, column, coding.costs) for column in columns]
    open_ones = [j for j, exact in enumerate(known) if not isinstance(exact, ExactSum)]
    chosen = int(draw.choice(open_ones or range(len(columns))))
    front = _front(np.stack(columns, axis=1))
    limits = []
    for j, column in enumerate(columns):
        if j != chosen:
            low, high = column[front].min(), column[front].max()
            limits.append(draw.uniform(low, high) - column)
    return history.values[:, chosen], limits


def _front(values: Array) -> Codes:
    """Places of the rows (N, J) that no other row is at least equal to, and better, in all."""
    better = (values[:, None, :] >= values[None, :, :]).all(2)
    strictly = (values[:, None, :] > values[None, :, :]).any(2)
    return np.flatnonzero(~(better & strictly).any(0))


def _finite(values: Array) -> Array:
    """Infinities as the nearest finite number among the values."""
    finite = values[np.isfinite(values)]
    ends = (finite.min(), finite.max()) if finite.size else (0.0, 0.0)
    return np.clip(np.nan_to_num(values, nan=ends[0]), *ends)


def winsorized(values: Array) -> Array:
    """Values with the poorest ones cut off: how bad a collapse is says little about the best."""
    behind = values.max() - values
    if not behind.any():
        return values
    return np.maximum(values, values.max() - FAR * np.median(behind[behind > 0]))


def log_expected_improvement(z: Array) -> Array:
    """log(phi(z) + z Phi(z)), phi and Phi the standard normal density and distribution.

    Source: Ament et al., Unexpected Improvements to Expected Improvement, arXiv:2310.20708,
    equation 9.
    """
    density = -0.5 * z * z - 0.5 * np.log(2 * np.pi)
    low = np.minimum(z, -1.0)
    tail = 1.0 + low * np.sqrt(np.pi / 2) * erfcx(-low / np.sqrt(2))
    tail = np.where(low < -1e4, low**-2.0, np.maximum(tail, 1e-300))
    high = np.maximum(z, -1.0)
    near = np.log(np.exp(-0.5 * high * high) / np.sqrt(2 * np.pi) + high * np.exp(log_ndtr(high)))
    return np.where(z < -1.0, density + np.log(tail), near)
