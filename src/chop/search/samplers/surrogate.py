"""Surrogate models of a measured number: Gaussian process, or exact sum of costs.

Shapes: N measured configurations, C candidates, D choices, K options of the choice with most.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.lapack import dpotrf, dpotri

Array = NDArray[np.float64]
Codes = NDArray[np.int64]
"""(N, D): index of the selected option for each configuration and choice."""

CONSTANT = 4.0
"""Prior variance of the overall mean, in units of the values' variance."""
ITERATIONS = 25
TOLERANCE = 1e-3
"""Relative change of the posterior at which its optimization stops.

Over 20 searches of each of four problems, the result is as good in half the time.
"""
REACH = 2.5
"""Bound of a hyperparameter in prior deviations; the exponent g must stay below 2."""
EXACT = 1e-6
"""Residual, relative to the range of the values, below which costs explain a number exactly."""


class ExactSum:
    """Linear surrogate: affine function of the sum of the options' costs, known exactly.

    Args:
        constant: intercept.
        worth: additive effect of each option, (D, K).
        deviation: constant predictive standard deviation.
    """

    def __init__(self, constant: float, worth: Array, deviation: float) -> None:
        self.constant, self.worth, self.deviation = constant, worth, deviation

    def predict(self, codes: Codes) -> tuple[Array, Array]:
        """Returns mean and standard deviation of candidates (C, D): two arrays (C,)."""
        means: Array = self.constant + sums(self.worth, codes)
        return means, np.full(len(codes), self.deviation)

    def neighbor_means(self, code: Codes) -> Array:
        """Returns predictive means of all neighbors of a candidate (D,): (D, K)."""
        taken = self.worth[np.arange(len(code)), code]
        means: Array = self.constant + taken.sum() - taken[:, None] + self.worth
        return means

    def predict_neighbors(self, code: Codes, choice: Codes, option: Codes) -> tuple[Array, Array]:
        """Predicts candidates that differ from one candidate (D,) in one choice (C,) each."""
        return self.neighbor_means(code)[choice, option], np.full(len(choice), self.deviation)


class GaussianProcess:
    """Gaussian process with additive effects of the choices and their interactions.

    The covariance of two configurations with distances d_i of their options, in [0, 1], is
    CONSTANT + a mean_i w_i exp(-d_i^g / l) + p exp(-r mean_i w_i d_i^g), times the values'
    variance, plus n where they are the same: the landscape's roughness, which is real and not
    noise. An exponent g near 1 holds where the options have an order, near 0 where they have
    none. The settings a, p, l, n, r, g and each choice's weight w_i maximize the posterior under
    log-normal priors. Numbers to be maximized and measured without noise are expected.

    Source: Rasmussen and Williams, Gaussian Processes for Machine Learning, 2006, equations
    2.25, 2.26, 4.18, 5.8 and 5.9; the sum of the two covariances as in Duvenaud et al., Additive
    Gaussian Processes, arXiv:1112.4394.

    Args:
        codes: (N, D) configurations.
        values: (N,) finite values.
        places: positions of each choice's options in [0, 1].
        logs: logarithms of the hyperparameters. None fits them by maximum a posteriori.

    Attributes:
        constant: intercept of the additive part's posterior mean, as in `ExactSum`.
        worth: additive effect of each option in that mean, (D, K).
    """

    def __init__(
        self, codes: Codes, values: Array, places: Sequence[Array], logs: Array | None = None
    ) -> None:
        self.mean = float(values.mean())
        self.std = float(values.std()) or 1.0
        targets = (values - self.mean) / self.std
        apart = _distances(places)
        taken = _one_hot(codes, apart.shape[1])
        self.logs = _most_likely(apart, taken, targets) if logs is None else logs
        covariance = Covariance(apart, taken, self.logs)
        self.inverse = np.linalg.inv(covariance.matrix)
        self.weights = self.inverse @ targets
        self.variance = covariance.variance
        # Covariance with the N measured configurations by choice and option, (D, K, N).
        self.terms = covariance.additive @ taken.transpose(1, 2, 0)
        self.factors = np.exp(covariance.exponent @ taken.transpose(1, 2, 0))
        self.near = covariance.near_size
        self.constant = self.mean + self.std * CONSTANT * float(self.weights.sum())
        self.worth = self.std * (self.terms @ self.weights)

    def predict(self, codes: Codes) -> tuple[Array, Array]:
        """Predicts like `ExactSum`; the deviation is valid for unmeasured configurations."""
        return self._posterior(*self._parts(codes))

    def neighbor_means(self, code: Codes) -> Array:
        """Returns predictive means of all neighbors, like `ExactSum`."""
        (_,), (near,) = self._parts(code[None, :])
        choices = np.arange(len(code))
        # The interaction kernel is a product over choices: swapping one option swaps one factor.
        factors = near * self.weights / self.factors[choices, code]
        taken = self.worth[choices, code]
        near_means = np.matmul(self.factors, factors[:, :, None])[:, :, 0] * self.std
        means: Array = near_means + self.constant + taken.sum() - taken[:, None] + self.worth
        return means

    def predict_neighbors(self, code: Codes, choice: Codes, option: Codes) -> tuple[Array, Array]:
        """Predicts candidates with one change each, like `ExactSum`."""
        added, near = self._parts(code[None, :])
        added = added + self.terms[choice, option] - self.terms[choice, code[choice]]
        near = near * self.factors[choice, option] / self.factors[choice, code[choice]]
        return self._posterior(added, near)

    def _parts(self, codes: Codes) -> tuple[Array, Array]:
        """Returns covariances with measured configurations: additive part and rest, (C, N)."""
        added, near = np.zeros((2, len(codes), len(self.weights)))
        near += self.near
        for terms, factors, taken in zip(self.terms, self.factors, codes.T, strict=True):
            added += terms[taken]
            near *= factors[taken]
        return added, near

    def _posterior(self, added: Array, near: Array) -> tuple[Array, Array]:
        cross = CONSTANT + added + near
        # Equation 2.26: the prior variance minus the part explained by the measurements.
        explained = np.einsum("cn,cn->c", cross @ self.inverse, cross)
        deviation = np.sqrt(np.maximum(self.variance - explained, 1e-12))
        return self.mean + self.std * (cross @ self.weights), self.std * deviation


class Covariance:
    """Covariance matrix (N, N) of measured configurations, and its likelihood.

    Args:
        apart: (D, K, K) distances between the options of each choice.
        taken: (N, D, K) one-hot selected options.
        logs: logarithms of a, p, l, n, r, g and every w_i.
    """

    PRIOR_MEAN = (0.0, -1.0, 0.5, -4.0, 1.1, -0.35)
    """Prior means of the first logarithms; 0 for the weights w_i."""
    PRIOR_STD = (1.0, 1.0, 0.7, 1.5, 0.5, 0.35)
    """Prior standard deviations of the first logarithms; 1 for the weights w_i."""

    def __init__(self, apart: Array, taken: Array, logs: Array) -> None:
        settings = len(self.PRIOR_MEAN)
        size, self.near_size, self.length, self.nugget, rate, self.power = np.exp(logs[:settings])
        share = np.exp(logs[settings:, None, None]) / len(apart)
        self.taken = taken
        # d^g and its derivative by log g; both are 0 at distance 0.
        apart_log = np.log(np.where(apart > 0, apart, 1.0))
        self.grown = np.where(apart > 0, np.exp(self.power * apart_log), 0.0)
        self.growth = self.power * apart_log * self.grown
        self.scale = rate * share
        self.additive = size * share * np.exp(-self.grown / self.length)
        self.exponent = -self.scale * self.grown
        self.variance = CONSTANT + size * share.sum() + self.near_size + self.nugget
        self.added = self._spread(self.additive)
        self.near = self.near_size * np.exp(self._spread(self.exponent))
        self.matrix = CONSTANT + self.added + self.near
        self.matrix[np.diag_indices(len(taken))] += self.nugget

    def loss(self, targets: Array) -> tuple[float, Array]:
        """Returns the negative log likelihood, up to a constant, and its gradient by `logs`."""
        factor, _ = dpotrf(self.matrix, lower=True, clean=True)
        # LAPACK's inverse from the Cholesky factor fills the lower triangle only.
        inverse, _ = dpotri(factor, lower=True)
        inverse = np.tril(inverse) + np.tril(inverse, -1).T
        weights = inverse @ targets
        value = 0.5 * float(targets @ weights) + float(np.log(np.diag(factor)).sum())
        # Equation 5.9: the gradient is the trace of this matrix times the covariance's derivative.
        slope = 0.5 * (inverse - np.outer(weights, weights))
        by_additive = self._gather(slope) * self.additive
        by_exponent = self._gather(slope * self.near)
        shared = [
            by_additive.sum(),
            (slope * self.near).sum(),
            (by_additive * self.grown).sum() / self.length,
            self.nugget * np.trace(slope),
            (by_exponent * self.exponent).sum(),
            -(by_additive * self.growth).sum() / self.length
            - (by_exponent * self.scale * self.growth).sum(),
        ]
        by_weight = (by_additive + by_exponent * self.exponent).sum((1, 2))
        return value, np.array([*shared, *by_weight])

    def _spread(self, table: Array) -> Array:
        """Sums a table (D, K, K) of option pairs over the choices: (N, N)."""
        count = len(self.taken)
        rows = np.matmul(self.taken.transpose(1, 0, 2), table).transpose(1, 0, 2)
        total: Array = rows.reshape(count, -1) @ self.taken.reshape(count, -1).T
        return total

    def _gather(self, matrix: Array) -> Array:
        """Transpose of `_spread`: (N, N) -> (D, K, K)."""
        rows = np.tensordot(matrix, self.taken, 1)
        table: Array = np.matmul(self.taken.transpose(1, 2, 0), rows.transpose(1, 0, 2))
        return table


def _most_likely(apart: Array, taken: Array, targets: Array) -> Array:
    """Returns the maximum-a-posteriori hyperparameters as logarithms."""
    from scipy.optimize import minimize

    center = np.array([*Covariance.PRIOR_MEAN, *[0.0] * len(apart)])
    spread = np.array([*Covariance.PRIOR_STD, *[1.0] * len(apart)])

    def loss(logs: Array) -> tuple[float, Array]:
        value, gradient = Covariance(apart, taken, logs).loss(targets)
        # Log-normal priors add a quadratic penalty.
        off = (logs - center) / spread
        return value + 0.5 * float(off @ off), gradient + off / spread

    bounds = list(zip(center - REACH * spread, center + REACH * spread, strict=True))
    options = {"maxiter": ITERATIONS, "ftol": TOLERANCE}
    optimum = minimize(loss, center, jac=True, bounds=bounds, options=options, method="L-BFGS-B")
    logs: Array = optimum.x
    return logs


@lru_cache(maxsize=64)
def _settings(codes: bytes, values: bytes, places: tuple[tuple[float, ...], ...]) -> Array:
    lines = [np.array(line) for line in places]
    array = np.frombuffer(codes, dtype=np.int64).reshape(-1, len(lines))
    return GaussianProcess(array, np.frombuffer(values), lines).logs


def settings(codes: Codes, values: Array, places: Sequence[Array]) -> Array:
    """Returns fitted hyperparameters for these trials, from a cache.

    Args: see `GaussianProcess`.
    """
    lines = tuple(tuple(line.tolist()) for line in places)
    return _settings(codes.astype(np.int64).tobytes(), values.astype(float).tobytes(), lines)


Model = ExactSum | GaussianProcess


def exact_sum(codes: Codes, values: Array, costs: Array | None) -> ExactSum | None:
    """Returns a linear surrogate if costs explain the values exactly, else None.

    Args:
        codes: (N, D) configurations.
        values: (N,) values.
        costs: (D, K), or None if no choice has costs.
    """
    if costs is None:
        return None
    totals = sums(costs, codes)
    # Any two values lie on a line, and equal totals determine none.
    if len(totals) < 3 or np.ptp(totals) <= EXACT * np.abs(totals).max():
        return None
    slope, offset = np.polyfit(totals, values, 1)
    scale = float(np.ptp(values))
    if scale == 0 or np.abs(offset + slope * totals - values).max() > EXACT * scale:
        return None
    return ExactSum(float(offset), slope * costs, EXACT * scale)


def sums(table: Array, codes: Codes) -> Array:
    """Sums the entries of the selected options over the choices, (D, K) -> (C,)."""
    total: Array = table[np.arange(len(table)), codes].sum(1)
    return total


def _distances(places: Sequence[Array]) -> Array:
    """Returns distances (D, K, K) between the options of each choice, padded with 0."""
    most = max(map(len, places))
    apart = np.zeros((len(places), most, most))
    for table, place in zip(apart, places, strict=True):
        table[: len(place), : len(place)] = np.abs(place[:, None] - place[None, :])
    return apart


def _one_hot(codes: Codes, most: int) -> Array:
    """Returns selected options as one-hot (N, D, K)."""
    taken: Array = (codes[:, :, None] == np.arange(most)).astype(float)
    return taken
