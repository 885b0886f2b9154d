"""Optuna's own cases for samplers (`optuna.testing`), on the samplers of this package.

Our samplers propose the choices of a `SearchSpace`, which are categories, and draw any other
parameter independently. The cases suggest parameters of their own beside those. Not applicable:

- `SingleOnlySamplerTestCase`: both samplers take several objectives.
- `test_sample_relative_*`: they hand a sampler numeric parameters that its
  `infer_relative_search_space` has not named; Optuna itself hands it those that it has named, or
  fewer. The cases below are of the choices of a space.
"""

from __future__ import annotations

import optuna
import pytest
from optuna.samplers import PartialFixedSampler

from chop.errors import ConfigError
from chop.search import Choice, SearchSpace
from chop.search.joint import LazyGridSampler
from chop.search.samplers import SensitivitySampler

pytest_samplers = pytest.importorskip(
    "optuna.testing.pytest_samplers", reason="this version of Optuna does not ship its cases"
)
SPACE = SearchSpace((Choice("p", {"2": 2, "4": 4}), Choice("q", {"2": 2, "4": 4, "8": 8})))


class Basic(pytest_samplers.BasicSamplerTestCase):
    test_combination_of_different_distributions_objective = pytest.mark.sampled(3)(
        pytest_samplers.BasicSamplerTestCase.test_combination_of_different_distributions_objective
    )


class Relative(pytest_samplers.RelativeSamplerTestCase):
    test_sample_relative_numerical = None
    test_sample_relative_mixed = None

    def test_sample_relative_categorical(self, sampler):
        study = optuna.create_study(sampler=sampler())
        distributions = study.sampler.infer_relative_search_space(study, None)
        study.tell(study.ask(distributions), 1.0)
        for _ in range(10):
            trial = study.ask(distributions)
            assert trial.params.keys() == distributions.keys()
            assert all(type(text) is str for text in trial.params.values())
            assert SPACE.from_params(trial.params)

    @pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
    def test_a_fixed_choice_of_the_space_is_refused(self, sampler):
        """`test_partial_fixed_sampling` fixes a parameter that is outside the space."""
        study = optuna.create_study(sampler=PartialFixedSampler({"q": "8"}, sampler()))
        with pytest.raises(ConfigError, match="another sampler fixes 'q': fix it by a space"):
            study.ask(SPACE.distributions())


class TestSensitivity(Basic, Relative, pytest_samplers.MultiObjectiveSamplerTestCase):
    @pytest.fixture
    def sampler(self):
        return lambda: SensitivitySampler(SPACE)


class TestGrid(Relative):
    """What is outside the space is drawn by the code that `TestSensitivity` has tested."""

    @pytest.fixture
    def sampler(self):
        return lambda: LazyGridSampler(SPACE)
