"""What follows from measured trials: the best, the front, the order."""

import itertools
import random

from chop.search import Constraint, Goal, Result, TrialRecord


def _trials(points):
    return tuple(
        TrialRecord(i, "measured", {"x": str(i)}, str(i), dict(zip("yzw", point, strict=False)))
        for i, point in enumerate(points)
    )


def test_ranks_are_fronts_of_repeated_comparison():
    draw = random.Random(0)
    losses = [(draw.randrange(8), draw.randrange(8), draw.randrange(3)) for _ in range(80)]
    trials = _trials(losses)
    goals = tuple(Goal(name, "minimize") for name in "yzw")
    result = Result(goals, trials)
    rest, ranked = list(trials), []
    while rest:
        kept = []
        for a in sorted(rest, key=lambda trial: (losses[trial.number], trial.number)):
            others = (losses[b.number] for b in rest if losses[b.number] != losses[a.number])
            beaten = any(
                all(p <= q for p, q in zip(o, losses[a.number], strict=True)) for o in others
            )
            if not beaten and all(losses[k.number] != losses[a.number] for k in kept):
                kept.append(a)
        assert ranked or result.front == kept
        ranked += kept
        rest = [trial for trial in rest if trial not in kept]
    assert result.ranked == ranked
    assert [result.top(count) for count in (1, 5, 40)] == [ranked[:n] for n in (1, 5, 40)]


def test_one_objective_ranks_by_value_then_by_age():
    result = Result((Goal("y"),), _trials([(1.0,), (3.0,), (2.0,), (3.0,)]))
    assert [trial.number for trial in result.ranked] == [1, 3, 2, 0]
    assert result.front == [result.best] and result.best.number == 1


def test_beyond_the_budgets_shares_count_not_units():
    goals = (Goal("y"), Constraint("y", 0.5, "maximize"), Constraint("z", 1000.0))
    points = [(0.1, 1000.0), (0.5, 1100.0), (0.5, 1001.0), (0.5, 1000.0)]
    result = Result(goals, _trials(points))
    assert [trial.number for trial in result.ranked] == [3, 2, 1, 0]
    assert [trial.number for trial in result.feasible] == [3]
    assert all(a <= b for a, b in itertools.pairwise(map(result.excess, result.ranked)))


def test_best_so_far_counts_what_was_pruned_or_failed():
    outcomes = ("pruned", "measured", "cached", "failed", "infeasible", "measured", "running")
    values = {"measured": {"y": 1.0}, "cached": {"y": 9.0}}
    trials = [TrialRecord(i, name, values=values.get(name, {})) for i, name in enumerate(outcomes)]
    assert Result((Goal("y"),), tuple(trials)).best_so_far() == [(2, 1.0), (3, 1.0), (4, 1.0)]


def test_nothing_measured_has_no_best():
    result = Result((Goal("y"),), (TrialRecord(0, "infeasible", note="33 is no multiple of 2"),))
    assert result.best is None and result.front == result.ranked == result.best_so_far() == []
    assert result.why_nothing.endswith("; trial 0: 33 is no multiple of 2")
