"""The figures of search jobs: the same after a kill."""

import multiprocessing
import os
import signal

import pytest
import torch

from chop.actions.search.job import run_search
from chop.actions.search.precision import JOB, PrecisionConfig
from chop.problems.mixed_precision.problem import PrecisionProblem
from chop.report.search_figures import search_figures
from chop.search import Choice, Goal, Result, SearchSpace, TrialRecord
from chop.workloads.workload import Workload
from tests.workloads import plain, rows


def workload():
    return Workload(plain(), "classifier", "points", *rows(), torch.device("cpu"), 1, 1e-3)


@pytest.fixture
def no_training(monkeypatch):
    monkeypatch.setattr("chop.workloads.load.load_workload", lambda config: workload())


def killed_at(call, config):
    measure, calls = PrecisionProblem.measure, []

    def killing(self, *given):
        calls.append(given)
        if len(calls) == call:
            os.kill(os.getpid(), signal.SIGKILL)
        return measure(self, *given)

    PrecisionProblem.measure = killing
    run_search(JOB, config)


def figures(out):
    """Name -> bytes."""
    return {file.name: file.read_bytes() for file in out.rglob("*.*g")}


@pytest.mark.long
def test_a_killed_search_draws_the_figures_of_an_unbroken_one(tmp_path, no_training):
    told = {"widths": "2,4,8", "trials": 5, "goals": ("accuracy",), "search_rows": 400}
    config = PrecisionConfig(out=tmp_path / "killed", **told)
    process = multiprocessing.get_context("fork").Process(target=killed_at, args=(3, config))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    run_search(JOB, config)
    run_search(JOB, PrecisionConfig(out=tmp_path / "unbroken", **told))
    killed, unbroken = (figures(tmp_path / name) for name in ("killed", "unbroken"))
    assert (
        {"accuracy.svg", "best-so-far.svg", "front.png", "formats.svg"}
        <= unbroken.keys()
        == killed.keys()
    )
    assert [name for name in unbroken if killed[name] != unbroken[name]] == []


@pytest.mark.parametrize("value", [float("-inf"), 0.5])
def test_nothing_is_drawn_of_a_search_without_a_finite_number(value, tmp_path):
    space = SearchSpace((Choice("x", {"1": 1, "2": 2}),))
    trials = tuple(
        TrialRecord(i, "measured", {"x": text}, text, {"accuracy": value})
        for i, text in enumerate(("1", "2"))
    )
    result = Result((Goal("accuracy"),), trials)
    files = search_figures("tpe", result, space, "nas", ("accuracy",))
    assert list(files) == (["best-so-far.svg", "best-so-far.png"] if value == 0.5 else [])
    for name, draw in files.items():
        draw(tmp_path / name)
    assert len(list(tmp_path.iterdir())) == len(files)
