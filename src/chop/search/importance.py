"""Hyperparameter importance of the choices (PED-ANOVA)."""

from __future__ import annotations

import random
import warnings
from collections.abc import Sequence
from statistics import stdev

from chop.search.objective import select_objectives
from chop.search.result import Result, TrialRecord
from chop.search.space import SearchSpace

MIN_TRIALS = 8
"""Minimum number of measured configurations."""
RESAMPLES = 20
"""Bootstrap samples for a standard error."""
DIGITS = 9
"""Decimals by which shares are ranked, because the order of summation affects later digits."""


def importances(result: Result, space: SearchSpace) -> dict[str, float]:
    """Returns the importance of each choice for the first objective, most important first.

    PED-ANOVA compares the distribution of a choice's options among the better trials with that
    among all trials. Constraints are ignored. The result is a hint, because the sampler does not
    draw evenly.

    Source: Watanabe, Bansal and Hutter, PED-ANOVA: Efficiently Quantifying Hyperparameter
    Importance in Arbitrary Subspaces, IJCAI 2023, arXiv:2304.10255.

    Returns: choice -> share. The shares add up to 1. Empty for fewer than eight measured
    configurations, or if all have equal values. Choices with one option are omitted.
    """
    return _shares(result.measured, result, space)


def importance_errors(result: Result, space: SearchSpace) -> dict[str, float]:
    """Returns the standard error of each share of `importances`, by the bootstrap over trials.

    Source: Efron, Bootstrap Methods: Another Look at the Jackknife, Annals of Statistics, 1979.

    Returns: choice -> standard deviation of its share over bootstrap samples with a fixed seed.
    Empty if `importances` is empty, or fewer than two samples give shares.
    """
    trials, drawn = result.measured, random.Random(0)
    if not _shares(trials, result, space):
        return {}
    draws = (drawn.choices(trials, k=len(trials)) for _ in range(RESAMPLES))
    samples = [shares for draw in draws if (shares := _shares(draw, result, space))]
    if len(samples) < 2:
        return {}
    return {name: stdev(shares[name] for shares in samples) for name in samples[0]}


def _shares(trials: Sequence[TrialRecord], result: Result, space: SearchSpace) -> dict[str, float]:
    import optuna
    from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances

    from chop.search.optuna_study import quiet

    goal = select_objectives(result.goals)[0]
    losses = [goal.loss(trial.values[goal.name]) for trial in trials]
    open_ones = {name: d for name, d in space.distributions().items() if not d.single()}
    if len(losses) < MIN_TRIALS or len(set(losses)) < 2 or not open_ones:
        return {}
    with quiet():
        study = optuna.create_study()
    for trial, loss in zip(trials, losses, strict=True):
        params = {name: trial.config[name] for name in open_ones}
        study.add_trial(
            optuna.trial.create_trial(params=params, distributions=open_ones, value=loss)
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        evaluator = PedAnovaImportanceEvaluator()
        weights = get_param_importances(study, evaluator=evaluator)
    # Optuna's order of equal shares differs between processes.
    order = list(open_ones)
    ranked = sorted(weights, key=lambda name: (-round(weights[name], DIGITS), order.index(name)))
    return {name: float(weights[name]) for name in ranked}
