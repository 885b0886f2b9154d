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
    assert estimate.seconds is None
    estimate.begin("training")
    assert estimate.seconds is None
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
    told = io.StringIO()
    console = Console(file=told, force_terminal=terminal, width=100)
    monkeypatch.setattr("rich.progress.get_console", lambda: console)
    with Stages(["float", "quantized", "training"]) as stages:
        with stages.stage("float", "float") as advance:
            advance(0.5)
        with stages.stage("quantized", "PTQ 4.auto"):
            pass
        stages.expect(["quantized"])
        with stages.stage("quantized", "PTQ 3.auto"):
            pass
    lines = [line for line in told.getvalue().splitlines() if line]
    if terminal:
        assert "3/3" in told.getvalue() and "2 of" not in told.getvalue()
    else:
        assert lines == [
            "1 of 3: float, -:--:-- left",
            "2 of 3: PTQ 4.auto, -:--:-- left",
            "3 of 3: PTQ 3.auto, 0:00:00 left",
        ]


def test_stages_that_were_not_needed_are_not_left(monkeypatch: pytest.MonkeyPatch) -> None:
    console = Console(file=io.StringIO(), force_terminal=True)
    monkeypatch.setattr("rich.progress.get_console", lambda: console)
    with Stages(["float", "training"]) as stages, stages.stage("float", "float"):
        pass
    (task,) = stages._bar.tasks
    assert task.finished and task.total == 1


def test_training_and_evaluation_tell_the_share_that_is_done() -> None:
    rows = read_rows({"x": torch.randn(10, 3), "label": torch.arange(10) % 2})
    net, shares = nn.Linear(3, 2), list[float]()
    fit(net, rows, epochs=2, batch_size=5, progress=shares.append)
    assert shares == [0.25, 0.5, 0.75, 1.0]
    shares.clear()
    evaluate(net, rows, batch_size=4, progress=shares.append)
    assert shares == pytest.approx([1 / 3, 2 / 3, 1.0])
    assert progress.work_bar(Estimate([])).tasks == []
