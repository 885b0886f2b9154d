"""Progress of a job: the whole time left, as a bar or as lines."""

from __future__ import annotations

import io

import pytest
import torch
from rich.console import Console
from torch import nn

from chop.runs import progress
from chop.runs.progress import Estimate, Stages
from chop.train import evaluate, fit, read_rows


class _Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_measurement_that_runs_tells_the_time_of_its_kind() -> None:
    clock = _Clock()
    estimate = Estimate(["score", "training", "training"], clock)
    estimate.begin("score")
    clock.now = 2
    estimate.end()
    assert estimate.seconds == 4  # no kind is known to take longer
    estimate.begin("training")
    clock.now = 12
    estimate.advance(0.25)
    assert estimate.seconds == pytest.approx(30 + 40)
    estimate.expect(["training"])
    assert estimate.seconds == pytest.approx(30)
    clock.now = 42
    estimate.end()
    assert estimate.seconds == 0


@pytest.mark.parametrize("terminal", [False, True])
def test_stages_are_a_bar_on_a_terminal_and_lines_in_a_pipe(
    terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    printed = io.StringIO()
    console = Console(file=printed, force_terminal=terminal, width=100)
    monkeypatch.setattr("rich.progress.get_console", lambda: console)
    with Stages(["float", "quantized", "training"]) as stages:
        with stages.stage("float", "float") as advance:
            advance(0.5)
        with stages.stage("quantized", "PTQ 4.auto"):
            pass
        stages.expect(["quantized"])
        with stages.stage("quantized", "PTQ 3.auto"):
            pass
    lines = [line for line in printed.getvalue().splitlines() if line]
    if terminal:
        assert "3/3" in printed.getvalue() and "2 of" not in printed.getvalue()
    else:
        assert lines == [
            "1 of 3: float: done, 0:00:00 left",
            "2 of 3: PTQ 4.auto: done, 0:00:00 left",
            "3 of 3: PTQ 3.auto: done",
        ]


def test_stages_that_were_not_needed_are_not_left(monkeypatch: pytest.MonkeyPatch) -> None:
    console = Console(file=io.StringIO(), force_terminal=True)
    monkeypatch.setattr("rich.progress.get_console", lambda: console)
    with Stages(["float", "training"]) as stages, stages.stage("float", "float"):
        pass
    (task,) = stages._bar.tasks
    assert task.finished and task.total == 1


def test_the_time_left_is_told_from_the_first_measurement_on() -> None:
    clock = _Clock()
    costs = {"training": 30, "quantized": 2}
    estimate = Estimate(["float", "quantized", "training"], clock, costs)
    assert estimate.seconds is None
    estimate.begin("float")
    clock.now = 4
    estimate.end()
    assert estimate.seconds == pytest.approx(4 * 2 + 4 * 30)
    estimate.begin("quantized")
    clock.now = 10
    estimate.end()
    # Six seconds for two units, four for one: training costs thirty of the fastest.
    assert estimate.seconds == pytest.approx(30 * 3)
    estimate.begin("training")
    clock.now = 1000
    assert estimate.seconds == 0  # it takes longer than was thought
    estimate.end()
    assert estimate.seconds == 0


@pytest.mark.parametrize("needed", [0, 1, 3])
def test_the_number_of_steps_never_grows(needed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    printed = io.StringIO()
    console = Console(file=printed, width=100)
    monkeypatch.setattr("rich.progress.get_console", lambda: console)
    totals = list[int]()
    with Stages(["float", "quantized", "training", "quantized"], steps=3) as stages:

        def run(kind: str, label: str) -> None:
            with stages.stage(kind, label):
                totals.append(stages._total)

        run("float", "float")
        run("quantized", "PTQ")
        if not needed:
            stages.expect(())
        else:
            with stages.step():
                for number in range(needed):
                    stages.expect(["training", "quantized"])
                    run("training", f"training {number}")
                    run("quantized", f"QAT {number}")
    assert sorted(totals, reverse=True) == totals and totals[0] == 3
    lines = printed.getvalue().splitlines()
    assert len(lines) == 2 + 2 * needed and stages._done == stages._total == 2 + bool(needed)
    assert [line.partition(":")[0] for line in lines[2:]] == ["3 of 3"] * 2 * needed


def test_one_long_step_in_a_pipe_is_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    printed, clock = io.StringIO(), _Clock()
    console = Console(file=printed, width=100)
    monkeypatch.setattr("rich.progress.get_console", lambda: console)
    monkeypatch.setattr(progress.time, "monotonic", clock)
    with progress.labeled_bar("training", 8) as advance:
        for _ in range(8):
            clock.now += 4
            advance()
    assert printed.getvalue().splitlines() == [
        "training: 38%, 0:00:20 left",
        "training: 75%, 0:00:08 left",
        "training: 100%",
    ]


def test_a_long_stage_in_a_pipe_is_a_line_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    printed, clock = io.StringIO(), _Clock()
    console = Console(file=printed, width=100)
    monkeypatch.setattr("rich.progress.get_console", lambda: console)
    monkeypatch.setattr(progress.time, "monotonic", clock)
    stages = Stages(["training"])
    stages._estimate._now = clock
    with stages, stages.stage("training", "training 4.auto") as advance:
        for share in (0.25, 0.5, 0.75, 1.0):
            clock.now += 40
            advance(share)
    assert printed.getvalue().splitlines() == [
        "training 4.auto: 50%, 0:01:20 left",
        "training 4.auto: 100%",
        "1 of 1: training 4.auto: done",
    ]


def test_training_and_evaluation_tell_the_share_that_is_done() -> None:
    rows = read_rows({"x": torch.randn(10, 3), "label": torch.arange(10) % 2})
    net, shares = nn.Linear(3, 2), list[float]()
    fit(net, rows, epochs=2, batch_size=5, progress=shares.append)
    assert shares == [0.25, 0.5, 0.75, 1.0]
    shares.clear()
    evaluate(net, rows, batch_size=4, progress=shares.append)
    assert shares == pytest.approx([1 / 3, 2 / 3, 1.0])
    assert progress.work_bar(Estimate([])).tasks == []
