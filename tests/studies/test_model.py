import json

import pytest
import torch
from torch import nn

from chop.errors import ConfigError
from chop.nn.packed import pack
from chop.nn.quantized import QuantLinear
from chop.studies.model import Contender, compare_models, weight_bytes


class Wide(nn.Module):
    """A layer that is used so many times."""

    def __init__(self, times):
        super().__init__()
        self.layer = nn.Linear(256, 256)
        self.times = times

    def forward(self, x):
        for _ in range(self.times):
            y = self.layer(x)
        return {"logits": y}


def inputs(rows):
    return {"x": torch.randn(rows, 256)}


def test_models_are_compared_at_every_batch_size(tmp_path):
    once, twice = Wide(20).eval(), Wide(40).eval()
    twice.load_state_dict(once.state_dict())
    contenders = [Contender("once", once, 1000), Contender("twice", twice)]
    found = compare_models(contenders, inputs, batch_sizes=(4, 64), seconds=0.1, threads=1)
    assert [(row.model, row.batch) for row in found.rows] == [
        ("once", 4),
        ("twice", 4),
        ("once", 64),
        ("twice", 64),
    ]
    for row in found.rows:
        assert row.throughput == pytest.approx(row.batch / row.latency_seconds)
        assert row.weight_bytes == 4 * (256 * 256 + 256)
        assert row.measured.largest_difference == 0
    slower = [row.measured.speed_up for row in found.rows if row.model == "twice"]
    assert slower == pytest.approx([0.5, 0.5], rel=0.25)
    first, second = found.formatted()[:2]
    assert first["times as fast"] == "1 (baseline)" and first["file"] == "1.0 kB"
    assert second["file"] is None
    found.save(tmp_path)
    record = json.loads((tmp_path / "times-batch-64.json").read_text())
    assert [variant["name"] for variant in record["variants"]] == ["once", "twice"]


def test_memory_that_several_share_counts_once():
    model = nn.Sequential(nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False))
    assert weight_bytes(model) == 2 * 256
    model[1].weight = model[0].weight
    model.register_buffer("view", model[0].weight.detach()[:2])
    assert weight_bytes(model) == 256
    assert weight_bytes(nn.ReLU()) == 0


def test_what_small_packed_layers_keep_decoded_is_told():
    layer = QuantLinear(64, 32, config={"weight": {"name": "mxint"}}).eval()
    contenders = [Contender("float", nn.Linear(64, 32).eval()), Contender("packed", pack(layer))]
    found = compare_models(
        contenders, lambda rows: {"input": torch.randn(rows, 64)}, batch_sizes=(1,), seconds=0.05
    )
    assert [row.kept_bytes for row in found.rows] == [0, 4 * 64 * 32]
    assert found.formatted()[1]["decoded copy"] == "8.2 kB"


def test_wrong_models_and_sizes_are_named():
    with pytest.raises(ConfigError, match="'a' is in training mode"):
        compare_models([Contender("a", Wide(1))], inputs)
    with pytest.raises(ConfigError, match=r"1 or more, got \[0\]"):
        compare_models([Contender("a", Wide(1).eval())], inputs, batch_sizes=(0,))
