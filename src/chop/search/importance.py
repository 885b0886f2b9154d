"""Hyperparameter importance of the choices (PED-ANOVA)."""

from __future__ import annotations

import random
import warnings
from collections.abc import Sequence
from statistics import stdev

from chop.search.objective import select_objectives
from chop.search.result import Result, TrialRecord
from chop.search.space import SearchSpace

LEAST = 8
"""Measured configurations from which on something is said."""
RESAMPLES = 20
"""Draws behind a standard error."""
DIGITS = 9
"""Decimals by which shares are ranked: sums in another order differ beyond them."""


def importances(result: Result, space: SearchSpace) -> dict[str, float]:
    """The share of each choice in what tells good trials from others, the greatest first.

    Of the first objective, by PED-ANOVA: how far the distribution of a choice's options among the
    better trials is from that among all. Constraints are not looked at. The sampler did not draw
    evenly, so that it is a hint.

    Source: Watanabe, Bansal and Hutter, PED-ANOVA: Efficiently Quantifying Hyperparameter
    Importance in Arbitrary Subspaces, IJCAI 2023, arXiv:2304.10255.

    Returns: choice -> share; the shares add up to 1. Empty where fewer than eight configurations
        were measured or all are worth the same, and choices of one option are left out.
    """
    return _shares(result.measured, result, space)


def importance_errors(result: Result, space: SearchSpace) -> dict[str, float]:
    """The standard error of each share of `importances`, by the bootstrap over trials.

    Source: Efron, Bootstrap Methods: Another Look at the Jackknife, Annals of Statistics, 1979.

    Returns: choice -> standard deviation of its share over draws of as many trials, with
        replacement, always the same ones. Empty where `importances` is, or no two draws say
        anything.
    """
    trials, drawn = result.measured, random.Random(0)
    if not _shares(trials, result, space):
        return {}
    draws = (drawn.choices(trials, k=len(trials)) for _ in range(RESAMPLES))
    found = [shares for draw in draws if (shares := _shares(draw, result, space))]
    if len(found) < 2:
        return {}
    return {name: stdev(shares[name] for shares in found) for name in found[0]}


def _shares(trials: Sequence[TrialRecord], result: Result, space: SearchSpace) -> dict[str, float]:
    import optuna
    from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances

    from chop.search.optuna_study import quiet

    goal = select_objectives(result.goals)[0]
    losses = [goal.loss(trial.values[goal.name]) for trial in trials]
    open_ones = {name: d for name, d in space.distributions().items() if not d.single()}
    if len(losses) < LEAST or len(set(losses)) < 2 or not open_ones:
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
        found = get_param_importances(study, evaluator=evaluator)
    # Optuna's order of equal shares differs from process to process.
    order = list(open_ones)
    ranked = sorted(found, key=lambda name: (-round(found[name], DIGITS), order.index(name)))
    return {name: float(found[name]) for name in ranked}
