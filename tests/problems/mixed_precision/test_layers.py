"""What layers cost to compute: multiply-accumulate operations for one row of data."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from chop import MaseGraph, passes
from chop.problems.mixed_precision.layers import Layers
from tests.passes.conftest import with_metadata

ROWS = 3


class Net(nn.Module):
    def __init__(self, call):
        super().__init__()
        self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 4)
        self.call = call

    def forward(self, x):
        return self.call(self.a(x), self.b.weight, self.b.bias)


def macs(mg, x, operators=None):
    layers = Layers(mg, [{"x": x}], operators)
    return {name: layer.macs for name, layer in layers.by_name.items()}


CALLS = {
    "linear": (lambda y, w, b: F.linear(y, bias=b, weight=w), 8 * 4),
    "matmul": (lambda y, w, b: torch.matmul(other=w.t(), input=y), 8 * 4),
    "conv1d": (
        lambda y, w, b: F.conv1d(y[:, None], bias=b[:1], weight=w[None, :1, :3]),
        6 * 3,
    ),
    "scaled_dot_product_attention": (
        lambda y, w, b: F.scaled_dot_product_attention(
            value=y.view(-1, 4, 2)[:, :3], key=y.view(-1, 4, 2)[:, :3], query=y.view(-1, 4, 2)
        ),
        2 * 4 * 3 * 2,
    ),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.sampled(1)
def test_the_order_in_which_arguments_are_written_does_not_count(name):
    call, expected = CALLS[name]
    x = torch.randn(ROWS, 6)
    mg = with_metadata(MaseGraph(Net(call).eval(), dummy_in={"x": x}))
    assert macs(mg, x, [name])[name] == expected


def test_adapters_count_as_part_of_their_layer():
    x = torch.randn(ROWS, 6)
    mg = with_metadata(
        MaseGraph(nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 4)), dummy_in={"input": x})
    )
    adapted, _ = passes.insert_lora_adapter_transform_pass(mg, {"rank": 2})
    layers = Layers(adapted, [{"input": x}])
    assert {name: layer.macs for name, layer in layers.by_name.items()} == {
        "0": 6 * 8 + 2 * (6 + 8),
        "1": 8 * 4 + 2 * (8 + 4),
    }
