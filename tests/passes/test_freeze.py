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
from chop.quantization.compilation import round_in_steps, takes_steps, with_steps
from tests.passes.conftest import with_metadata

CHANNEL = "scale_integer:width=8:granularity=channel"
FORMATS = (
    *("8.5", "4.2", "mxint", "mxint:width=4", "mxfp:width=4", "nvfp4", "log:width=8", "binary"),
    *(CHANNEL, "scale_integer:width=8", "group_affine:width=4", "block_fp:width=8"),
)
X = torch.randn(5, 3, 8, 8, generator=torch.Generator().manual_seed(2))


WHOLE_NUMBERS = ("8.5", "4.2", "scale_integer:width=8")
"""Formats whose small packed products are those of integers of up to 8 bits."""


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


@pytest.mark.sampled(5)
@pytest.mark.parametrize("weights_only", [False, True])
@pytest.mark.parametrize("name", FORMATS)
def test_a_frozen_graph_answers_the_same_bit_for_bit(graph, name, weights_only):
    mg = quantized(graph, name, weights_only)
    expected = answers(mg)
    packed, _ = passes.pack_transform_pass(mg, {"silent": True})
    linear = {"first", "hidden", "again"}
    multiplied = linear if name in WHOLE_NUMBERS and not weights_only else set()
    for before in (mg, packed):
        frozen, info = passes.freeze_transform_pass(before)
        assert torch.equal(answers(frozen), answers(before))
        # Whole numbers are added exactly, where floats may round, and what follows from that.
        error = (answers(before) - expected).abs().max()
        assert error <= (0.05 * expected.abs().max() if before is packed and multiplied else 0)
        stayed = multiplied if before is packed else set()
        done = info["plain" if weights_only else "frozen"]
        assert {"conv", *linear} - stayed <= set(done) and set(info["packed"]) == stayed
        if stayed:
            continue
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
    mg, _ = passes.calibrate_transform_pass(mg, {"batches": [{"x": X}]})
    expected = answers(mg)
    frozen, _ = passes.freeze_transform_pass(mg)
    assert torch.equal(answers(frozen), expected)
    assert not frozen.model.first.is_pruned and (frozen.model.first.weight == 0).sum() >= 60
    assert not frozen.model.first.spec.lsq_operands


class Doubles(QuantLinear):
    """An operator with a forward of its own: what it rounds is not the weight as it is stored."""

    def forward(self, input):
        return nn.functional.linear(input, self.quantize("weight", 2 * self.weight), self.bias)


def frozen_layer(layer, x):
    """A graph of one layer, frozen, and whether it answers as before."""
    mg = MaseGraph(nn.Sequential(layer).eval(), dummy_in={"input": x})
    with torch.no_grad():
        expected = mg.model(x)
        frozen, info = passes.freeze_transform_pass(mg)
        return frozen.modules["0"], info, torch.equal(frozen.model(x), expected)


MXINT4 = {"weight": {"name": "mxint", "width": 4}}
ODD = {
    "a forward of its own": lambda: Doubles(8, 8, config=MXINT4),
    "drawn at random": lambda: QuantLinear(
        8, 8, config={"weight": {"name": "binary", "stochastic": True}}
    ),
}


@pytest.mark.parametrize("name", ODD)
def test_what_is_not_known_to_be_the_same_stays(name):
    layer = ODD[name]()
    stays, info, same = frozen_layer(layer, torch.randn(3, 8))
    assert isinstance(stays, type(layer)) and info["kept"] == ["0"]
    assert same or name == "drawn at random"
    assert stays.spec == layer.spec


def test_weights_that_are_computed_are_frozen_as_computed():
    layer, x = QuantLinear(8, 8, config=MXINT4), torch.randn(3, 8)
    torch.nn.utils.parametrizations.weight_norm(layer)
    twin, info, same = frozen_layer(layer, x)
    assert same and type(twin) is nn.Linear and info["plain"] == ["0"]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_weights_keep_their_dtype(dtype):
    layer = QuantLinear(8, 8, config={**MXINT4, "data_in": {"name": "mxint"}}).to(dtype)
    twin, _, same = frozen_layer(layer, torch.randn(3, 8, dtype=dtype))
    assert same and twin.weight.dtype == dtype and twin.spec.weight.is_identity


def test_layers_with_one_weight_and_other_masks_are_kept_apart():
    first = QuantLinear(8, 8, bias=False, config={"weight": {"name": "binary"}})
    second = QuantLinear(8, 8, bias=False, config={"weight": {"name": "binary"}})
    second.weight = first.weight
    x = torch.randn(3, 8)
    mg = MaseGraph(nn.Sequential(first, second, second).eval(), dummy_in={"input": x})
    mg.modules["0"].register_buffer("weight_mask", torch.rand(8, 8) > 0.5)
    with torch.no_grad():
        expected = mg.model(x)
        frozen, _ = passes.freeze_transform_pass(mg)
        assert torch.equal(frozen.model(x), expected)
    assert (frozen.modules["0"].weight == 0).any() and (frozen.modules["1"].weight != 0).all()
    calls = [frozen.get_module(node) for node in frozen.nodes if node.op == "call_module"]
    assert len(calls) == 3 and calls[1] is calls[2]


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
    with pytest.raises(ConfigError, match="no quantized layer with a weight; run"):
        passes.freeze_transform_pass(graph)
    with pytest.raises(ConfigError, match="scales of its data_in are uninitialized"):
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


def test_rounding_is_rewritten_for_compilers_where_no_gradient_is_wanted():
    def model(x):
        y = torch.ops.chop.fake_quantize(x, Integer(8, 4).key)
        return torch.ops.chop.fake_quantize(y, parse_format_string("mxint").key)

    def rewritten(x):
        graph = with_steps(torch.fx.symbolic_trace(model), [x])
        targets = [node.target for node in graph.graph.nodes if node.op == "call_function"]
        assert torch.equal(graph(x), model(x))
        return [target is round_in_steps for target in targets]

    assert rewritten(X) == [True, False]
    assert rewritten(X.clone().requires_grad_()) == [False, False]
    with torch.no_grad():
        assert rewritten(X.clone().requires_grad_()) == [True, False]


@pytest.mark.parametrize(
    "given",
    [{"compile": "aot"}, {"path": "model.pt2"}, {"compile": True, "path": "model.pt2"}],
)
def test_a_package_has_a_path_and_nothing_else_has(graph, given):
    with pytest.raises(ConfigError, match='compile = "aot" needs a path'):
        passes.freeze_transform_pass(quantized(graph, "8.5"), given)


@pytest.mark.parametrize("name", ["8.5", "mxint"])
def test_large_products_of_integers_stay_packed_in_a_compiled_graph(name):
    mg = MaseGraph(nn.Sequential(nn.Linear(256, 256)), dummy_in={"input": torch.randn(3, 256)})
    packed, _ = passes.pack_transform_pass(quantized(mg, name), {"silent": True})
    compiled = passes.freeze_transform_pass(packed, {"compile": True})[1]
    assert compiled["packed"] == (["0"] if name == "8.5" else [])
    assert passes.freeze_transform_pass(packed)[1]["packed"] == ["0"]


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("name", ["8.5", "mxint"])
def test_a_compiled_graph_answers_the_same(graph, name):
    mg = quantized(graph, name)
    _, info = passes.freeze_transform_pass(mg, {"compile": True})
    with torch.no_grad():
        torch.testing.assert_close(info["compiled"](X), answers(mg), rtol=1e-5, atol=1e-5)
    gradients = []
    for model in (mg.model, info["compiled"]):
        x = X.clone().requires_grad_()
        model(x).square().sum().backward()
        gradients.append(x.grad)
    assert gradients[0].abs().sum() > 0
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore:.*writes to its parameters")
def test_tables_with_a_largest_norm_stay_as_they_are():
    table = nn.Embedding(8, 4, max_norm=0.5)
    index = torch.arange(8)
    mg = MaseGraph(nn.Sequential(table, nn.Linear(4, 4)).eval(), dummy_in={"input": index})
    mg = quantized(mg, "4.2", weights_only=True)
    expected = mg.copy().model(index)
    frozen, info = passes.freeze_transform_pass(mg)
    assert torch.equal(frozen.model(index), expected) and info["plain"] == ["1"]
