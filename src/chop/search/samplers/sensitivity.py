"""Default sampler: Bayesian optimization by constrained expected improvement and local search.

Shapes: N measured configurations, C candidates, D choices, J objectives, B constraints.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from optuna import Study
from optuna.trial import FrozenTrial
from threadpoolctl import ThreadpoolController

from chop.search.joint import JointSampler
from chop.search.samplers.acquisition import Posterior
from chop.search.samplers.history import Code, Coding, History, get_coding, read_history
from chop.search.samplers.surrogate import Codes
from chop.search.space import Config

PROBES = (0.0, 1.0, 0.5)
"""Initial design: all choices at their cheapest, dearest and middle option."""
PARENTS = 4
MUTANTS = 200
CHANGES = 4
"""Maximum number of choices that a mutation changes."""
RANDOM_CANDIDATES = 100
CLIMBS = 3
PATIENCE = 10
"""Trials without improvement before a restart; with many choices, half their number."""
MIN_CROSSOVER = 0.3
"""Minimum share of choices that a crossover takes from the second parent."""
LONGEST_CLIMB = 100


class SensitivitySampler(JointSampler):
    """Bayesian optimization of categorical choices with an additive Gaussian process.

    1. Initial design: all choices at their cheapest, dearest and middle option.
    2. Surrogate: a Gaussian process of each option's effect and of interactions
       (`GaussianProcess`); numbers that the costs of the space explain are known exactly.
    3. Acquisition: candidates are the exact optimum of the additive effects under the constraints
       (integer program), mutants of the best trials and random configurations. They are compared
       by expected improvement times the probability of feasibility; the best few are improved by
       local search.
    4. Restart: after ten trials without improvement, or half as many as there are choices, one of
       every three is random and one crosses the best with the one of greatest interaction residual.

    Inactive choices (`SearchSpace.active`) are not varied.

    With several objectives each trial bounds all but one of them at random, within the range of
    the Pareto front (epsilon-constraint method, Haimes et al., 1971).

    Stateless: everything follows from the trials of the study, its directions and constraints, so
    that any number of processes may propose. Running configurations are imputed by their expected
    values, pruned ones by a poor one; failed ones are not proposed again.

    Source of the acquisition: Gardner et al., Bayesian Optimization with Inequality Constraints,
    ICML 2014, equation 5.

    Args:
        space: search space.
        seed: seed of all draws. The same seed and trials give the same proposal. Default 0.
    """

    def next_config(self, study: Study, trial: FrozenTrial) -> Config:
        """Returns the next configuration: initial design, greatest acquisition, or a restart."""
        coding = get_coding(self.space)
        history = read_history(study, coding, trial.number)
        # The number of proposals is part of the seed, so that a resumed search draws the same
        # numbers.
        draw = np.random.default_rng([self.seed, len(history.taken)])
        with _blas().limit(limits=1, user_api="blas"):
            code = _Proposal(coding, history, draw).code()
        return self.space.folded(coding.config(code))


@cache
def _blas() -> ThreadpoolController:
    """Returns a context manager that limits NumPy's matrix products to one thread.

    The matrices are small, and NumPy's threads compete with PyTorch's, which hold the cores for a
    while after each operation. With both, a fit took up to twenty times as long.
    """
    return ThreadpoolController()


@dataclass
class _Proposal:
    """Proposal of the next configuration from a history."""

    coding: Coding
    history: History
    draw: np.random.Generator

    def code(self) -> Code:
        """Returns an initial configuration or the most promising one, else an arbitrary one.

        Earlier trials without a configuration yet will take the same first candidates, which are
        skipped.
        """
        ahead = self.history.undecided
        probes = dict.fromkeys(filter(self._is_free, map(self.coding.uniform, PROBES)))
        # Concurrent workers take different probes, by the number of proposals ahead of this one.
        if ahead < len(probes):
            return list(probes)[ahead]
        if len(self.history.measured) < 2:
            return self._any_free()
        posterior = Posterior(self.coding, self.history, self.draw)
        ranked = self._escape(posterior) or self._ranked(posterior)
        return ranked[min(ahead, len(ranked) - 1)] if ranked else self._any_free()

    def _escape(self, posterior: Posterior) -> list[Code]:
        """Returns restart configurations in two of three trials without improvement, else [].

        One restart is random. The other is a crossover of the best configuration with one of
        greatest interaction residual.
        """
        # The phase follows from the number of trials, so a resumed search has the same one.
        phase = len(self.history.taken) % 3
        if posterior.stagnation < max(PATIENCE, len(self.coding.counts) / 2) or phase == 2:
            return []
        codes = self._random_candidates(RANDOM_CANDIDATES)
        acquisition = np.zeros(len(codes))
        if phase == 1:
            measured = self.history.measured
            parents = measured[
                np.argsort(-posterior.interaction_residuals(), kind="stable")[:PARENTS]
            ]
            parents = parents[self.draw.integers(len(parents), size=len(codes))]
            share = self.draw.uniform(MIN_CROSSOVER, 1.0, (len(codes), 1))
            # Parents with large residuals have interactions that the additive model has missed.
            from_surprising = self.draw.random(codes.shape) < share
            codes = np.where(from_surprising, parents, measured[posterior.order[0]])
            acquisition = posterior.acquisition(codes)
        free = self._best_free(codes, acquisition, self.history.undecided + 1)
        return [tuple(codes[i].tolist()) for i in free]

    def _ranked(self, posterior: Posterior) -> list[Code]:
        """Returns unvisited configurations, most promising first."""
        codes, acquisition = self._candidates(posterior)
        starts = self._best_free(codes, acquisition, CLIMBS)
        reached = [self._climb(posterior, codes[i], float(acquisition[i])) for i in starts]
        reached.sort(key=lambda pair: -pair[0])
        more = self._best_free(codes, acquisition, self.history.undecided + 1)
        ranked = [*(code for _, code in reached), *(tuple(codes[i].tolist()) for i in more)]
        return list(dict.fromkeys(ranked))

    def _candidates(self, posterior: Posterior) -> tuple[Codes, np.ndarray]:
        best = self.history.measured[posterior.order[:PARENTS]]
        candidates = [
            posterior.additive_optimum(),
            self._mutants(best),
            self._random_candidates(RANDOM_CANDIDATES),
        ]
        codes = np.concatenate(candidates)
        near = [posterior.best_neighbors(posterior.fill_inactive(code)) for code in best]
        return (
            np.concatenate([codes, *(codes for codes, _ in near)]),
            np.concatenate(
                [posterior.acquisition(codes), *(acquisition for _, acquisition in near)]
            ),
        )

    def _best_free(self, codes: Codes, acquisition: np.ndarray, count: int) -> list[int]:
        """Returns the indices of the first unvisited configurations in order of acquisition."""
        indices: dict[Code, int] = {}
        for i in np.argsort(-acquisition, kind="stable").tolist():
            code = tuple(codes[i].tolist())
            if code not in indices and self._is_free(code):
                indices[code] = i
            if len(indices) == count:
                break
        return list(indices.values())

    def _mutants(self, parents: Codes) -> Codes:
        """Returns mutants (C, D) of the parents with up to four random changes."""
        mutants = parents[self.draw.integers(len(parents), size=MUTANTS)]
        active = self.coding.active(mutants)
        drawn = self._random_candidates(MUTANTS)
        # Random ranks of the active choices; those with the lowest ranks change.
        first = np.where(active, self.draw.random(mutants.shape), 2.0).argsort(1).argsort(1)
        changed = first < self.draw.integers(2, CHANGES + 1, (MUTANTS, 1))
        return np.where(changed | ~active, drawn, mutants)

    def _random_candidates(self, count: int) -> Codes:
        return self.draw.integers(self.coding.counts, size=(count, len(self.coding.counts)))

    def _climb(self, posterior: Posterior, start: Codes, value: float) -> tuple[float, Code]:
        """Local search: hill climbing to a configuration that no single change improves.

        Each step takes the best single change, or the best 2, 4, 8 ... changes together.
        """
        code = start
        for _ in range(LONGEST_CLIMB):
            code = posterior.fill_inactive(code)
            near, acquisition = posterior.best_neighbors(code)
            better = near[
                np.argsort(-acquisition, kind="stable")[: np.count_nonzero(acquisition > value)]
            ]
            if not len(better):
                break
            # Joint changes pass over plateaus and interactions that single changes cannot.
            joint = self._joined(code, better)
            near = np.concatenate([near, joint])
            acquisition = np.concatenate([acquisition, posterior.acquisition(joint)])
            best = self._best_free(near, acquisition, 1)
            if not best or acquisition[best[0]] <= value:
                break
            code, value = near[best[0]], float(acquisition[best[0]])
        return value, tuple(code.tolist())

    def _joined(self, code: Codes, better: Codes) -> Codes:
        """Combines the first 2, 4, 8 ... single changes (C, D), the first change of each choice."""
        changed = (better != code).argmax(1)
        firsts = np.sort(np.unique(changed, return_index=True)[1])
        joined = np.repeat(code[None, :], len(firsts).bit_length() - 1, axis=0)
        for i, joint in enumerate(joined, start=1):
            taken = firsts[: 2**i]
            joint[changed[taken]] = better[taken, changed[taken]]
        return joined

    def _is_free(self, code: Code) -> bool:
        # Configurations that fold to the same representative count as visited.
        same = code if self.coding.is_plain else self.coding.code(self.coding.config(code))
        return same is not None and same not in self.history.taken and self.coding.is_feasible(same)

    def _any_free(self) -> Code:
        """Returns an unvisited configuration, or a visited one if the space is exhausted."""
        codes = (tuple(row) for row in self._random_candidates(RANDOM_CANDIDATES).tolist())
        code = next(filter(self._is_free, codes), None)
        if code is None:
            config = self.coding.space.first(lambda config: self._is_free(self._code(config)))
            code = None if config is None else self._code(config)
        return code or min(self.history.taken, default=self.coding.uniform(0.0))

    def _code(self, config: Config) -> Code:
        """Returns the code of a complete configuration."""
        code = self.coding.code(config)
        assert code is not None
        return code
