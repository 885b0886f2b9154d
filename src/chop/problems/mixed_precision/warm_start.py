"""Warm start of a search over formats, by sensitivities and an integer program."""

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
from chop.runs.progress import labeled_bar
from chop.search import Config, Constraint
from chop.search.objective import Goals, NotANumberError, select_constraints, select_objectives
from chop.train.evaluator import Evaluator, kl_divergence

LABEL = "no search"
SHARE = 0.25
"""Share of the trials' time for measuring loss increases."""
MIN_ROWS = 64
"""Minimum number of rows for measuring loss increases."""


def warm_start(
    problem: PrecisionProblem, train: Any, goals: Goals, evaluations: float
) -> dict[str, Config]:
    """Returns the configurations of least predicted loss increase within the budgets.

    There are two predictions. The first is Fisher information times squared rounding errors, from
    one backward pass over 256 training rows. The second is measured: the divergence of the answers
    (or mean squared change of numbers) for each choice and option while everything else is float.
    It uses all rows of the problem, or as many evenly spaced batches as `evaluations` allows.

    If a cost is an objective, there is no single budget. The least increase is then computed within
    the cost of each uniform configuration, by the measured prediction if available.

    Args:
        problem: problem with the choices.
        train: labeled rows for gradients.
        goals: objectives and budgets. Only budgets of costs are used.
        evaluations: time limit for measuring, in evaluations of all rows.
    Returns: table label -> configuration, the best prediction first. Empty if there is no
        solution.
    """
    allocations = _allocations(problem, _budgets(problem, goals))
    if not allocations:  # costs are objectives, and no uniform configuration has a circuit
        return {}
    loss_increases = _loss_increases(problem, train, evaluations)
    kinds = list(reversed(loss_increases))[: 1 if len(allocations) > 1 else None]
    configs: dict[str, Config] = {}
    for added, allocation in allocations.items():
        solved = {kind: allocation.solve(loss_increases[kind]) for kind in kinds}
        for config in filter(None, solved.values()):
            same = ", ".join(kind for kind in kinds if solved[kind] == config)
            configs[f"{LABEL} ({same}){added}"] = config
    return configs


def _allocations(problem: PrecisionProblem, budgets: Mapping[str, Goals]) -> dict[str, Allocation]:
    """Returns label suffix -> allocation within each budget, for each fold of a circuit.

    Raises:
        ConfigError: if a budget cannot be met by any allocation.
    """
    allocations: dict[str, Allocation] = {}
    for added, limits in budgets.items():
        refused: list[ConfigError] = []
        for fold in problem.folds or (None,):
            own = added + _fold_suffix(problem, fold)
            try:
                allocations[own] = Allocation(problem, limits, fold)
            except ConfigError as error:
                refused.append(error)
        if len(refused) == max(len(problem.folds), 1):
            each = zip(problem.folds or (None,), refused, strict=True)
            texts = [
                f"{_fold_suffix(problem, fold)[2:]}: {error}".rstrip(".") for fold, error in each
            ]
            raise refused[0] if len(refused) == 1 else ConfigError(f"{'; '.join(texts)}.")
    return allocations


def _fold_suffix(problem: PrecisionProblem, fold: str | None) -> str:
    return f", fold {fold}" if len(problem.folds) > 1 else ""


def _loss_increases(
    problem: PrecisionProblem, train: Any, evaluations: float
) -> dict[str, LossIncreases]:
    increases = {}
    rows = gradient_rows(problem, train)
    try:
        with labeled_bar(f"{LABEL}: gradients of {len(rows)} rows", len(rows.batches)) as advance:
            increases["Fisher"] = fisher_loss_increases(problem, rows, advance)
    except ConfigError as error:
        get_console().print(
            f"{LABEL}: without Fisher information: {error}", highlight=False, markup=False
        )
    part = problem.evaluator.part(evaluations / len(problem.pairs))
    is_small = len(part) < min(MIN_ROWS, len(problem.evaluator))
    if not is_small and len(part) * len(problem.pairs) <= evaluations * len(problem.evaluator):
        what = f"{len(problem.pairs)} options one at a time on {len(part)} rows"
        kind = "KL" if problem.evaluator.task.is_categorical else "MSE"
        try:
            with labeled_bar(f"{LABEL}: measuring {what}", len(problem.pairs)) as advance:
                increases[kind] = measured_loss_increases(problem, part, advance)
        except ConfigError as error:
            get_console().print(
                f"{LABEL}: without measured increases: {error}", highlight=False, markup=False
            )
    return increases


def measured_loss_increases(
    problem: PrecisionProblem, rows: Evaluator, on_pair: Callable[[], None] = lambda: None
) -> LossIncreases:
    """Measures the divergence of the outputs for each choice and option, one evaluation each.

    Args:
        problem: problem with the choices.
        rows: rows of the evaluations.
        on_pair: called after each evaluation.
    Returns: KL divergence in nats for classes, else the mean squared change.
    """
    reference, increases = rows.of(problem.model(None)).logits(), {}
    for pair in problem.pairs:
        problem.layers.switch(problem.only(*pair))
        logits = rows.logits()
        increases[pair] = (
            kl_divergence(reference, logits)
            if rows.task.is_categorical
            else F.mse_loss(logits.double(), reference.double()).item()
        )
        on_pair()
    problem.layers.switch({})
    return increases


def _budgets(problem: PrecisionProblem, goals: Goals) -> dict[str, Goals]:
    """Returns label suffix -> goals, with costs that are objectives turned into constraints."""
    costs = [goal for goal in select_objectives(goals) if goal.name in COSTS]
    if not costs:
        return {"": goals}
    budgets: dict[str, Goals] = {}
    for text in problem.options:
        numbers = costs_if_any(problem, problem.uniform(text))
        if numbers is None:
            continue
        limits = [Constraint(goal.name, numbers[goal.name], goal.direction) for goal in costs]
        budgets[f", {costs[0].name} of {text}"] = [*goals, *limits]
    return budgets


def uniforms_within(problem: PrecisionProblem, goals: Goals) -> dict[str, Config]:
    """Returns uniform configurations within the cost budgets, most expensive first.

    If a circuit is required, configurations without one are skipped.
    """
    limits = [limit for limit in select_constraints(goals) if limit.name in COSTS]
    configs = {}
    for text in reversed(problem.options):
        for fold in problem.folds or (None,):
            config = problem.uniform(text, fold)
            costs = costs_if_any(problem, config)
            if costs and all(limit.excess(costs[limit.name]) <= 0 for limit in limits):
                configs[text + _fold_suffix(problem, fold)] = config
    return configs


def costs_if_any(problem: PrecisionProblem, config: Config) -> dict[str, float] | None:
    """Returns the costs of a configuration, or None if it has no circuit."""
    try:
        return problem.compute_costs(config)
    except NotANumberError:
        return None


def cached(
    path: Path, key: Mapping[str, Any], make: Callable[[], dict[str, Config]]
) -> dict[str, Config]:
    """Caches `make()` on disk under a key, so that a resumed search does not measure again."""
    try:
        cached = read_json(path, "cached")
    except (OSError, ValueError):
        cached = {}
    identity = json.loads(json.dumps(key, default=str))
    if cached.get("of") != identity or not isinstance(cached.get("found"), dict):
        cached = {"of": identity, "found": make()}
        write_json(path, cached)
    return dict(cached["found"])
