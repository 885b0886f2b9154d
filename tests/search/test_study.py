import itertools
import json
from collections import Counter

import optuna
import pytest

from chop.errors import ConfigError
from chop.search import Choice, Constraint, Goal, Pruned, Search, SearchSpace

NAMES = [f"layer{i}" for i in range(4)]
WEIGHTS = dict(zip(NAMES, (1.0, 3.0, 2.0, 5.0), strict=True))
ACCURACY = Goal("accuracy")
BITS = Constraint("bits", 5.0)


@pytest.fixture
def space():
    widths = {"4": 4, "6": 6, "8": 8}
    return SearchSpace(tuple(Choice(name, widths) for name in NAMES))


class Measured:
    """A measure that counts how often it is asked what."""

    def __init__(self):
        self.asked = Counter()

    def __call__(self, config, report):
        self.asked[json.dumps(config, sort_keys=True)] += 1
        loss = sum(w * {"4": 1.0, "6": 0.3, "8": 0.0}[config[n]] for n, w in WEIGHTS.items())
        return {"accuracy": 1 - loss / 11, "bits": sum(map(int, config.values())) / 4}


def best_by_brute_force(space, budget):
    tried = [(Measured()(config, None), config) for config in space.grid()]
    fits = [(m["accuracy"], config) for m, config in tried if m["bits"] <= budget]
    return max(fits, key=lambda pair: pair[0])


SAMPLERS = ("random", "grid", "tpe", "nsga2", "cmaes", "gp")


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.sampled(3)
def test_no_configuration_is_measured_twice_and_none_is_left_out(sampler, space, tmp_path):
    small = SearchSpace(space.choices[:2])
    measured = Measured()
    until = 6 if sampler == "gp" else 30

    def measure(config, report):
        return measured({**config, "layer2": "4", "layer3": "4"}, report)

    for _ in range(2):  # the second time as after a restart: a new object on the same storage
        search = Search(small, measure, ACCURACY, sampler=sampler, out=tmp_path)
        result = search.run(until=until, progress=False)
    assert set(measured.asked.values()) == {1}
    assert len(result.measured) == len(measured.asked) == min(until, small.size)
    assert len({trial.key for trial in result.measured}) == len(result.measured)


def test_a_budget_is_kept_and_the_best_within_it_found(space, tmp_path):
    search = Search(space, Measured(), (ACCURACY, BITS), sampler="grid", out=tmp_path)
    result = search.run(until=space.size, progress=False)
    accuracy, _ = best_by_brute_force(space, BITS.bound)
    assert result.best.values["accuracy"] == pytest.approx(accuracy)
    assert result.best.values["bits"] <= 5.0
    assert result.excess(result.best) == 0
    assert max(t.values["accuracy"] for t in result.measured) > accuracy
    assert search.study.best_trial.value == pytest.approx(accuracy)
    curve = result.best_so_far()
    assert curve[-1][1] == pytest.approx(accuracy)
    assert all(a <= b for (_, a), (_, b) in itertools.pairwise(curve))


def test_constraints_reach_the_samplers_that_take_them():
    wide = SearchSpace(tuple(Choice(f"layer{i}", {"4": 4, "6": 6, "8": 8}) for i in range(8)))

    def measure(config, report):
        bits = sum(map(int, config.values())) / 8
        return {"accuracy": bits / 8, "bits": bits}

    within = {}
    for sampler in ("tpe", "random"):
        search = Search(wide, measure, (ACCURACY, BITS), sampler=sampler, storage="memory")
        within[sampler] = len(search.run(until=60, progress=False).feasible)
    assert within["tpe"] > 1.3 * within["random"] > 0


def test_until_is_a_total(space, tmp_path):
    measured = Measured()
    for until, total in ((5, 5), (5, 5), (3, 5), (8, 8)):
        search = Search(space, measured, ACCURACY, sampler="random", out=tmp_path)
        assert len(search.run(until=until, progress=False).measured) == total
        assert measured.asked.total() == total


def test_impossible_combinations_are_never_measured():
    choices = (Choice("heads", {"2": 2, "3": 3, "5": 5}), Choice("size", {"64": 64, "96": 96}))
    space = SearchSpace(choices, lambda v: "uneven" if v["size"] % v["heads"] else None)
    asked = []
    measure = lambda config, report: asked.append(config) or {"accuracy": 1.0}  # noqa: E731
    search = Search(space, measure, ACCURACY, sampler="random", storage="memory")
    result = search.run(until=50, progress=False)
    assert len(asked) == len(result.measured) == 3
    assert result.counts["infeasible"] > 0
    assert {t.note for t in result.trials if t.outcome == "infeasible"} == {"uneven"}


def test_pruners_stop_what_is_behind(space):
    steps = Counter()

    def measure(config, report):
        final = Measured()(config, None)["accuracy"]
        for step in range(1, 9):
            steps[json.dumps(config)] += 1
            report(step, final)
        return {"accuracy": final}

    for pruner in ("asha", "hyperband", optuna.pruners.MedianPruner(n_startup_trials=2)):
        steps.clear()
        search = Search(space, measure, ACCURACY, sampler="random", pruner=pruner, storage="memory")
        result = search.run(until=40, progress=False)
        assert result.counts["pruned"] > 3
        assert len(result.measured) + result.counts["pruned"] == 40 == len(steps)
        assert steps.total() < 40 * 8


def test_errors_stop_the_search_and_the_configuration_is_tried_again(space, tmp_path):
    asked, broken = [], True

    def measure(config, report):
        asked.append(config)
        if broken and len(asked) == 3:
            raise RuntimeError("out of memory")
        return {"accuracy": 1.0}

    def search():
        return Search(space, measure, ACCURACY, sampler="random", out=tmp_path)

    with pytest.raises(RuntimeError, match="out of memory"):
        search().run(until=6, progress=False)
    assert search().result().counts == {"measured": 2, "running": 1}
    broken = False
    result = search().run(until=6, progress=False)
    assert result.counts == {"measured": 6}
    assert asked[3] == asked[2] == result.trials[2].config
    assert [trial.begun for trial in result.trials] == [1, 1, 2, 1, 1, 1]


def test_a_measure_that_ends_by_an_error_again_and_again_has_failed(space, tmp_path):
    def measure(config, report):
        if config == space.at(1):
            raise RuntimeError("no such kernel")
        return {"accuracy": 1.0}

    search = Search(space, measure, ACCURACY, sampler="grid", out=tmp_path)
    for _ in range(3):
        with pytest.raises(RuntimeError, match="no such kernel"):
            search.run(until=4, progress=False)
    result = search.run(until=4, progress=False)
    assert result.counts == {"measured": 3, "failed": 1}
    assert result.trials[1].note == "RuntimeError: no such kernel"


def test_interruptions_are_no_errors_of_the_measure(space, tmp_path):
    interrupted = 5

    def measure(config, report):
        nonlocal interrupted
        if interrupted:
            interrupted -= 1
            raise KeyboardInterrupt
        return {"accuracy": 1.0}

    search = Search(space, measure, ACCURACY, sampler="random", out=tmp_path)
    for _ in range(5):
        with pytest.raises(KeyboardInterrupt):
            search.run(until=2, progress=False)
    result = search.run(until=2, progress=False)
    assert result.counts == {"measured": 2} and sum(trial.begun for trial in result.trials) == 7


def test_errors_that_are_caught_count_and_are_not_tried_again(space):
    def measure(config, report):
        if config["layer0"] == "4":
            raise ZeroDivisionError("by none")
        return {"accuracy": 1.0}

    search = Search(
        space, measure, ACCURACY, sampler="grid", storage="memory", catch=(ArithmeticError,)
    )
    result = search.run(until=space.size, progress=False)
    assert result.counts == {"measured": 54, "failed": 27}
    assert {trial.note for trial in result.failed} == {"ZeroDivisionError: by none"}


def test_queued_configurations_come_first(space):
    search = Search(space, Measured(), ACCURACY, sampler="random", storage="memory")
    wanted = dict.fromkeys(NAMES, "8")
    search.enqueue(wanted)
    result = search.run(until=2, progress=False)
    assert result.trials[0].config == wanted
    with pytest.raises(ConfigError, match="did you mean 'layer"):
        search.enqueue({**wanted, "layer": "8"})


def test_any_optuna_sampler_and_callbacks_keep_working(space):
    seen = []
    search = Search(
        space,
        Measured(),
        ACCURACY,
        sampler=optuna.samplers.RandomSampler(seed=0),
        storage="memory",
        callbacks=[lambda study, trial: seen.append(trial.number)],
    )
    result = search.run(until=5, progress=False)
    assert len(result.measured) == 5
    assert seen == [trial.number for trial in result.trials]


@pytest.mark.parametrize(
    "change, message",
    [
        ({"goals": Goal("bits", "minimize")}, "other goals: maximize accuracy, now minimize bits"),
        ({"problem": {"weights": "b"}}, "'weights' was a, now b"),
        ({"space": SearchSpace((Choice("layer0", {"4": 4}),))}, "started with other choices"),
        ({"sampler": "cmaes"}, "started with other options as"),
    ],
)
def test_a_study_goes_on_only_as_the_problem_it_was(change, message, space, tmp_path):
    given = {"space": space, "measure": Measured(), "goals": ACCURACY, "out": tmp_path}
    given |= {"problem": {"weights": "a"}, "sampler": "random"}
    Search(**given).run(until=1, progress=False)
    with pytest.raises(ConfigError, match=message):
        Search(**{**given, **change}).run(until=2, progress=False)


def small(values=(1, 2, 3), **rules):
    return SearchSpace((Choice("x", {f"o{k}": v for k, v in enumerate(values)}),), **rules)


def loss_by(space):
    return lambda config, report: {"loss": float(space.values(config)["x"])}


def not_the_first(values):
    return "o0 is excluded" if values["x"] == 1 else None


def run(space, folder, until=9, measure=None, **given):
    measure = measure or (lambda config, report: {"loss": float(config["x"][1:])})
    search = Search(space, measure, Goal("loss", "minimize"), out=folder, **given)
    return search.run(until=until, progress=False)


@pytest.mark.parametrize("sampler", ["grid", "tpe", "cmaes", "sensitivity"])
def test_a_study_goes_on_only_with_the_rule_it_was_begun_with(sampler, tmp_path):
    given = {"folder": tmp_path, "sampler": sampler}
    best = run(small(), **given).best
    assert best.config == {"x": "o0"}
    with pytest.raises(ConfigError, match="rule 'infeasible': trial . is infeasible now: o0 is"):
        run(small(infeasible=not_the_first), **given)
    assert run(small(), **given).best == best


@pytest.mark.parametrize("storage", ["memory", None])
def test_a_rule_that_changes_its_mind_is_noticed(storage, tmp_path):
    least = {"x": 0}
    space = small(infeasible=lambda values: "small" if values["x"] < least["x"] else None)
    given = {"out": tmp_path, "storage": storage, "sampler": "grid"}
    search = Search(space, loss_by(space), Goal("loss", "minimize"), **given)
    assert search.run(until=9, progress=False).best.config == {"x": "o0"}
    least["x"] = 2
    with pytest.raises(ConfigError, match="trial 0 is infeasible now: small"):
        search.run(until=9, progress=False)


def test_a_study_goes_on_only_if_what_was_excluded_still_is(tmp_path):
    run(small(infeasible=not_the_first), tmp_path, sampler="random")
    with pytest.raises(ConfigError, match="trial . was infeasible, and is not now"):
        run(small(), tmp_path, sampler="random")


def test_what_waits_is_not_measured_where_a_rule_excludes_it_now(tmp_path):
    run(small(), tmp_path, until=1, sampler="grid", start=[{"x": "o1"}, {"x": "o0"}])
    with pytest.raises(ConfigError, match="trial 1 is infeasible now"):
        run(small(infeasible=not_the_first), tmp_path, sampler="grid")


def test_a_study_goes_on_only_if_the_same_configurations_are_one(tmp_path):
    run(small(), tmp_path, sampler="grid")
    as_one = small(canonical=lambda config: {"x": "o0"})
    with pytest.raises(
        ConfigError, match="rule 'canonical' or 'active': trial 1 now has another meaning"
    ):
        run(as_one, tmp_path, sampler="grid")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("storage", ["file", "folder"])
def test_a_study_goes_on_only_with_the_values_it_was_begun_with(workers, storage, tmp_path):
    given = {"sampler": "random", "out": tmp_path}
    if storage == "file":
        given["storage"] = f"sqlite:///{tmp_path}/other.db"
    goal, spaces = Goal("loss", "minimize"), [small(), small((1, 2, 30))]
    first, other = (Search(space, loss_by(space), goal, **given) for space in spaces)
    first.run(until=2, progress=False, workers=workers)
    with pytest.raises(ConfigError, match="other values behind the same option texts of choice"):
        other.run(until=3, progress=False, workers=workers)
    assert len(first.run(until=3, progress=False).measured) == 3


def test_a_study_of_before_values_were_kept_goes_on(tmp_path):
    search = Search(
        small(), loss_by(small()), Goal("loss", "minimize"), out=tmp_path, sampler="random"
    )
    with search.opened() as ledger:
        begun = ledger.document()["search"]
        del begun["values"]
        ledger.set_entry("search", begun)
    assert len(search.run(until=3, progress=False).measured) == 3


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"sampler": "tpee"}, "did you mean 'tpe'"),
        ({"goals": "accuracy"}, "expected Goal or Constraint or a list .* got 'accuracy'"),
        ({"pruner": "ascha"}, "did you mean 'asha'"),
        ({"storage": None}, "needs an `out` folder"),
        ({"storage": "mysql://x/y"}, "kind 'mysql'"),
        ({"goals": BITS}, "without a budget"),
        ({"goals": (ACCURACY, Goal("bits", "minimize")), "sampler": "cmaes"}, "takes 1 objective"),
        ({"goals": (ACCURACY, Goal("bits", "minimize")), "pruner": "asha"}, "a single objective"),
        ({"save": lambda config, folder: None}, "expected `out`"),
    ],
)
def test_wrong_settings_are_named(settings, message, space):
    given = {"goals": ACCURACY, "sampler": "random", "storage": "memory", **settings}
    with pytest.raises(ConfigError, match=message):
        Search(space, Measured(), **given)


def test_wrong_measures_and_totals_are_named(space, tmp_path):
    search = Search(space, lambda c, r: {"acc": 1.0}, ACCURACY, sampler="random", storage="memory")
    with pytest.raises(ConfigError, match="no 'accuracy'"):
        search.run(until=1, progress=False)
    with pytest.raises(ConfigError, match="at least 1"):
        search.run(until=0)
    with pytest.raises(ConfigError, match="need a storage that they share"):
        search.run(until=1, workers=2)


def test_a_search_begins_where_it_is_told_once(space, tmp_path):
    first = space.at(5)

    def make(start=(first,)):
        return Search(space, lambda c, r: {"y": 1.0}, Goal("y"), out=tmp_path, start=start)

    assert make().run(until=1, progress=False).trials[0].config == first
    result = make().run(until=3, progress=False)
    assert [trial.config for trial in result.trials].count(first) == 1
    with pytest.raises(ConfigError, match="is missing"):
        make(start=({},))


def test_a_measure_may_prune_itself(space):
    def measure(config, report):
        raise Pruned("not worth it")

    search = Search(space, measure, ACCURACY, sampler="random", storage="memory")
    result = search.run(until=3, progress=False)
    assert result.counts == {"pruned": 3}
    assert result.best is None and result.trials[0].note == "not worth it"


@pytest.mark.parametrize("sampler", (*SAMPLERS, "sensitivity"))
def test_a_space_without_a_possible_configuration_ends(sampler):
    choices = (Choice("x", {"1": 1, "2": 2}), Choice("y", {"3": 3, "4": 4}))
    space = SearchSpace(choices, infeasible=lambda values: "none can be")
    search = Search(
        space, lambda config, report: {"y": 1.0}, Goal("y"), sampler=sampler, storage="memory"
    )
    result = search.run(until=3, progress=False)
    assert result.best is None and set(result.counts) == {"infeasible"}
    assert result.trials[0].note == "none can be"
