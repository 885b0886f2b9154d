"""Freezing: the same answers from weights that were rounded once."""

import copy
import pickle

import pytest
import torch
from torch import nn

from chop import MaseGraph, passes
from chop.errors import ConfigError
from chop.formats import Integer, parse_format_string
from chop.nn.packed import PackedLinear
from chop.nn.quantized import QuantConv2d, QuantLinear
from chop.quantization.compilation import round_in_steps, takes_steps
from tests.passes.conftest import with_metadata

CHANNEL = "scale_integer:width=8:granularity=channel"
FORMATS = (
    *("8.5", "4.2", "mxint", "mxint:width=4", "mxfp:width=4", "nvfp4", "log:width=8", "binary"),
    *(CHANNEL, "scale_integer:width=8", "group_affine:width=4", "block_fp:width=8"),
)
X = torch.randn(5, 3, 8, 8, generator=torch.Generator().manual_seed(2))


class Net(nn.Module):
    """Operators with a weight of many kinds, two of them with the same one."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.layer_norm, self.first = nn.LayerNorm(8), nn.Linear(8, 16)
        self.hidden, self.again = nn.Linear(16, 16), nn.Linear(16, 16, bias=False)
        self.again.weight = self.hidden.weight
        self.table = nn.Embedding(4, 16)

    def forward(self, x):
        x = self.layer_norm(torch.relu(self.norm(self.conv(x))).mean((2, 3)))
        x = self.hidden(torch.relu(self.first(x))) + self.table(x.argmax(1) % 4)
        return self.again(x)


@pytest.fixture(scope="module")
def graph():
    torch.manual_seed(0)
    net = Net().eval()
    for x in net.norm.running_mean, net.norm.running_var:
        x.uniform_(0.5, 1.5)
    return with_metadata(MaseGraph(net, dummy_in={"x": X}))


def quantized(graph, name, weights_only=False, gradient="identity"):
    number_format = parse_format_string(name)
    operands = ("weight",) if weights_only else ("data_in", "weight", "bias")
    config = dict.fromkeys(operands, number_format)
    rules = {"by": "type", "default": {"config": {**config, "gradient": gradient}}}
    return passes.quantize_transform_pass(graph, rules)[0]


def answers(mg):
    with torch.no_grad():
        return mg.model.eval()(X)


@pytest.mark.parametrize("weights_only", [False, True])
@pytest.mark.parametrize("name", FORMATS)
def test_a_frozen_graph_answers_the_same_bit_for_bit(graph, name, weights_only):
    mg = quantized(graph, name, weights_only)
    expected = answers(mg)
    packed, _ = passes.pack_transform_pass(mg, {"silent": True})
    for before in (mg, packed):
        frozen, info = passes.freeze_transform_pass(before)
        assert torch.equal(answers(frozen), expected)
        assert torch.equal(answers(before), expected)
        done = info["plain" if weights_only else "frozen"]
        assert {"conv", "first", "hidden", "again"} <= set(done) and not info["packed"]
        assert not any(x.requires_grad for x in frozen.model.hidden.parameters())
        assert frozen.model.hidden.weight is frozen.model.again.weight
        again, _ = passes.freeze_transform_pass(mg)
        assert torch.equal(answers(again), expected)


def test_layers_that_round_nothing_else_are_those_of_torch(graph):
    frozen, _ = passes.freeze_transform_pass(quantized(graph, "mxint:width=4", weights_only=True))
    kinds = {name: type(getattr(frozen.model, name)) for name in ("conv", "first", "table")}
    assert kinds == {"conv": nn.Conv2d, "first": nn.Linear, "table": nn.Embedding}
    node = next(node for node in frozen.nodes if node.target == "first")
    assert node.meta["mase"].common.args["weight"].precision == (32,)


def test_learned_scales_and_masks_are_part_of_the_weights(graph):
    mg = quantized(graph, CHANNEL, gradient="lsq")
    mg, _ = passes.prune_transform_pass(mg, {"weight": {"sparsity": 0.5}})
    mg.model(X)
    expected = answers(mg)
    frozen, _ = passes.freeze_transform_pass(mg)
    assert torch.equal(answers(frozen), expected)
    assert not frozen.model.first.is_pruned and (frozen.model.first.weight == 0).sum() >= 60
    assert not frozen.model.first.spec.lsq_operands


def test_large_packed_layers_stay_packed():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 8)).eval()
    x = torch.randn(3, 256)
    mg = quantized(MaseGraph(net, dummy_in={"input": x}), "mxint", weights_only=True)
    mg, _ = passes.pack_transform_pass(mg, {"silent": True})
    frozen, info = passes.freeze_transform_pass(mg)
    assert (info["packed"], info["plain"]) == (["0"], ["2"])
    assert isinstance(frozen.modules["0"], PackedLinear) and type(frozen.modules["2"]) is nn.Linear
    assert torch.equal(frozen.model(x), mg.model(x))


def test_frozen_graphs_are_copied_pickled_and_stored(graph, tmp_path):
    mg = quantized(graph, "8.5")
    frozen, _ = passes.freeze_transform_pass(mg)
    frozen.export(tmp_path / "frozen")
    expected = answers(mg)
    for found in (
        frozen.copy(),
        copy.deepcopy(frozen),
        pickle.loads(pickle.dumps(frozen)),
        MaseGraph.from_checkpoint(tmp_path / "frozen"),
    ):
        assert torch.equal(answers(found), expected)
    assert isinstance(frozen.model.conv, QuantConv2d) and isinstance(
        frozen.model.first, QuantLinear
    )


def test_what_cannot_be_frozen_is_refused(graph):
    with pytest.raises(ConfigError, match="no quantized layer with a weight; quantize it first"):
        passes.freeze_transform_pass(graph)
    with pytest.raises(ConfigError, match="learned scales|scales of its|wait"):
        waiting = quantized(graph, CHANNEL, gradient="lsq")
        passes.freeze_transform_pass(waiting)


EDGES = torch.tensor(
    [0.0, -0.0, 0.5, -0.5, 1.5, 2.5, 1e-45, -1e-40, 3e38, -3e38, torch.inf, -torch.inf, torch.nan]
)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_rounding_in_steps_gives_the_bits_of_the_format(dtype):
    generator = torch.Generator().manual_seed(0)
    bits = torch.randint(-(2**31), 2**31, (4096,), generator=generator).int().view(torch.float32)
    x = torch.cat([EDGES, EDGES / 16, 3 * torch.randn(4096, generator=generator), bits]).to(dtype)
    for width, fraction in ((8, 4), (8, 9), (4, -3), (2, 1), (16, 12), (24, 20), (3, 40)):
        found = round_in_steps(x, Integer(width, fraction).key)
        expected = Integer(width, fraction).round(x)
        assert torch.equal(found.isnan(), expected.isnan())
        assert torch.equal(found.nan_to_num(7), expected.nan_to_num(7))
        assert torch.equal(found.signbit() & ~x.isnan(), expected.signbit() & ~x.isnan())


def test_other_formats_stay_one_operator():
    for name in ("mxint", "scale_integer:width=8", "log:width=8", "binary"):
        assert not takes_steps(parse_format_string(name))
    assert not takes_steps(Integer(32, 8)) and not takes_steps(Integer(8, 4, floor=True))
    assert not takes_steps(parse_format_string("8.auto")) and takes_steps(Integer(24, 8))


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("name", ["8.5", "mxint"])
def test_a_compiled_graph_answers_the_same(graph, name):
    mg = quantized(graph, name)
    _, info = passes.freeze_transform_pass(mg, {"compile": True})
    with torch.no_grad():
        torch.testing.assert_close(info["compiled"](X), answers(mg), rtol=1e-5, atol=1e-5)
