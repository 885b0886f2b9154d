"""Values that are forked and meet again: FIFOs are deep enough, whatever lies on a branch."""

import pytest
import torch
from torch import nn

from chop.actions.emit.job import emit
from chop.actions.emit.settings import EmitConfig
from chop.workloads.workload import Workload

pytestmark = pytest.mark.tools("verilator", "iverilog", "yosys")


class Meeting(nn.Module):
    def __init__(self, meet, features):
        super().__init__()
        self.meet, self.first = meet, nn.Linear(8, features)
        self.other, self.norm = nn.Linear(features, features), nn.LayerNorm(features)

    def forward(self, x):
        return self.meet(self, self.first(x))


def chain(h):
    return torch.tanh(torch.sigmoid(torch.tanh(torch.sigmoid(h))))


def gated(net, h):
    half = h.shape[1] // 2
    return h[:, :half] * torch.sigmoid(h[:, half:])


MEETINGS = {
    "joined": (lambda net, h: torch.cat((torch.relu(h), h, torch.tanh(h)), 1), 16, 16),
    "halves_swapped": (lambda net, h: h[:, 8:] + h[:, :8], 16, 16),
    "gated": (gated, 128, None),
    "beside_a_chain": (lambda net, h: h + chain(h), 64, 16),
    "beside_a_norm": (lambda net, h: h + net.norm(h), 8, 16),
    "beside_a_softmax": (lambda net, h: h * torch.softmax(h, -1), 10, 16),
    "four_readers": (lambda net, h: h + torch.relu(h) + torch.tanh(h) + torch.sigmoid(h), 16, 16),
    "two_layers": (lambda net, h: h + net.norm(net.other(torch.relu(net.other(h)))), 16, 16),
}


@pytest.mark.long
@pytest.mark.parametrize(("meet", "features", "interval"), MEETINGS.values(), ids=MEETINGS)
def test_paths_that_meet_do_not_wait_for_each_other(meet, features, interval, tmp_path):
    x, labels = torch.randn(60, 8), torch.arange(60) % 3
    given = Workload.of(
        Meeting(meet, features), (x[:40], labels[:40]), (x[40:], labels[40:]), device="cpu"
    )
    settings = {"samples": 20, "icarus_samples": 1, "synthesis": False, "calibration_rows": 30}
    config = EmitConfig(out=tmp_path / "out", fold=16, force=True, **settings)
    result = emit(config, given)
    none, *stalled, _first, _second = result["verification"]
    assert len(stalled) == 3 and all(row["equal"] == none["equal"] > 0 for row in stalled)
    if interval is not None:
        assert result["interval"] == interval
        assert abs(none["interval"] - interval) <= 0.03 * interval
