"""Integer operators in a graph: copied, exported and loaded with all of their state."""

import copy

import pytest
import torch
from torch import nn

from chop import MaseGraph
from chop.formats import Integer, MXInt, QuantSpec, ScaleInteger
from chop.nn import integer as i
from chop.nn import quantized as q
from chop.nn.integer import Call, Grid
from tests.nn.integer import oracles as o

DATA = Integer(8, 4)
SPEC = QuantSpec(DATA, ScaleInteger(8, granularity="channel"), Integer(8, 6))
EDGE = o.read(DATA)


CHANNELS = i.ChannelMap(torch.tensor([[0.1], [-0.2], [0.0], [3.0]]).double(), torch.ones(4, 1))


def operators():
    """One operator of each kind that takes codes of the shape (3, 4, 8)."""
    torch.manual_seed(0)
    linear = i.IntegerLinear.from_quantized(q.QuantLinear(8, 5, config=SPEC), [EDGE], o.SMALL)
    conv = q.QuantConv1d(4, 6, 3, padding=1, config=SPEC)
    pool = q.QuantAvgPool1d(3, 2, 1, count_include_pad=False, config=SPEC)
    norm = QuantSpec(DATA, DATA, DATA)
    grid = Grid(0.125, -128, 127)
    return [
        linear,
        i.IntegerConv1d.from_quantized(conv, [EDGE], o.SMALL),
        i.IntegerReLU.from_quantized(None, [EDGE], o.SMALL),
        i.IntegerScale(EDGE, 12**-0.5),
        i.IntegerAvgPool1d.from_quantized(pool, [EDGE], o.SMALL, Call([(3, 4, 8)])),
        i.IntegerMean.from_quantized(None, [EDGE], o.SMALL, Call([(3, 4, 8)], {"dim": 1})),
        i.Table.of(torch.tanh, EDGE, grid),
        i.IntegerSoftmax(EDGE, 8, -1, o.SMALL),
        i.IntegerLayerNorm.from_quantized(q.QuantLayerNorm(8, config=norm), [EDGE], o.SMALL),
        i.IntegerBatchNorm(EDGE, CHANNELS),
        i.IntegerThresholds(EDGE, CHANNELS, Grid(0.5, -2, 1)),
        i.Requantize(EDGE, grid),
        i.RequantizeBlocks(EDGE, i.BlockGrid.of(MXInt(4), -4, 3)),
        i.Decode(EDGE),
    ]


class OneOperator(nn.Module):
    """What a graph is captured from, before its module is replaced."""

    def __init__(self):
        super().__init__()
        self.operator = nn.Tanh()

    def forward(self, x):
        return self.operator(x)


@pytest.mark.parametrize("operator", operators(), ids=lambda operator: type(operator).__name__)
@pytest.mark.sampled(3)
def test_a_graph_of_integers_survives_copies_and_files(operator, tmp_path):
    codes = torch.randint(-128, 128, (3, 4, 8))
    expected = operator(codes)
    mg = MaseGraph(OneOperator(), dummy_in={"x": torch.randn(3, 4, 8)})
    (node,) = (node for node in mg.nodes if node.op == "call_module")
    mg.replace(node, operator)
    mg.export(tmp_path / "graph")
    loaded = MaseGraph.from_checkpoint(tmp_path / "graph")
    for graph in (mg, mg.copy(), copy.deepcopy(mg), loaded):
        assert torch.equal(graph.model(codes), expected)
    found = loaded.model.operator
    assert type(found) is type(operator)
    if isinstance(operator, i.IntegerOperator):
        assert (found.out.low, found.out.high) == (operator.out.low, operator.out.high)
        assert torch.equal(found.out.step, operator.out.step)
        assert {x.dtype for x in found.buffers()} <= {torch.int64}
