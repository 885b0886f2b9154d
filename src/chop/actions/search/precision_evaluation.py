"""Evaluation of a precision search and its baselines, on search rows and test rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from chop.actions.search.precision_subject import PrecisionSubject
from chop.problems.mixed_precision.costs import COSTS
from chop.problems.mixed_precision.held_out import HeldOutRows, HeldOutScore
from chop.problems.mixed_precision.warm_start import costs_if_any
from chop.runs.progress import labeled_bar
from chop.search import Config, Result, TrialRecord
from chop.search.objective import select_constraints, select_objectives


@dataclass(frozen=True)
class SearchEvaluation:
    """Scores of a search's configurations and baselines, by their labels in the table.

    Attributes:
        best: label of the best trial, or of the nearest one if none is within the budgets.
        values: values on the search rows.
        scores: scores on the test rows; among searched configurations, only of the best one.
        verdict: gain of the search over its closed-form baseline, for a line; "" without one.
        compared: the verdict as a sentence.
    """

    best: str
    values: Mapping[str, Mapping[str, float]]
    scores: Mapping[str, HeldOutScore]
    verdict: str = ""
    compared: str = ""


def best_trials(result: Result) -> list[TrialRecord]:
    """Returns the front, or the nearest trial if none is within the budgets."""
    return result.front or result.ranked[:1]


def evaluate_search(
    subject: PrecisionSubject, result: Result, test: HeldOutRows
) -> SearchEvaluation:
    """Measures the baselines, and compares the best configuration with them.

    Args:
        subject: subject with the problem that measures.
        result: trials of the search.
        test: rows that no trial saw.
    """
    problem, begin, space = subject.problem, subject.begin, subject.search.space
    searched = {f"trial {trial.number}": trial.config for trial in best_trials(result)}
    best = next(iter(searched))
    compares = subject.config.begins_warm
    uniforms = {text: problem.uniform(text) for text in problem.options} if compares else {}
    chosen_ahead = {
        label: chosen
        for label, chosen in {**uniforms, **begin}.items()
        if costs_if_any(problem, chosen) is not None
    }
    plain = {"float": None, **chosen_ahead}
    known = {space.key(trial.config): trial.values for trial in result.measured}
    values: dict[str, Mapping[str, float]] = {}
    scores: dict[str, HeldOutScore] = {}
    tested: dict[str | None, HeldOutScore] = {}
    listed = {**plain, **searched}
    with labeled_bar("evaluating baselines and the best trial", len(listed)) as advance:
        for label, chosen in listed.items():
            if label in plain or label == best:
                key = None if chosen is None else space.key(chosen)
                if key not in tested:  # the best trial may be a baseline
                    tested[key] = test.score(chosen)
                scores[label] = tested[key]
            if chosen is None:
                values[label] = problem.score({}) | problem.costs({})
            else:
                measured = known.get(space.key(chosen))
                values[label] = measured or problem.measure(chosen, _ignore_report)
            advance()
    baseline = _baseline(result, begin, values)
    if baseline is None:
        return SearchEvaluation(best, values, scores)
    return SearchEvaluation(
        best, values, scores, *test.compare(scores[best], scores[baseline], baseline)
    )


def _ignore_report(step: int, value: float) -> None:
    """Ignores intermediate values: a row of the table is not pruned."""


def _baseline(
    result: Result, begin: Mapping[str, Config], values: Mapping[str, Mapping[str, float]]
) -> str | None:
    """Returns the label of the better closed-form assignment within the budgets.

    Returns: None if there are several objectives, or no such configuration.
    """
    objectives = select_objectives(result.goals)
    if result.best is None or len(objectives) > 1 or objectives[0].name in COSTS:
        return None
    limits = select_constraints(result.goals)
    within = [
        label
        for label in begin
        if all(limit.excess(values[label][limit.name]) <= 0 for limit in limits)
    ]
    goal = objectives[0]
    return min(within, key=lambda label: goal.loss(values[label][goal.name]), default=None)
