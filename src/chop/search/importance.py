"""Hyperparameter importance of the choices (PED-ANOVA)."""

from __future__ import annotations

import warnings

from chop.search.objective import objectives_of
from chop.search.result import Result
from chop.search.space import SearchSpace

LEAST = 8
"""Measured configurations from which on something is said."""


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
    import optuna
    from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances

    from chop.search.optuna_study import quiet

    goal = objectives_of(result.goals)[0]
    losses = [goal.loss(trial.values[goal.name]) for trial in result.measured]
    open_ones = {name: d for name, d in space.distributions().items() if not d.single()}
    if len(losses) < LEAST or len(set(losses)) < 2 or not open_ones:
        return {}
    with quiet():
        study = optuna.create_study()
    for trial, loss in zip(result.measured, losses, strict=True):
        params = {name: trial.config[name] for name in open_ones}
        study.add_trial(
            optuna.trial.create_trial(params=params, distributions=open_ones, value=loss)
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        evaluator = PedAnovaImportanceEvaluator()
        found = get_param_importances(study, evaluator=evaluator)
    return {name: float(share) for name, share in found.items()}
