"""Default sampler: Bayesian optimization by constrained expected improvement, with local search.

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
"""The first trials: every choice at its cheapest, its dearest, its middle option."""
PARENTS = 4
MUTANTS = 200
CHANGES = 4
"""Choices that a mutant differs in, at most."""
RANDOM_CANDIDATES = 100
CLIMBS = 3
PATIENCE = 10
"""Trials without improvement before a restart; of many choices, half as many as these."""
LEAST_KEPT = 0.3
"""Least share of choices that a crossover takes from the second parent."""
LONGEST_CLIMB = 100


class SensitivitySampler(JointSampler):
    """Bayesian optimization of categorical choices: additive Gaussian process, no duplicates.

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
        seed: of every draw; the same seed and trials give the same proposal. Default 0.
    """

    def next_config(self, study: Study, trial: FrozenTrial) -> Config:
        """The next configuration: of the initial design, of greatest acquisition, or a restart."""
        coding = get_coding(self.space)
        history = read_history(study, coding, trial.number)
        draw = np.random.default_rng([self.seed, len(history.taken)])
        with _blas().limit(limits=1, user_api="blas"):
            code = _Proposal(coding, history, draw).code()
        return self.space.folded(coding.config(code))


@cache
def _blas() -> ThreadpoolController:
    """Holds NumPy's matrix products to one thread.

    They are small, and threads of theirs wait for PyTorch's, which hold the cores for a while
    after each operation: with both, a fit took up to twenty times as long.
    """
    return ThreadpoolController()


@dataclass
class _Proposal:
    """The next configuration for a history."""

    coding: Coding
    history: History
    draw: np.random.Generator

    def code(self) -> Code:
        """A probe, or the most promising; an arbitrary one where no other is left.

        Earlier trials that are being proposed at this moment will take the same first ones.
        """
        ahead = self.history.undecided
        probes = dict.fromkeys(filter(self._is_free, map(self.coding.uniform, PROBES)))
        if ahead < len(probes):
            return list(probes)[ahead]
        if len(self.history.measured) < 2:
            return self._any_free()
        posterior = Posterior(self.coding, self.history, self.draw)
        ranked = self._escape(posterior) or self._ranked(posterior)
        return ranked[min(ahead, len(ranked) - 1)] if ranked else self._any_free()

    def _escape(self, posterior: Posterior) -> list[Code]:
        """Restart, in two of every three trials while nothing improves.

        One is random. The other is a crossover of the best with one of greatest interaction
        residual.
        """
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
            share = self.draw.uniform(LEAST_KEPT, 1.0, (len(codes), 1))
            from_surprising = self.draw.random(codes.shape) < share
            codes = np.where(from_surprising, parents, measured[posterior.order[0]])
            acquisition = posterior.acquisition(codes)
        free = self._best_free(codes, acquisition, self.history.undecided + 1)
        return [tuple(codes[i].tolist()) for i in free]

    def _ranked(self, posterior: Posterior) -> list[Code]:
        """Free configurations, the most promising first."""
        codes, acquisition = self._candidates(posterior)
        starts = self._best_free(codes, acquisition, CLIMBS)
        reached = [self._climb(posterior, codes[i], float(acquisition[i])) for i in starts]
        reached.sort(key=lambda pair: -pair[0])
        more = self._best_free(codes, acquisition, self.history.undecided + 1)
        found = [*(code for _, code in reached), *(tuple(codes[i].tolist()) for i in more)]
        return list(dict.fromkeys(found))

    def _candidates(self, posterior: Posterior) -> tuple[Codes, np.ndarray]:
        best = self.history.measured[posterior.order[:PARENTS]]
        found = [
            posterior.additive_optimum(),
            self._mutants(best),
            self._random_candidates(RANDOM_CANDIDATES),
        ]
        codes = np.concatenate(found)
        near = [posterior.best_neighbors(posterior.fill_inactive(code)) for code in best]
        return (
            np.concatenate([codes, *(codes for codes, _ in near)]),
            np.concatenate(
                [posterior.acquisition(codes), *(acquisition for _, acquisition in near)]
            ),
        )

    def _best_free(self, codes: Codes, acquisition: np.ndarray, count: int) -> list[int]:
        """The places of the first few that may be proposed, in the order of their acquisition."""
        found: dict[Code, int] = {}
        for i in np.argsort(-acquisition, kind="stable").tolist():
            code = tuple(codes[i].tolist())
            if code not in found and self._is_free(code):
                found[code] = i
            if len(found) == count:
                break
        return list(found.values())

    def _mutants(self, parents: Codes) -> Codes:
        """Mutants (C, D) of the parents: up to four choices at random."""
        mutants = parents[self.draw.integers(len(parents), size=MUTANTS)]
        active = self.coding.active(mutants)
        drawn = self._random_candidates(MUTANTS)
        first = np.where(active, self.draw.random(mutants.shape), 2.0).argsort(1).argsort(1)
        changed = first < self.draw.integers(2, CHANGES + 1, (MUTANTS, 1))
        return np.where(changed | ~active, drawn, mutants)

    def _random_candidates(self, count: int) -> Codes:
        return self.draw.integers(self.coding.counts, size=(count, len(self.coding.counts)))

    def _climb(self, posterior: Posterior, start: Codes, value: float) -> tuple[float, Code]:
        """Local search: hill climbing to a configuration that no single change improves.

        Each step takes the best single change, or the best 2, 4, 8 ... together.
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
            joint = self._joined(code, better)
            near = np.concatenate([near, joint])
            acquisition = np.concatenate([acquisition, posterior.acquisition(joint)])
            best = self._best_free(near, acquisition, 1)
            if not best or acquisition[best[0]] <= value:
                break
            code, value = near[best[0]], float(acquisition[best[0]])
        return value, tuple(code.tolist())

    def _joined(self, code: Codes, better: Codes) -> Codes:
        """The first 2, 4, 8 ... of single changes (C, D) made together; of a choice, the first."""
        changed = (better != code).argmax(1)
        firsts = np.sort(np.unique(changed, return_index=True)[1])
        found = np.repeat(code[None, :], len(firsts).bit_length() - 1, axis=0)
        for i, joint in enumerate(found, start=1):
            taken = firsts[: 2**i]
            joint[changed[taken]] = better[taken, changed[taken]]
        return found

    def _is_free(self, code: Code) -> bool:
        same = code if self.coding.is_plain else self.coding.code(self.coding.config(code))
        return same is not None and same not in self.history.taken and self.coding.is_feasible(same)

    def _any_free(self) -> Code:
        """One that was not proposed before; of a space that is used up, one that was."""
        codes = (tuple(row) for row in self._random_candidates(RANDOM_CANDIDATES).tolist())
        found = next(filter(self._is_free, codes), None)
        if found is None:
            config = self.coding.space.first(lambda config: self._is_free(self._code(config)))
            found = None if config is None else self._code(config)
        return found or min(self.history.taken, default=self.coding.uniform(0.0))

    def _code(self, config: Config) -> Code:
        """Of a whole configuration, which has one."""
        code = self.coding.code(config)
        assert code is not None
        return code
