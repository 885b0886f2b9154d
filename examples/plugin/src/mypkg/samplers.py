"""Sampler `hill`."""

import random

from optuna import Study
from optuna.trial import FrozenTrial, TrialState

from chop.search.joint import JointSampler
from chop.search.registry import SamplerRow
from chop.search.space import Config


class HillClimbingSampler(JointSampler):
    """Hill climbing: the best trial with one choice changed, drawn at random."""

    def next_config(self, study: Study, trial: FrozenTrial) -> Config:
        """Returns a random configuration first, then a neighbor of the best."""
        draw = random.Random(self.seed)
        done = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        if not done:
            return self.space.at(draw.randrange(self.space.size))
        best = self.space.from_params(study.best_trial.params)
        return draw.choice(list(self.space.neighbors(best)))


HILL = SamplerRow(HillClimbingSampler, max_goals=1)
