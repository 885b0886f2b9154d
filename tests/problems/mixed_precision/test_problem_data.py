"""Mixed precision on real models: better than one width everywhere at as many bits."""

import importlib.util
import sys
from argparse import Namespace
from pathlib import Path

import pytest

from chop.problems.mixed_precision.problem import PrecisionProblem
from chop.problems.mixed_precision.warm_start import warm_start
from chop.search import Constraint, Goal, Search
from chop.train.evaluator import Evaluator
from chop.workloads.workload import raise_to_graph

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"

pytestmark = [pytest.mark.data, pytest.mark.slow]


@pytest.fixture
def benchmark(monkeypatch):
    """The script whose models these are."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    name = "mixed_precision"
    spec = importlib.util.spec_from_file_location(name, BENCHMARKS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    sys.modules.pop("resnet20", None)


@pytest.mark.long  # real models are judged a hundred times
@pytest.mark.parametrize(
    ("name", "rows", "width", "gain"),
    [
        ("resnet20", 300, 5, 0.03),
        ("bert-tiny-imdb", 120, 3, 0.0),
    ],
)
def test_mixed_beats_uniform_at_as_many_bits(benchmark, data_folder, name, rows, width, gain):
    workload = benchmark.MODELS[name](Namespace(data=data_folder, rows=rows))
    searched = workload.train.spread(100)
    widths = {"width": (2, 3, 4, 5, 6, 8)}
    problem = PrecisionProblem(raise_to_graph(workload), workload.train, searched, ranges=widths)
    goals = [Goal("kl", "minimize"), Constraint("bits", float(width))]
    start = list(warm_start(problem, workload.train, goals, evaluations=10).values())
    search = Search(problem.space, problem.measure, goals, storage="memory", start=start)
    found = search.run(30, progress=False)
    unseen = Evaluator(problem.layers.mg.model, workload.test)
    problem.layers.switch(problem.formats(found.best.config))
    mixed = unseen.scores(unseen.logits())["accuracy"]
    uniform = problem.uniform(f"{width}.mse")
    problem.layers.switch(problem.formats(uniform))
    assert found.best.values["bits"] <= width
    assert found.best.values["kl"] < problem.score(problem.formats(uniform))["kl"]
    problem.layers.switch(problem.formats(uniform))
    assert mixed >= unseen.scores(unseen.logits())["accuracy"] + gain
