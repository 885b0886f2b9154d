"""Relative samplers, which propose all choices jointly, and the lazy grid."""

from __future__ import annotations

from typing import Any

from optuna import Study
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler, RandomSampler
from optuna.trial import FrozenTrial

from chop.errors import ConfigError
from chop.search.space import Config, SearchSpace


class JointSampler(BaseSampler):
    """Base class of joint samplers; draws parameters outside the space at random.

    Args:
        space: search space.
        seed: seed of the random draws.
    """

    def __init__(self, space: SearchSpace, seed: int = 0) -> None:
        self.space, self.seed = space, seed

    def next_config(self, study: Study, trial: FrozenTrial) -> Config:
        """Returns the next configuration."""
        raise NotImplementedError

    def infer_relative_search_space(
        self, study: Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """Returns all choices."""
        return self.space.distributions()

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Returns the parameters of the next configuration.

        Raises:
            ConfigError: if another sampler has fixed some of them.
        """
        fixed = [name for name in self.space.by_name if name not in search_space]
        if fixed:
            raise ConfigError(
                f"{type(self).__name__} proposes all choices jointly, but another sampler fixes "
                f"'{fixed[0]}': fix it by a space where it has one option."
            )
        return self.space.to_params(self.next_config(study, trial))

    def sample_independent(self, study: Study, trial: FrozenTrial, *parameter: Any) -> Any:
        """Returns a random value for a parameter outside the space."""
        return RandomSampler(self.seed + trial.number).sample_independent(study, trial, *parameter)


class LazyGridSampler(JointSampler):
    """Grid search that takes the first unvisited feasible configuration, without building the grid.

    Optuna's grid sampler holds the whole product in memory, and stores a number of it with each
    trial.
    """

    def next_config(self, study: Study, trial: FrozenTrial) -> Config:
        """Returns the next configuration, or the first one if all were taken."""
        names = list(self.space.by_name)
        taken = {
            tuple(map(t.params.get, names))
            for t in study.get_trials(deepcopy=False)
            if t.number != trial.number
        }

        def is_free(config: Config) -> bool:
            return tuple(config.values()) not in taken and self.space.is_feasible(config)

        # Earlier trials took the start of the grid, so the scan may reach that much farther.
        return self.space.first(is_free, len(taken)) or self.space.at(0)
