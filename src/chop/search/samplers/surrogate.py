"""What an untried configuration may give: a Gaussian process, or an exact sum of costs.

Shapes: N measured configurations, C candidates, D choices, K options of the choice with most.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Codes = NDArray[np.int64]
"""(N, D): the place of the option taken, of each configuration and choice."""

CONSTANT = 4.0
"""Prior variance of the overall mean, in units of the values' variance."""
ITERATIONS = 25
EXACT = 1e-6
"""What may be left, in ranges of the values, where costs explain a number exactly."""


class Model(Protocol):
    """What predicts one measured number."""

    def predict(self, codes: Codes) -> tuple[Array, Array]:
        """Mean and standard deviation of candidates (C, D): two arrays (C,)."""
        ...

    def sums(self) -> tuple[float, Array]:
        """A constant and what each option adds to it, (D, K), as far as effects add."""
        ...


class ExactSum:
    """A number that is an affine function of the sum of the options' costs.

    Args:
        costs: (D, K) of each option.
        slope: of the number by the sum.
        offset: the number where the sum is 0.
        scale: the size of the number's differences, for what counts as equal.
    """

    def __init__(self, costs: Array, slope: float, offset: float, scale: float) -> None:
        self.costs = costs
        self.slope, self.offset, self.scale = slope, offset, scale

    def predict(self, codes: Codes) -> tuple[Array, Array]:
        """See `Model`."""
        total = _sums(self.costs[:, :, None], codes)[:, 0]
        return self.offset + self.slope * total, np.full(len(codes), EXACT * self.scale)

    def sums(self) -> tuple[float, Array]:
        """See `Model`."""
        return self.offset, self.slope * self.costs


class GaussianProcess:
    """Additive effects of the choices, plus what is particular to near configurations.

    The covariance of two configurations with distances d_i of their options, in [0, 1], is
    CONSTANT + a mean_i w_i exp(-d_i / l) + p exp(-3 mean_i w_i d_i), times the values' variance,
    plus n where they are the same: the landscape's roughness, which is real and not noise. The
    amplitudes a, p, n, the length l and each choice's weight w_i maximise the posterior under
    log-normal priors. Numbers to be maximised and measured without noise are expected.

    Source: Rasmussen and Williams, Gaussian Processes for Machine Learning, 2006, equations
    2.25, 2.26, 5.8 and 5.9; the sum of the two covariances as in Duvenaud et al., Additive
    Gaussian Processes, arXiv:1112.4394.

    Args:
        codes: (N, D).
        values: (N,), finite.
        places: per choice, the places of its options on a line from 0 to 1.
    """

    PRIOR_MEAN = (0.0, -1.0, 0.5, -4.0, 0.0)
    """Of log a, log p, log l, log n and every log w_i."""
    PRIOR_STD = (1.0, 1.0, 0.7, 1.5, 1.0)

    def __init__(self, codes: Codes, values: Array, places: Sequence[Array]) -> None:
        self.codes = codes
        self.mean = float(values.mean())
        self.std = float(values.std()) or 1.0
        self.targets = (values - self.mean) / self.std
        self.apart = _distances(places)
        between = np.stack([d[np.ix_(c, c)] for d, c in zip(self.apart, codes.T, strict=True)])
        self.logs = self._most_likely(between)
        covariance = _Covariance(between, self.logs)
        self.inverse = np.linalg.inv(covariance.matrix)
        self.weights = self.inverse @ self.targets
        self._tabulate()

    def _most_likely(self, between: Array) -> Array:
        from scipy.optimize import minimize

        count = len(between)
        centre = np.array([*self.PRIOR_MEAN[:4], *[self.PRIOR_MEAN[4]] * count])
        spread = np.array([*self.PRIOR_STD[:4], *[self.PRIOR_STD[4]] * count])

        def loss(logs: Array) -> tuple[float, Array]:
            value, gradient = _Covariance(between, logs).loss(self.targets)
            off = (logs - centre) / spread
            return value + 0.5 * float(off @ off), gradient + off / spread

        bounds = list(zip(centre - 4 * spread, centre + 4 * spread, strict=True))
        options = {"maxiter": ITERATIONS}
        return minimize(loss, centre, jac=True, bounds=bounds, options=options, method="L-BFGS-B").x

    def _tabulate(self) -> None:
        """Covariance with the N measured ones, by choice and option: (D, K, N) each."""
        to_seen = np.stack([d[:, c] for d, c in zip(self.apart, self.codes.T, strict=True)])
        add, near, length, _, *shares = np.exp(self.logs)
        share = np.array(shares)[:, None, None] / len(shares)
        self.additive = add * share * np.exp(-to_seen / length)
        self.exponent = -3.0 * share * to_seen
        self.near = near
        self.variance = CONSTANT + add * share.sum() + near + math.exp(self.logs[3])

    def predict(self, codes: Codes) -> tuple[Array, Array]:
        """See `Model`; the deviation holds for configurations that were not measured."""
        cross = CONSTANT + _sums(self.additive, codes)
        cross += self.near * np.exp(_sums(self.exponent, codes))
        explained = np.einsum("cn,cn->c", cross @ self.inverse, cross)
        deviation = np.sqrt(np.maximum(self.variance - explained, 1e-12))
        return self.mean + self.std * (cross @ self.weights), self.std * deviation

    def sums(self) -> tuple[float, Array]:
        """See `Model`: the posterior mean of the additive part."""
        constant = self.mean + self.std * CONSTANT * float(self.weights.sum())
        return constant, self.std * (self.additive @ self.weights)


class _Covariance:
    """The matrix (N, N) of measured configurations, and its likelihood.

    Args:
        between: (D, N, N): distances of their options.
        logs: the logarithms of a, p, l, n and w_i.
    """

    def __init__(self, between: Array, logs: Array) -> None:
        add, near, length, nugget = np.exp(logs[:4])
        share = np.exp(logs[4:]) / len(between)
        self.between, self.share, self.length = between, share, length
        self.each = add * share[:, None, None] * np.exp(-between / length)
        self.near = near * np.exp(-3.0 * np.tensordot(share, between, 1))
        self.added = self.each.sum(0)
        self.nugget = nugget
        self.matrix = CONSTANT + self.added + self.near
        self.matrix[np.diag_indices(len(self.matrix))] += nugget

    def loss(self, targets: Array) -> tuple[float, Array]:
        """Minus the log likelihood, up to a constant, and its gradient by `logs`."""
        factor = np.linalg.cholesky(self.matrix)
        inverse = np.linalg.inv(self.matrix)
        weights = inverse @ targets
        value = 0.5 * float(targets @ weights) + float(np.log(np.diag(factor)).sum())
        slope = 0.5 * (inverse - np.outer(weights, weights))
        by_length = np.einsum("dij,dij,ij->", self.each, self.between, slope) / self.length
        by_near = np.einsum("dij,ij->d", self.between, slope * self.near)
        by_share = np.einsum("dij,ij->d", self.each, slope) - 3.0 * self.share * by_near
        shared = [(slope * self.added).sum(), (slope * self.near).sum(), by_length]
        return value, np.array([*shared, self.nugget * np.trace(slope), *by_share])


def exact_sum(codes: Codes, values: Array, costs: Array | None) -> ExactSum | None:
    """The model of a number that the costs explain; None where they do not, or too few tell.

    Args:
        codes: (N, D).
        values: (N,).
        costs: (D, K), or None where no choice has any.
    """
    if costs is None:
        return None
    totals = _sums(costs[:, :, None], codes)[:, 0]
    if len(set(totals.tolist())) < 2 or len(totals) < 3:
        return None
    slope, offset = np.polyfit(totals, values, 1)
    scale = float(np.ptp(values))
    if scale == 0 or np.abs(offset + slope * totals - values).max() > EXACT * scale:
        return None
    return ExactSum(costs, float(slope), float(offset), scale)


def _sums(table: Array, codes: Codes) -> Array:
    """(D, K, N) -> (C, N): the sum over the choices of the entries of the options taken."""
    total = np.zeros((len(codes), table.shape[2]))
    for entries, taken in zip(table, codes.T, strict=True):
        total += entries[taken]
    return total


def _distances(places: Sequence[Array]) -> Array:
    """(D, K, K): between options of each choice; what a choice lacks is 0."""
    most = max(map(len, places))
    apart = np.zeros((len(places), most, most))
    for table, place in zip(apart, places, strict=True):
        table[: len(place), : len(place)] = np.abs(place[:, None] - place[None, :])
    return apart
