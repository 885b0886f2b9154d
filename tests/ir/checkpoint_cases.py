"""A model with a little of everything, and how its checkpoints are compared."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chop.ir.graph import MaseGraph


class Net(nn.Module):
    """A little of everything: convolution, batch norm, recurrence, attention, tied weights."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(3, 8, 3, padding=1, padding_mode="circular")
        self.norm = nn.BatchNorm1d(8)
        self.rnn = nn.LSTM(8, 8, num_layers=2, batch_first=True, dropout=0.5)
        self.encode = nn.Linear(8, 8)
        self.decode = nn.Linear(8, 8)
        self.decode.weight = self.encode.weight
        self.drop = nn.Dropout(0.5)
        self.register_buffer("shift", torch.randn(8), persistent=False)
        self.register_buffer("steps", torch.tensor(3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.conv(x)).transpose(1, 2)
        x, _ = self.rnn(x)
        x = F.gelu(self.encode(x) + self.shift) / self.steps
        x = F.scaled_dot_product_attention(x, x, x, dropout_p=0.1 if self.training else 0.0)
        return self.decode(self.drop(x))


@cache
def captured() -> MaseGraph:
    torch.manual_seed(0)
    return MaseGraph(Net(), dummy_in={"x": torch.randn(2, 3, 16)})


def net() -> MaseGraph:
    return captured().copy()


X = torch.randn(5, 3, 16, generator=torch.Generator().manual_seed(1))


def run(mg: MaseGraph, x: Tensor = X, train: bool = False) -> Tensor:
    torch.manual_seed(7)
    return mg.model.train(train)(x)


def assert_same(mg: MaseGraph, other: MaseGraph, x: Tensor = X) -> None:
    assert torch.equal(run(mg, x), run(other, x))
    assert torch.equal(run(mg, x, train=True), run(other, x, train=True))
    assert mg.diff(other) == []
    assert list(mg.model.state_dict()) == list(other.model.state_dict())


def reload(mg: MaseGraph, folder: Path, **kwargs: Any) -> MaseGraph:
    mg.export(folder / "graph")
    return MaseGraph.from_checkpoint(folder / "graph", **kwargs)


def edit(folder: Path, change: Any, name: str = "graph.mz") -> None:
    path = folder / name
    document = json.loads(path.read_text())
    document.pop("sha256", None)
    change(document)
    path.write_text(json.dumps(document))
