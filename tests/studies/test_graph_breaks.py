from pathlib import Path

import pytest
import torch
from torch import nn

from chop.models import load_model
from chop.studies.graph_breaks import compilations

LINES = Path(__file__).read_text().splitlines()


class Decides(nn.Module):
    """Leaves the graph twice."""

    def forward(self, x):
        if x.sum().item() > 0:  # first break
            x = x + 1
        torch._dynamo.graph_break()  # second break
        return x * 2


class Counts(nn.Module):
    """Another graph for seven rows."""

    def forward(self, x, times=1):
        return x * times if len(x) != 7 else x


def get_line(text):
    return next(number for number, line in enumerate(LINES, 1) if line.endswith(text))


def test_breaks_are_found_with_their_lines():
    found = compilations(Decides(), [{"x": torch.ones(2, 3)}])
    assert found.graphs == 3
    assert [Path(place.file).name for place in found.breaks] == ["test_graph_breaks.py"] * 2
    assert [p.line for p in found.breaks] == [get_line("# first break"), get_line("# second break")]
    assert "item()" in found.breaks[0].reason and "\n" not in found.breaks[0].reason


def test_recompiles_are_found_with_the_call_and_the_guard():
    rows = (2, 2, 3, 5, 7)
    found = compilations(Counts(), [{"x": torch.ones(n, 3)} for n in rows])
    assert found.graphs == 1 and found.breaks == ()
    assert [each.call for each in found.recompiles] == [2, 4]
    assert "expected 2, actual 3" in found.recompiles[0].place.reason
    assert "7" in found.recompiles[1].place.reason
    assert found.recompiles[0].place.line == get_line("def forward(self, x, times=1):")


@pytest.mark.long
def test_nothing_is_left_behind_and_models_compile_whole():
    images = [{"pixel_values": torch.rand(2, 1, 8, 8)}] * 3
    for _ in range(2):
        found = compilations(load_model("mlp"), images)
        assert found.graphs == 1 and found.breaks == found.recompiles == ()
