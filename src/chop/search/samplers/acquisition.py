"""Posterior over objective and constraints; acquisition by constrained expected improvement."""

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
    sums,
)

MOST = 256
"""Trials in a surrogate: the better half and the latest half; at most half as many pruned."""
FITTED = 128
"""Trials that hyperparameters are fitted to, chosen likewise."""
SHORTLIST = 96
"""Neighbors of a configuration whose deviation is computed: those of greatest mean."""
FAR = 6.0
"""Values further behind the best than so many median distances are winsorized."""


class Posterior:
    """Posterior over the objective and the constraints of one trial.

    Args:
        coding: of the search space.
        history: at least two measured configurations.
        draw: random generator of the bounds of further objectives (epsilon-constraint method).

    Attributes:
        values: (N,) measured objective, maximized.
        excess: per constraint (N,), feasible at or below 0.
        feasible: (N,) True where every constraint is met.
        order: (N,) the measured configurations, best first.
        objective: surrogate of the objective.
        limits: surrogates of the constraints, one each.
        best: the incumbent, the greatest feasible value; None while nothing is feasible.
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
        self.best: float | None = values[self.feasible].max() if self.feasible.any() else None
        most = max(map(len, coding.places))
        self.absent = np.arange(most) >= np.array(coding.counts)[:, None]

    def acquisition(self, codes: Codes) -> Array:
        """Acquisition: log(expected improvement x probability of feasibility), (C, D) -> (C,).

        While nothing measured is feasible, the probability of feasibility alone.
        """
        seen = self.coding.marked(codes)
        return self._acquisition([model.predict(seen) for model in self._models()])

    def best_neighbors(self, code: Codes) -> tuple[Codes, Array]:
        """Neighbors of a configuration (D,) of greatest acquisition: (C, D), and their values (C,).

        Of more than `SHORTLIST` neighbors those of greatest mean are kept, the deviation taken to
        be that of the configuration itself.
        """
        models = self._models()
        (active,), (seen,) = self.coding.active(code[None, :]), self.coding.marked(code[None, :])
        rough = self._acquisition(
            [(m.neighbor_means(seen), m.predict(seen[None, :])[1]) for m in models]
        )
        rough[self.absent | ~active[:, None]] = -np.inf
        rough[np.arange(len(code)), code] = -np.inf
        order = np.argsort(-rough, axis=None, kind="stable")[:SHORTLIST]
        choice, option = np.unravel_index(order[rough.flat[order] > -np.inf], rough.shape)
        codes = np.repeat(code[None, :], len(choice), axis=0)
        codes[np.arange(len(choice)), choice] = option
        if self.coding.is_conditional:  # a change may decide which other choices count
            return codes, self.acquisition(codes)
        return codes, self._acquisition([m.predict_neighbors(code, choice, option) for m in models])

    def fill_inactive(self, code: Codes) -> Codes:
        """A configuration (D,) with the best option of each inactive choice."""
        (active,) = self.coding.active(code[None, :])
        worth = np.where(self.absent, -np.inf, self.objective.worth)
        return np.where(active, code, worth.argmax(1))

    @property
    def stagnation(self) -> int:
        """Stagnation: trials since the incumbent; 0 with several objectives, or without one."""
        if self.history.values.shape[1] > 1 or not self.feasible.any():
            return 0
        incumbent = int(np.where(self.feasible, self.values, -np.inf).argmax())
        return len(self.values) - 1 - incumbent

    def interaction_residuals(self) -> Array:
        """Residuals (N,) of the additive model: the part of the values due to interactions."""
        codes, model = self.coding.marked(self.history.measured), self.objective
        residuals: Array = self.values - model.constant - sums(model.worth, codes)
        return residuals

    def _models(self) -> list[Model]:
        return [*self.limits, *([] if self.best is None else [self.objective])]

    def _acquisition(self, predicted: Sequence[tuple[Array, Array]]) -> Array:
        """From means and deviations, those of the constraints first, as `_models`."""
        count = len(self.limits)
        total: Any = sum(log_ndtr(-mean / deviation) for mean, deviation in predicted[:count])
        for mean, deviation in predicted[count:]:
            assert self.best is not None
            z = (mean - self.best) / deviation
            total = total + log_expected_improvement(z) + np.log(deviation)
        acquisition: Array = total
        return acquisition

    def additive_optimum(self) -> Codes:
        """The feasible configuration of greatest additive effects, exactly: (1 or 0, D)."""
        limits = [(limit.worth, -limit.constant) for limit in self.limits]
        found = best_sum(self.objective.worth, self.coding.counts, limits)
        return np.empty((0, len(self.coding.counts)), int) if found is None else found[None, :]

    def _ranked(self, count: int) -> Codes:
        """Places of the first measured ones, feasible by value, then infeasible by excess."""
        first = [excess[:count] for excess in self.excess]
        beyond = sum((np.maximum(e, 0) / (np.ptp(e) or 1.0) for e in first), start=np.zeros(count))
        return np.lexsort((-self.values[:count], beyond))

    def _kept(self, count: int, most: int) -> Codes:
        """Places of the better half and the latest half of the first `count` trials."""
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
        """Data with pruned trials imputed by the lower quartile, running ones by the mean."""
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
    """The number of trials, up to this, at which hyperparameters were fitted last.

    They are found from the trials known then and hold for a sixteenth more of them or less, so
    that a resumed search finds the same.
    """
    return count - count % (1 << max(0, count.bit_length() - 5))


def _one_objective(
    history: History, coding: Coding, draw: np.random.Generator
) -> tuple[Array, Sequence[Array]]:
    """Epsilon-constraint method: one objective (N,), the others as excess over a drawn bound.

    An objective that is an exact sum of costs is never the one: there is nothing to learn.
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
    """Pareto front: places of the rows (N, J) that no other row dominates."""
    better = (values[:, None, :] >= values[None, :, :]).all(2)
    strictly = (values[:, None, :] > values[None, :, :]).any(2)
    return np.flatnonzero(~(better & strictly).any(0))


def _finite(values: Array) -> Array:
    """Infinities as the nearest finite number among the values."""
    finite = values[np.isfinite(values)]
    ends = (finite.min(), finite.max()) if finite.size else (0.0, 0.0)
    return np.clip(np.nan_to_num(values, nan=ends[0]), *ends)


def winsorized(values: Array) -> Array:
    """Winsorized values: the poorest are clipped, since a collapse says little about the best."""
    behind = values.max() - values
    if not behind.any():
        return values
    clipped: Array = np.maximum(values, values.max() - FAR * np.median(behind[behind > 0]))
    return clipped


def log_expected_improvement(z: Array) -> Array:
    """Log expected improvement: log(phi(z) + z Phi(z)), standard normal density and distribution.

    Source: Ament et al., Unexpected Improvements to Expected Improvement, arXiv:2310.20708,
    equation 9.
    """
    density = -0.5 * z * z - 0.5 * np.log(2 * np.pi)
    low = np.minimum(z, -1.0)
    tail = 1.0 + low * np.sqrt(np.pi / 2) * erfcx(-low / np.sqrt(2))
    tail = np.where(low < -1e4, low**-2.0, np.maximum(tail, 1e-300))
    high = np.maximum(z, -1.0)
    near = np.log(np.exp(-0.5 * high * high) / np.sqrt(2 * np.pi) + high * np.exp(log_ndtr(high)))
    found: Array = np.where(z < -1.0, density + np.log(tail), near)
    return found
