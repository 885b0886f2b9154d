"""Writes into memory: results that are read become values, what else is written is refused."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from chop import MaseGraph, passes
from chop.errors import ConfigError

EIGHT = {"by": "type", "default": {"config": {"name": "integer", "width": 8, "frac_width": 4}}}


class Writes(nn.Module):
    """A Linear whose result a function writes into."""

    def __init__(self, write):
        super().__init__()
        self.fc, self.act = nn.Linear(4, 4), nn.ReLU(inplace=True)
        self.register_buffer("total", torch.zeros(4))
        self.write = write

    def forward(self, x):
        y = self.fc(x)
        return self.write(self, y)


def lowered(write):
    torch.manual_seed(0)
    x = torch.randn(3, 4)
    mg = MaseGraph(Writes(write).eval(), dummy_in={"x": x})
    mg, _ = passes.quantize_transform_pass(mg, EIGHT)
    return mg, passes.lower_to_integer_transform_pass(mg.copy(), {"batches": [{"x": x}]})[0]


def by_flag(self, y):
    F.relu(y, inplace=True)
    return y + y


def by_module(self, y):
    self.act(y.view(-1, 2))
    return self.act(y)


def of_a_layout(self, y):
    z = self.act(y.view(2, -1))
    z += z
    return z.view(3, 4)


def joined(self, y):
    z = torch.cat([y, y], 1)
    z.relu_()
    return z, y


def added_to(self, y):
    z = y.relu()
    y.add_(z)
    return y * z


@pytest.mark.parametrize("write", [by_flag, of_a_layout, joined, added_to])
@pytest.mark.sampled(3)
def test_a_result_that_alone_is_read_is_a_value(write):
    quantized, integer = lowered(write)
    for x in torch.randn(2, 3, 4):
        torch.testing.assert_close(integer.model(x), quantized.model(x), atol=0, rtol=0)


def slices(self, y):
    y[:, :3].relu_()
    return y


def transposed(self, y):
    self.act(y.T)
    return y


def viewed_before(self, y):
    view = y[:, :2]
    y.relu_()
    return view


def sums(self, y):
    self.total += y.detach().sum(0)
    return y


def into_out(self, y):
    z = y.detach()
    torch.add(z, z.relu(), out=z.view(-1, 4))
    return z


@pytest.mark.parametrize(
    ("write", "node"),
    [
        (slices, "'relu_'"),
        (transposed, "'act'"),
        (by_module, "'act'"),
        (viewed_before, "'getitem'"),
        (sums, "'total', and integer graphs have no state"),
        (into_out, "'add'"),
    ],
)
@pytest.mark.sampled(3)
def test_what_else_is_written_is_refused_with_its_line(write, node):
    with pytest.raises(ConfigError, match=node) as error:
        lowered(write)
    assert f"{__file__}:" in str(error.value)
