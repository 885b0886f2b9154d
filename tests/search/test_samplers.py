"""The default sampler: on problems whose optimum is known, and as a part of a study."""

from __future__ import annotations

import ctypes
import itertools
import sys

import numpy as np
import optuna
import pytest
from scipy.optimize import approx_fprime

from chop.search import Choice, Config, Constraint, Goal, Pruned, Search, SearchSpace
from chop.search.optuna_study import InMemoryStudy
from chop.search.samplers import SensitivitySampler, history, surrogate
from chop.search.samplers.acquisition import last_fit, log_expected_improvement, winsorized
from chop.search.samplers.knapsack import best_sum, by_integer_program, by_merging
from chop.search.samplers.surrogate import Covariance, GaussianProcess, exact_sum

WIDTHS = {"4": 4, "6": 6, "8": 8}


def _space(count: int = 8, **more) -> SearchSpace:
    cost = {text: float(width) / count for text, width in WIDTHS.items()}
    return SearchSpace(tuple(Choice(f"layer{i}", WIDTHS, cost) for i in range(count)), **more)


def _accuracy(space: SearchSpace, config: Config) -> float:
    """Layers lose 4^-width times a weight of their own, and pairs of neighbors a little more."""
    steps = [4.0 ** -(space.values(config)[c.name] - 4) for c in space.choices]
    own = sum(3.0 ** (i % 4) * step for i, step in enumerate(steps))
    both = sum(2.0 * a * b for a, b in itertools.pairwise(steps))
    return 1.0 - 0.002 * (own + both)


def _measure(space: SearchSpace):
    def measure(config, report):
        return {"accuracy": _accuracy(space, config), "bits": space.cost(config)}

    return measure


def _optimum(space: SearchSpace, budget: float) -> float:
    within = (c for c in space.grid() if space.cost(c) <= budget + 1e-9)
    return max(_accuracy(space, config) for config in within)


BUDGETED = (Goal("accuracy"), Constraint("bits", 5.0))


def _search(space, goals, until, **more):
    search = Search(space, _measure(space), goals, storage="memory", **more)
    return search.run(until=until, progress=False)


def test_the_best_configuration_within_a_budget_is_found_in_few_trials():
    space = _space()
    result, random = (_search(space, BUDGETED, 40, sampler=x) for x in ("sensitivity", "random"))
    assert result.best.values["accuracy"] == pytest.approx(_optimum(space, 5.0), abs=1e-12)
    assert result.best.values["bits"] <= 5.0
    assert result.counts == {"measured": 40}
    assert result.best.values["accuracy"] > random.best.values["accuracy"]
    assert sum(t.values["bits"] <= 5.0 for t in result.measured) > 25


@pytest.mark.long
def test_a_budget_that_no_cost_explains_is_learned():
    space = _space(6)

    def latency(config):
        return max(4.0, space.cost(config)) + (config["layer0"] == "8") + (config["layer3"] == "8")

    def measure(config, report):
        return {"accuracy": _accuracy(space, config), "latency": latency(config)}

    goals = (Goal("accuracy"), Constraint("latency", 5.4))
    search = Search(space, measure, goals, storage="memory")
    result = search.run(until=40, progress=False)
    within = sorted(_accuracy(space, c) for c in space.grid() if latency(c) <= 5.4)
    assert result.best.values["accuracy"] >= within[-3]
    assert result.best.values["latency"] <= 5.4


def test_several_objectives_give_a_front_from_end_to_end():
    space = _space(5)
    goals = (Goal("accuracy"), Goal("bits", "minimize"))
    found = {(t.values["accuracy"], t.values["bits"]) for t in _search(space, goals, 60).front}
    every = [(_accuracy(space, c), space.cost(c)) for c in space.grid()]
    true = {p for p in every if not any(q[0] >= p[0] and q[1] <= p[1] and q != p for q in every)}
    assert len(found & true) >= 0.6 * len(true)
    assert {min(p[1] for p in found), max(p[0] for p in found)} == {4.0, max(p[0] for p in every)}


def test_another_seed_gives_other_trials_after_the_first():
    space = _space()
    one, two = ([t.key for t in _search(space, BUDGETED, 15, seed=x).measured] for x in (1, 2))
    assert one != two and one[:3] == two[:3]


def test_a_space_is_used_up_without_a_configuration_twice():
    space = _space(3, infeasible=lambda v: "no" if v["layer0"] == v["layer1"] else None)
    result = _search(space, Goal("accuracy"), 100)
    possible = [space.key(c) for c in space.grid() if space.why_infeasible(c) is None]
    assert sorted(t.key for t in result.measured) == sorted(possible)
    assert "infeasible" not in result.counts


def test_configurations_that_give_the_same_thing_are_proposed_once():
    first = {"layer0": "4"}
    space = _space(3, canonical=lambda c: {**c, **first})
    result = _search(space, Goal("accuracy"), 9)
    assert result.counts == {"measured": 9}
    assert len({t.key for t in result.measured}) == 9


def _tower(depths: int = 4) -> SearchSpace:
    """A depth, and a kind for each layer that there is."""
    kinds = [Choice(f"kind{i}", dict.fromkeys("abc")) for i in range(depths)]
    depth = Choice("depth", {str(d): d for d in range(1, depths + 1)})
    return SearchSpace(
        (depth, *kinds), active=lambda v: ["depth", *(f"kind{i}" for i in range(v["depth"]))]
    )


@pytest.mark.long
def test_choices_that_do_not_count_are_not_varied():
    space = _tower()
    best = {"depth": "3", "kind0": "b", "kind1": "c", "kind2": "a", "kind3": "a"}

    def measure(config, report):
        live = space.active(space.values(config))
        right = sum(config[name] == best[name] for name in live if name != "depth")
        return {"score": right - 0.7 * int(config["depth"]) * (config["depth"] != "3")}

    search = Search(space, measure, Goal("score"), storage="memory")
    result = search.run(until=30, progress=False)
    assert result.counts == {"measured": 30}
    assert all(t.config == space.folded(t.config) for t in result.measured)
    assert result.best.config == best
    used_up = Search(space, measure, Goal("score"), storage="memory")
    assert used_up.run(until=200, progress=False).counts["measured"] == 3 + 9 + 27 + 81


def test_a_process_is_told_what_does_not_count_as_an_option_of_its_own():
    space = _tower(2)
    coding = history.Coding(space)
    codes = np.array([[0, 2, 1], [1, 2, 1]])
    assert coding.active(codes).tolist() == [[True, True, False], [True, True, True]]
    assert coding.marked(codes).tolist() == [[0, 2, 3], [1, 2, 1]]
    assert {len(line) for line in coding.places} == {3, 4}
    plain = history.Coding(_space(3))
    assert plain.active(codes).all() and plain.marked(codes).tolist() == codes.tolist()


@pytest.mark.long
def test_a_local_optimum_is_left():
    # All options at "4" are best but for one far combination that no single change leads to.
    space, far = _space(6), dict.fromkeys((f"layer{i}" for i in range(2)), "8")

    def measure(config, report):
        low = sum(config[name] == "4" for name in space.by_name)
        return {"score": low + 5.0 * all(config[n] == t for n, t in far.items())}

    def changes(trial, best):
        return sum(trial.config[name] != best[name] for name in best)

    search = Search(space, measure, Goal("score"), storage="memory")
    result = search.run(until=60, progress=False)
    assert result.best.config == {**dict.fromkeys(space.by_name, "4"), **far}
    late = [changes(t, result.best.config) for t in result.measured[-20:]]
    assert max(late) >= 4 and min(late) <= 2


def test_spaces_without_costs_and_with_uneven_choices_are_searched():
    space = SearchSpace(
        (
            Choice("kind", {"linear": 0, "identity": 1}),
            Choice("size", {str(k): k for k in range(7)}),
            Choice("fixed", {"only": 1}),
        )
    )

    def measure(config, report):
        values = space.values(config)
        return {"score": -((values["size"] - 4) ** 2) - 3 * values["kind"]}

    result = Search(space, measure, Goal("score"), storage="memory").run(until=9, progress=False)
    assert result.best.config == {"kind": "linear", "size": "4", "fixed": "only"}


def test_infinite_pruned_and_failed_trials_are_lived_with():
    space = _space(4)

    def measure(config, report):
        if config["layer0"] == "4":
            report(1, 0.0)
            raise Pruned("hopeless")
        if config["layer1"] == "4":
            raise ArithmeticError("diverged")
        loss = float("inf") if config["layer2"] == "4" else 1 - _accuracy(space, config)
        return {"loss": loss}

    search = Search(
        space, measure, Goal("loss", "minimize"), storage="memory", catch=(ArithmeticError,)
    )
    result = search.run(until=40, progress=False)
    assert set(result.counts) == {"measured", "pruned", "failed"}
    assert result.best.config == dict.fromkeys(space.by_name, "8")
    assert len({t.key for t in result.trials}) == 40


def test_workers_that_see_one_another_running_propose_different_configurations():
    space = _space()
    study = optuna.create_study(direction="maximize")
    running = []
    for number in range(12):
        study.sampler = SensitivitySampler(space, seed=number)
        trial = study.ask()
        config = space.suggest(trial)
        running.append((trial, config))
        if len(running) == 4:
            done, known = running.pop(0)
            study.tell(done, _accuracy(space, known))
    proposed = [space.key(space.from_params(t.params)) for t in study.get_trials()]
    assert len(set(proposed)) == 12


@pytest.mark.long
def test_what_is_kept_between_trials_changes_no_proposal():
    space = _space()

    def forgotten(kept):
        def measure(config, report):
            if not kept:
                history.get_coding.cache_clear()
                surrogate._settings.cache_clear()
            return _measure(space)(config, report)

        search = Search(space, measure, BUDGETED, storage="memory")
        return [t.key for t in search.run(until=40, progress=False).measured]

    assert forgotten(kept=True) == forgotten(kept=False)


def test_a_history_read_in_parts_equals_one_read_at_once():
    space, draw = _space(4), np.random.default_rng(0)
    own = InMemoryStudy(
        "parts", space, (Goal("loss", "minimize"),), "text", optuna.pruners.NopPruner()
    )
    study, coding, running = own.study, history.Coding(space), []
    study.sampler = optuna.samplers.RandomSampler(seed=0)
    for number in range(60):
        running.append(study.ask(space.distributions() if draw.random() < 0.8 else None))
        excess = {name: draw.normal() for name in ("size", "bits")[: number // 20]}
        own.constrain(running[-1], excess)
        if draw.random() < 0.3:
            running[-1].report(draw.normal(), 1)
        if draw.random() < 0.8:
            state = optuna.trial.TrialState[draw.choice(["COMPLETE", "PRUNED", "FAIL"])]
            value = draw.normal() if state.name == "COMPLETE" else None
            study.tell(running.pop(draw.integers(len(running))), value, state=state)
        while number % 10 == 9 and running:
            study.tell(running.pop(), draw.normal())
        at = number if draw.random() < 0.8 else int(draw.integers(number + 1))
        parts = history.read_history(study, coding, at)
        whole = history.read_history(study, history.Coding(space), at)
        for name, expected in vars(whole).items():
            np.testing.assert_equal(getattr(parts, name), expected, err_msg=name)
    assert coding.finished[study][0] > 40 and whole.dropped and len(whole.limits) == 2


def test_settings_are_found_again_for_a_sixteenth_more_trials():
    for count in range(1, 3000):
        found = last_fit(count)
        assert count * 15 / 16 < found <= count
        assert last_fit(found) == found
    assert len({last_fit(count) for count in range(1000)}) < 130


@pytest.mark.parametrize("known", [0, 8])
def test_proposals_made_at_the_same_moment_differ(known):
    space = _space()
    study = optuna.create_study(direction="maximize", sampler=SensitivitySampler(space))
    study.optimize(lambda trial: _accuracy(space, space.suggest(trial)), n_trials=known)
    trials = [study.ask() for _ in range(4)]
    proposals = [space.key(space.suggest(trial)) for trial in reversed(trials)]
    assert len(set(proposals)) == 4


def test_a_study_of_plain_optuna_is_gone_on_with():
    space = _space()
    random = optuna.samplers.RandomSampler(seed=0)
    study = optuna.create_study(direction="maximize", sampler=random)
    study.optimize(lambda trial: _accuracy(space, space.suggest(trial)) * 1.0, n_trials=10)
    study.sampler = SensitivitySampler(space)
    study.optimize(
        lambda trial: (
            _accuracy(space, space.suggest(trial)) + trial.suggest_float("other", 0.0, 1e-9)
        ),
        n_trials=5,
    )
    assert study.best_trial.number >= 10
    assert study.best_value > 0.999


def test_the_integer_program_equals_trying_everything():
    draw = np.random.default_rng(0)
    counts = (3, 1, 4, 2)
    worth, weight, other = draw.normal(size=(3, 4, 4))
    everything = list(itertools.product(*map(range, counts)))

    def total(table, code):
        return sum(table[d, k] for d, k in enumerate(code))

    for most in (-1.0, 0.0, 2.0):
        limits = [(weight, most), (other, 1.0)]
        within = [c for c in everything if total(weight, c) <= most and total(other, c) <= 1.0]
        found = best_sum(worth, counts, limits)
        assert tuple(found) == max(within, key=lambda code: total(worth, code))
    assert tuple(best_sum(worth, counts)) == max(everything, key=lambda code: total(worth, code))
    assert best_sum(worth, counts, [(weight, -100.0)]) is None


def test_a_limit_that_leaves_exactly_one_way_is_kept():
    for seed in range(200):
        draw = np.random.default_rng(seed)
        counts = draw.integers(1, 6, size=int(draw.integers(1, 12))).tolist()
        worth, total = draw.normal(size=(2, len(counts), 5))
        least = [int(total[d, :count].argmin()) for d, count in enumerate(counts)]
        most = sum(total[d, k] for d, k in reversed(list(enumerate(least))))
        assert by_merging(worth, counts, total, most).tolist() == least


def test_the_integer_program_prints_nothing(capfd):
    # The solutions of these make HiGHS print, as long as nobody keeps it from it.
    for seed in (1032, 1212, 1680):
        draw = np.random.default_rng(seed)
        worth, total = draw.normal(size=(12, 6)), draw.random((12, 6)) ** 3
        limit = total.min(1).sum() + draw.random() * 3
        sys.stdout.write(f"before {seed}\n")
        assert by_integer_program(worth, [6] * 12, [(total, limit)]) is not None
    ctypes.CDLL(None).fflush(None)
    assert capfd.readouterr().out == "before 1032\nbefore 1212\nbefore 1680\n"


def test_the_gradient_of_the_likelihood_is_that_of_finite_differences():
    draw = np.random.default_rng(0)
    apart = np.abs(np.subtract.outer(*[np.linspace(0, 1, 3)] * 2)) * np.ones((4, 1, 1))
    taken = np.eye(3)[draw.integers(0, 3, (12, 4))]
    logs = np.array([0.2, -0.5, 0.3, -1.0, 1.0, -0.3, 0.1, -0.4, 0.6, 0.0])
    targets = draw.normal(size=12)
    _, gradient = Covariance(apart, taken, logs).loss(targets)
    numeric = approx_fprime(logs, lambda at: Covariance(apart, taken, at).loss(targets)[0], 1e-6)
    np.testing.assert_allclose(gradient, numeric, rtol=1e-4, atol=1e-4)


def test_the_process_equals_the_textbook_formula_and_learns_sums():
    draw = np.random.default_rng(0)
    codes = draw.integers(0, 3, (40, 5))
    effects = draw.normal(size=(5, 3))
    values = 7.0 + sum(effects[d][codes[:, d]] for d in range(5))
    process = GaussianProcess(codes[:30], values[:30], [np.linspace(0, 1, 3)] * 5)
    mean, deviation = process.predict(codes[30:])
    assert np.abs(mean - values[30:]).max() < 0.1 * values.std()
    assert (np.abs(mean - values[30:]) < 4 * deviation).all()
    constant, worth = process.constant, process.worth
    added = constant + sum(worth[d][codes[30:, d]] for d in range(5))
    assert np.corrcoef(added, values[30:])[0, 1] > 0.99


def test_single_changes_are_predicted_as_the_candidates_that_they_make():
    draw = np.random.default_rng(0)
    counts = np.array([2, 4, 3, 4])
    codes = draw.integers(counts, size=(30, 4))
    costs = draw.normal(size=(4, 4))
    totals = costs[np.arange(4), codes].sum(1)
    values = totals**2 + draw.normal(size=30)
    places = [np.linspace(0, 1, count) for count in counts]
    start = np.array([1, 3, 0, 2])
    choice = np.repeat(np.arange(4), counts)
    option = np.concatenate([np.arange(count) for count in counts])
    changed = np.repeat(start[None, :], len(choice), axis=0)
    changed[np.arange(len(choice)), choice] = option
    for model in (GaussianProcess(codes, values, places), exact_sum(codes, totals, costs)):
        mean, deviation = model.predict(changed)
        np.testing.assert_allclose(
            model.neighbor_means(start)[choice, option], mean, rtol=1e-8, atol=1e-8
        )
        found = model.predict_neighbors(start, choice, option)
        np.testing.assert_allclose(found, (mean, deviation), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.sampled(3)
def test_merging_finds_what_the_integer_program_finds(seed):
    draw = np.random.default_rng(seed)
    counts = draw.integers(1, 8, draw.integers(1, 16)).tolist()
    choices, shape = np.arange(len(counts)), (len(counts), max(counts))
    total = draw.integers(-3, 9, shape).astype(float) if seed % 2 else draw.uniform(0, 9, shape)
    worth = draw.normal(size=shape) + (total if seed % 3 else 0.0)
    ends = [[of(row[:n]) for row, n in zip(total, counts, strict=True)] for of in (min, max)]
    low, high = map(sum, ends)
    for share in (-0.05, 0.0, draw.uniform(), 1.05):
        most = low + share * (high - low) + 1e-9 * (share == 0)
        found = by_merging(worth, counts, total, most)
        expected = by_integer_program(worth, counts, [(total, most)])
        assert (found is None) == (expected is None) == (most < low)
        if found is not None:
            assert (found < counts).all() and total[choices, found].sum() <= most + 1e-9
            best = worth[choices, expected].sum()
            assert worth[choices, found].sum() == pytest.approx(best, rel=1e-4, abs=1e-6)


def test_equal_values_and_two_trials_are_enough_to_fit():
    places = [np.linspace(0, 1, 3)] * 2
    process = GaussianProcess(np.array([[0, 0], [2, 2]]), np.array([5.0, 5.0]), places)
    mean, deviation = process.predict(np.array([[1, 1]]))
    assert mean == pytest.approx(5.0)
    assert np.isfinite(deviation).all() and (deviation > 0).all()


def test_numbers_that_the_costs_explain_are_known_exactly():
    codes = np.array([[0, 1], [1, 0], [1, 1], [0, 0]])
    costs = np.array([[1.0, 2.0], [10.0, 40.0]])
    totals = np.array([41.0, 12.0, 42.0, 11.0])
    model = exact_sum(codes, 3.0 * totals - 1.0, costs)
    assert model.predict(np.array([[1, 1]]))[0] == pytest.approx(125.0)
    assert exact_sum(codes, totals**2, costs) is None
    assert exact_sum(codes, totals, None) is None
    assert exact_sum(codes[:2], totals[:2], costs) is None


def test_the_logarithm_of_the_improvement_holds_from_end_to_end():
    from mpmath import mp, mpf, npdf
    from mpmath import ncdf as cdf

    mp.dps = 40
    z = np.array([-1e6, -300.0, -40.0, -5.0, -1.0, -0.999, 0.0, 3.0, 50.0])
    exact = [float(mp.log(npdf(mpf(v)) + mpf(v) * cdf(mpf(v)))) for v in z[2:]]
    np.testing.assert_allclose(log_expected_improvement(z)[2:], exact, rtol=1e-9, atol=1e-12)
    assert (np.diff(log_expected_improvement(z)) > 0).all()
    assert np.isfinite(log_expected_improvement(z)).all()


def test_a_collapse_is_drawn_in_and_a_plateau_at_the_top_is_not():
    values = np.array([1.0, 0.9, 0.8, -1e9])
    assert winsorized(values).tolist() == pytest.approx([1.0, 0.9, 0.8, 1.0 - 6 * 0.2])
    plateau = np.array([1.0, 1.0, 1.0, 0.9, 0.5])
    assert winsorized(plateau).tolist() == plateau.tolist()
    assert winsorized(np.full(3, 2.0)).tolist() == [2.0, 2.0, 2.0]
