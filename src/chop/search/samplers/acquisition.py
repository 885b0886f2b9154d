"""Posterior over objective and constraints, and constrained expected improvement."""

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

MAX_TRIALS = 256
"""Maximum number of trials in a surrogate: the better half and the latest half.

At most half as many pruned trials are added.
"""
MAX_FITTED = 128
"""Maximum number of trials for fitting hyperparameters, selected in the same way."""
SHORTLIST = 96
"""Neighbors whose deviation is computed: those of greatest mean."""
FAR = 6.0
"""Distance from the best, in median distances, beyond which values are winsorized."""


class Posterior:
    """Posterior over the objective and the constraints of one trial.

    Args:
        coding: integer encoding of the search space.
        history: at least two measured configurations.
        draw: random generator of the bounds of further objectives (epsilon-constraint method).

    Attributes:
        values: (N,) measured objective, maximized.
        excess: per constraint (N,), feasible at or below 0.
        feasible: (N,) True if all constraints are met.
        order: (N,) indices of the measured configurations, best first.
        objective: surrogate of the objective.
        limits: surrogates of the constraints.
        best: incumbent: greatest feasible value. None while nothing is feasible.
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
        # Only the objective is winsorized: constraint violations keep their scale near the bound.
        self.limits = [self._model(excess) for excess in self.excess]
        self.objective = self._model(self.values, believe=True)
        values = winsorized(self.values)
        self.best: float | None = values[self.feasible].max() if self.feasible.any() else None
        most = max(map(len, coding.places))
        self.absent = np.arange(most) >= np.array(coding.counts)[:, None]

    def acquisition(self, codes: Codes) -> Array:
        """Acquisition: log(expected improvement x probability of feasibility), (C, D) -> (C,).

        Without a feasible measurement, it is the log probability of feasibility.
        """
        seen = self.coding.marked(codes)
        return self._acquisition([model.predict(seen) for model in self._models()])

    def best_neighbors(self, code: Codes) -> tuple[Codes, Array]:
        """Returns neighbors (C, D) of a configuration (D,) with the greatest acquisition (C,).

        If there are more than `SHORTLIST` neighbors, those of greatest mean are selected, with the
        deviation of the configuration itself as an approximation.
        """
        models = self._models()
        (active,), (seen,) = self.coding.active(code[None, :]), self.coding.marked(code[None, :])
        rough = self._acquisition(
            [(m.neighbor_means(seen), m.predict(seen[None, :])[1]) for m in models]
        )
        # Padded options, inactive choices and the configuration itself are not candidates.
        rough[self.absent | ~active[:, None]] = -np.inf
        rough[np.arange(len(code)), code] = -np.inf
        order = np.argsort(-rough, axis=None, kind="stable")[:SHORTLIST]
        choice, option = np.unravel_index(order[rough.flat[order] > -np.inf], rough.shape)
        codes = np.repeat(code[None, :], len(choice), axis=0)
        codes[np.arange(len(choice)), choice] = option
        if self.coding.is_conditional:  # a change may activate other choices
            return codes, self.acquisition(codes)
        return codes, self._acquisition([m.predict_neighbors(code, choice, option) for m in models])

    def fill_inactive(self, code: Codes) -> Codes:
        """Returns a configuration (D,) with the best option for each inactive choice."""
        (active,) = self.coding.active(code[None, :])
        worth = np.where(self.absent, -np.inf, self.objective.worth)
        return np.where(active, code, worth.argmax(1))

    @property
    def stagnation(self) -> int:
        """Number of trials since the incumbent; 0 without one or with several objectives."""
        if self.history.values.shape[1] > 1 or not self.feasible.any():
            return 0
        incumbent = int(np.where(self.feasible, self.values, -np.inf).argmax())
        return len(self.values) - 1 - incumbent

    def interaction_residuals(self) -> Array:
        """Residuals (N,) of the additive model, the part of the values due to interactions."""
        codes, model = self.coding.marked(self.history.measured), self.objective
        residuals: Array = self.values - model.constant - sums(model.worth, codes)
        return residuals

    def _models(self) -> list[Model]:
        return [*self.limits, *([] if self.best is None else [self.objective])]

    def _acquisition(self, predicted: Sequence[tuple[Array, Array]]) -> Array:
        """Returns the acquisition of means and deviations, in the order of `_models`."""
        count = len(self.limits)
        # Logarithms: products of many small probabilities would underflow.
        total: Any = sum(log_ndtr(-mean / deviation) for mean, deviation in predicted[:count])
        for mean, deviation in predicted[count:]:
            assert self.best is not None
            z = (mean - self.best) / deviation
            total = total + log_expected_improvement(z) + np.log(deviation)
        acquisition: Array = total
        return acquisition

    def additive_optimum(self) -> Codes:
        """Returns the feasible configuration of greatest additive effects, exactly: (1 or 0, D)."""
        limits = [(limit.worth, -limit.constant) for limit in self.limits]
        options = best_sum(self.objective.worth, self.coding.counts, limits)
        return np.empty((0, len(self.coding.counts)), int) if options is None else options[None, :]

    def _ranked(self, count: int) -> Codes:
        """Ranks the first `count` trials: feasible by value, then infeasible by violation."""
        first = [excess[:count] for excess in self.excess]
        # Violations are scaled by their range, so that constraints in different units can be added.
        beyond = sum((np.maximum(e, 0) / (np.ptp(e) or 1.0) for e in first), start=np.zeros(count))
        return np.lexsort((-self.values[:count], beyond))

    def _select_trials(self, count: int, most: int) -> Codes:
        """Returns the better half and the latest half of the first `count` trials."""
        if count <= most:
            return np.arange(count)
        # The latest trials lie where the sampler searches now, the better ones near the optimum.
        latest = np.arange(count - most // 2, count)
        better = self._ranked(count)
        return np.sort(np.concatenate([better[~np.isin(better, latest)][: most // 2], latest]))

    def _model(self, values: Array, believe: bool = False) -> Model:
        measured, places = self.coding.marked(self.history.measured), self.coding.places
        # Sizes follow from the choices, so they need no Gaussian process.
        exact = exact_sum(measured, values, self.coding.costs)
        if exact is not None:
            return exact
        count = last_fit(len(values))
        first = self._select_trials(count, MAX_FITTED)
        tame = winsorized if believe else np.asarray
        logs = settings(measured[first], tame(values[:count])[first], places)
        selected = self._select_trials(len(values), MAX_TRIALS)
        codes, values = measured[selected], tame(values)[selected]
        if believe:
            codes, values = self._with_unmeasured(codes, values, logs)
        return GaussianProcess(codes, values, places, logs)

    def _with_unmeasured(self, codes: Codes, values: Array, logs: Array) -> tuple[Codes, Array]:
        """Adds pruned trials with the lower quartile and running trials with their mean."""
        dropped, pending = self.history.dropped[-MAX_TRIALS // 2 :], self.history.pending
        if dropped:
            codes = np.concatenate([codes, self.coding.marked(np.array(dropped))])
            values = np.concatenate([values, np.full(len(dropped), np.quantile(values, 0.25))])
        if pending:
            # The mean as value leaves no expected improvement at running trials.
            process = GaussianProcess(codes, values, self.coding.places, logs)
            seen = self.coding.marked(np.array(pending))
            expected, _ = process.predict(seen)
            codes = np.concatenate([codes, seen])
            values = np.concatenate([values, expected])
        return codes, values


def last_fit(count: int) -> int:
    """Returns the latest trial count, up to `count`, at which hyperparameters were fitted.

    Fitted hyperparameters stay valid for up to a sixteenth more trials. A resumed search fits at
    the same counts and obtains the same values.
    """
    return count - count % (1 << max(0, count.bit_length() - 5))


def _one_objective(
    history: History, coding: Coding, draw: np.random.Generator
) -> tuple[Array, Sequence[Array]]:
    """Epsilon-constraint method: one objective (N,), and the others as excess over random bounds.

    An objective that is an exact sum of costs is never selected, because it is known.
    """
    columns = [_finite(column) for column in history.values.T]
    if len(columns) == 1:
        return history.values[:, 0], []
    known = [exact_sum(history.measured, column, coding.costs) for column in columns]
    # Objectives that are exact sums become constraints, which need no exploration.
    open_ones = [j for j, exact in enumerate(known) if not isinstance(exact, ExactSum)]
    chosen = int(draw.choice(open_ones or range(len(columns))))
    front = _front(np.stack(columns, axis=1))
    limits = []
    for j, column in enumerate(columns):
        if j != chosen:
            low, high = column[front].min(), column[front].max()
            # Random bounds within the range of the front cover all of it over many trials.
            limits.append(draw.uniform(low, high) - column)
    return history.values[:, chosen], limits


def _front(values: Array) -> Codes:
    """Returns the indices of the nondominated rows (N, J)."""
    better = (values[:, None, :] >= values[None, :, :]).all(2)
    strictly = (values[:, None, :] > values[None, :, :]).any(2)
    return np.flatnonzero(~(better & strictly).any(0))


def _finite(values: Array) -> Array:
    """Replaces infinities by the nearest finite value."""
    finite = values[np.isfinite(values)]
    ends = (finite.min(), finite.max()) if finite.size else (0.0, 0.0)
    return np.clip(np.nan_to_num(values, nan=ends[0]), *ends)


def winsorized(values: Array) -> Array:
    """Clips the poorest values, because a collapse says little about the best."""
    behind = values.max() - values
    if not behind.any():
        return values
    clipped: Array = np.maximum(values, values.max() - FAR * np.median(behind[behind > 0]))
    return clipped


def log_expected_improvement(z: Array) -> Array:
    """Returns the log expected improvement log(phi(z) + z Phi(z)) for standard normal phi and Phi.

    Source: Ament et al., Unexpected Improvements to Expected Improvement, arXiv:2310.20708,
    equation 9.
    """
    density = -0.5 * z * z - 0.5 * np.log(2 * np.pi)
    low = np.minimum(z, -1.0)
    tail = 1.0 + low * np.sqrt(np.pi / 2) * erfcx(-low / np.sqrt(2))
    tail = np.where(low < -1e4, low**-2.0, np.maximum(tail, 1e-300))
    high = np.maximum(z, -1.0)
    near = np.log(np.exp(-0.5 * high * high) / np.sqrt(2 * np.pi) + high * np.exp(log_ndtr(high)))
    improvement: Array = np.where(z < -1.0, density + np.log(tail), near)
    return improvement
