"""A small model that circuits are emitted of, and the settings that do so quickly."""

from typing import Any

import torch
from torch import nn

from chop.workloads.workload import Workload

SETTINGS: dict[str, Any] = {
    "fold": 12,
    "samples": 12,
    "icarus_samples": 2,
    "synthesis": False,
    "calibration_rows": 40,
    "force": True,  # the models are not trained
}


class Points(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.act, self.last = nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3)

    def forward(self, x):
        return self.last(self.act(self.first(x)))


def workload(test_rows=20):
    torch.manual_seed(0)
    x, labels = torch.randn(40 + test_rows, 6), torch.arange(40 + test_rows) % 3
    return Workload.of(Points(), (x[:40], labels[:40]), (x[40:], labels[40:]), device="cpu")
