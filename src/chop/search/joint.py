"""Relative samplers: Optuna samplers of all choices of a space jointly; the lazy grid."""

from __future__ import annotations

from typing import Any

from optuna import Study
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler, RandomSampler
from optuna.trial import FrozenTrial

from chop.errors import ConfigError
from chop.search.space import Config, SearchSpace


class JointSampler(BaseSampler):
    """Draws parameters outside the space at random.

    Args:
        space: what may be chosen.
        seed: of what is drawn.
    """

    def __init__(self, space: SearchSpace, seed: int = 0) -> None:
        self.space, self.seed = space, seed

    def next_config(self, study: Study, trial: FrozenTrial) -> Config:
        """What to try next."""
        raise NotImplementedError

    def infer_relative_search_space(
        self, study: Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """All choices."""
        return self.space.distributions()

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """The parameters of the next configuration.

        Raises:
            ConfigError: another sampler has fixed some of them.
        """
        fixed = [name for name in self.space.by_name if name not in search_space]
        if fixed:
            raise ConfigError(
                f"{type(self).__name__} proposes all choices jointly, but another sampler fixes "
                f"'{fixed[0]}': fix it by a space where it has one option."
            )
        return self.space.to_params(self.next_config(study, trial))

    def sample_independent(self, study: Study, trial: FrozenTrial, *parameter: Any) -> Any:
        """A parameter outside the space."""
        return RandomSampler(self.seed + trial.number).sample_independent(study, trial, *parameter)


class LazyGridSampler(JointSampler):
    """Takes the first feasible configuration of the grid that no trial has, and never builds it.

    Optuna's own grid sampler holds the whole product, and every trial of a study a number in it.
    """

    def next_config(self, study: Study, trial: FrozenTrial) -> Config:
        """The next configuration; when all are taken, the first again."""
        names = list(self.space.by_name)
        taken = {
            tuple(map(t.params.get, names))
            for t in study.get_trials(deepcopy=False)
            if t.number != trial.number
        }

        def is_free(config: Config) -> bool:
            return tuple(config.values()) not in taken and self.space.is_feasible(config)

        return self.space.first(is_free, len(taken)) or self.space.at(0)
