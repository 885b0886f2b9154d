"""The grid as an Optuna sampler that never builds it."""

from __future__ import annotations

from typing import Any

from optuna import Study
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler
from optuna.trial import FrozenTrial

from chop.search.space import SearchSpace


class LazyGridSampler(BaseSampler):
    """Takes the first possible configuration of the grid that no trial has.

    Optuna's own grid sampler holds the whole product, and every trial of a study a number in it.
    """

    def __init__(self, space: SearchSpace) -> None:
        self.space = space

    def infer_relative_search_space(
        self, study: Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """All choices are decided together."""
        return self.space.distributions()

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """The next configuration; when all are taken, the first again."""
        names = list(self.space.by_name)
        taken = {
            tuple(map(t.params.get, names))
            for t in study.get_trials(deepcopy=False)
            if t.number != trial.number
        }
        free = (
            config
            for config in self.space.grid()
            if tuple(config.values()) not in taken and self.space.obstacle(config) is None
        )
        return self.space.to_params(next(free, self.space.at(0)))

    def sample_independent(
        self,
        study: Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        """A parameter outside the space has no place in the grid."""
        raise ValueError(f"'{param_name}' is no choice of the grid's space.")
