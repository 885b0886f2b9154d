"""Warm start of a search over formats: allocations by sensitivity and an integer program."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch.nn.functional as F
from rich import get_console

from chop.base.files import write_json
from chop.base.files.documents import read_json
from chop.errors import ConfigError
from chop.problems.mixed_precision.allocation import Allocation
from chop.problems.mixed_precision.costs import COSTS
from chop.problems.mixed_precision.fisher import LossIncreases, fisher_loss_increases
from chop.problems.mixed_precision.layer_sensitivity import gradient_rows
from chop.problems.mixed_precision.problem import PrecisionProblem
from chop.search import Config, Constraint
from chop.search.objective import Goals, NotANumberError, select_constraints, select_objectives
from chop.train.evaluator import Evaluator, kl_divergence

LABEL = "no search"
SHARE = 0.25
"""Of the time of the trials, for measuring what each option does to the answers."""
LEAST_ROWS = 64
"""On fewer rows loss increases are not measured."""


def warm_start(
    problem: PrecisionProblem, train: Any, goals: Goals, evaluations: float
) -> dict[str, Config]:
    """The least total loss increase of all layers within the budgets, by each prediction of it.

    One is predicted: Fisher information times squared rounding errors, by one backward pass
    over 256 training rows. The other is measured: the divergence of the answers (of numbers, the
    mean squared change) for each choice and option, everything else float; on all rows of the
    problem or evenly spaced batches of them, as many as `evaluations` have time for.

    Where a cost is an objective there is no one budget: the least increase within the cost of each
    option everywhere, by the measured one if there is one.

    Args:
        problem: what can be chosen.
        train: labeled rows that gradients are taken on.
        goals: objectives, and budgets, of which those of costs are kept.
        evaluations: how many evaluations of all rows measuring may take.
    Returns: by the label of a row in tables, the best prediction first; where increases or
        budgets leave nothing, none.
    """
    allocations = _allocations(problem, _budgets(problem, goals))
    if not allocations:  # costs are objectives, and no option everywhere has a circuit
        return {}
    loss_increases = _loss_increases(problem, train, evaluations)
    kinds = list(reversed(loss_increases))[: 1 if len(allocations) > 1 else None]
    found: dict[str, Config] = {}
    for added, allocation in allocations.items():
        solved = {kind: allocation.solve(loss_increases[kind]) for kind in kinds}
        for config in filter(None, solved.values()):
            same = ", ".join(kind for kind in kinds if solved[kind] == config)
            found[f"{LABEL} ({same}){added}"] = config
    return found


def _allocations(problem: PrecisionProblem, budgets: Mapping[str, Goals]) -> dict[str, Allocation]:
    """By what is added to a label: an allocation within each budget, of each fold of a circuit.

    Raises:
        ConfigError: a budget cannot be kept by any.
    """
    found: dict[str, Allocation] = {}
    for added, limits in budgets.items():
        refused: list[ConfigError] = []
        for fold in problem.folds or (None,):
            own = added + _of_fold(problem, fold)
            try:
                found[own] = Allocation(problem, limits, fold)
            except ConfigError as error:
                refused.append(error)
        if len(refused) == max(len(problem.folds), 1):
            each = zip(problem.folds or (None,), refused, strict=True)
            texts = [f"{_of_fold(problem, fold)[2:]}: {error}".rstrip(".") for fold, error in each]
            raise refused[0] if len(refused) == 1 else ConfigError(f"{'; '.join(texts)}.")
    return found


def _of_fold(problem: PrecisionProblem, fold: str | None) -> str:
    return f", fold {fold}" if len(problem.folds) > 1 else ""


def _loss_increases(
    problem: PrecisionProblem, train: Any, evaluations: float
) -> dict[str, LossIncreases]:
    found = {}
    try:
        found["Fisher"] = fisher_loss_increases(problem, gradient_rows(problem, train))
    except ConfigError as error:
        get_console().print(
            f"{LABEL}: without Fisher information: {error}", highlight=False, markup=False
        )
    part = problem.evaluator.part(evaluations / len(problem.pairs))
    is_small = len(part) < min(LEAST_ROWS, len(problem.evaluator))
    if not is_small and len(part) * len(problem.pairs) <= evaluations * len(problem.evaluator):
        what = f"{len(problem.pairs)} options of layers, each alone, on {len(part)} rows"
        get_console().print(f"{LABEL}: measuring {what}", highlight=False, markup=False)
        kind = "KL" if problem.evaluator.task.is_categorical else "MSE"
        try:
            found[kind] = measured_loss_increases(problem, part)
        except ConfigError as error:
            get_console().print(
                f"{LABEL}: without measured increases: {error}", highlight=False, markup=False
            )
    return found


def measured_loss_increases(problem: PrecisionProblem, rows: Evaluator) -> LossIncreases:
    """Divergence of the outputs by each choice and option alone: one evaluation for each.

    Returns: of classes KL in nats, else the mean squared change.
    """
    reference, found = rows.of(problem.model(None)).logits(), {}
    for pair in problem.pairs:
        problem.layers.switch(problem.only(*pair))
        logits = rows.logits()
        found[pair] = (
            kl_divergence(reference, logits)
            if rows.task.is_categorical
            else F.mse_loss(logits.double(), reference.double()).item()
        )
    problem.layers.switch({})
    return found


def _budgets(problem: PrecisionProblem, goals: Goals) -> dict[str, Goals]:
    """By what is added to a label: the goals, with costs that are objectives as constraints."""
    costs = [goal for goal in select_objectives(goals) if goal.name in COSTS]
    if not costs:
        return {"": goals}
    found: dict[str, Goals] = {}
    for text in problem.options:
        numbers = costs_if_any(problem, problem.uniform(text))
        if numbers is None:
            continue
        limits = [Constraint(goal.name, numbers[goal.name], goal.direction) for goal in costs]
        found[f", {costs[0].name} of {text}"] = [*goals, *limits]
    return found


def uniforms_within(problem: PrecisionProblem, goals: Goals) -> dict[str, Config]:
    """One option everywhere, where that has a circuit, if one is asked for, and keeps within the
    budgets of costs; the dearest first."""
    limits = [limit for limit in select_constraints(goals) if limit.name in COSTS]
    found = {}
    for text in reversed(problem.options):
        for fold in problem.folds or (None,):
            config = problem.uniform(text, fold)
            costs = costs_if_any(problem, config)
            if costs and all(limit.excess(costs[limit.name]) <= 0 for limit in limits):
                found[text + _of_fold(problem, fold)] = config
    return found


def costs_if_any(problem: PrecisionProblem, config: Config) -> dict[str, float] | None:
    """The costs of a configuration; None where it has no circuit."""
    try:
        return problem.compute_costs(config)
    except NotANumberError:
        return None


def cached(
    path: Path, key: Mapping[str, Any], make: Callable[[], dict[str, Config]]
) -> dict[str, Config]:
    """Disk cache of `make()`: a resumed search does not measure again; another key does."""
    try:
        cached = read_json(path, "cached")
    except (OSError, ValueError):
        cached = {}
    identity = json.loads(json.dumps(key, default=str))
    if cached.get("of") != identity or not isinstance(cached.get("found"), dict):
        cached = {"of": identity, "found": make()}
        write_json(path, cached)
    return dict(cached["found"])
