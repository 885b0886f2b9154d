"""Channels and heads that leave the model: the outputs are those of a model that ignores them."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from chop import MaseGraph, passes
from chop.errors import ConfigError
from chop.ir.propagate import example_inputs
from chop.models import load_model
from tests.networks import Made

from .conftest import with_metadata


def shrink(mg, granularity="channel", sparsity=0.5, **settings):
    weight = {"sparsity": sparsity, "granularity": granularity, **settings.pop("weight", {})}
    return passes.prune_transform_pass(mg, {"weight": weight, **settings})


def removed(before, after, name):
    """Which outputs of a layer are gone: those whose bias, all different, is no more."""
    return ~torch.isin(before.modules[name].bias, after.modules[name].bias)


def silence(mg, name, gone):
    """Zeroes outputs of a layer: parameters, so that the oracle is plain torch."""
    with torch.no_grad():
        for parameter in mg.modules[name].parameters():
            parameter[gone] = 0


def outputs(mg, inputs):
    """In float64: what is left of a sum may be added up in another order."""
    inputs = {key: x.double() if x.is_floating_point() else x for key, x in inputs.items()}
    result = copy.deepcopy(mg.model).double()(**inputs)
    return result if isinstance(result, torch.Tensor) else result["logits"]


def distinct(model):
    """Parameters that start equal, such as zero biases, would hide mistakes."""
    torch.manual_seed(0)
    with torch.no_grad():
        for tensor in [*model.parameters(), *model.buffers()]:
            if tensor.is_floating_point():
                tensor.add_(torch.rand_like(tensor) * 0.1)
    return model.eval()


def test_frozen_parameters_stay_frozen():
    mg = with_metadata(MaseGraph(distinct(load_model("mlp"))))
    mg.modules["fc1"].requires_grad_(False)
    small, _ = shrink(mg, include=["fc1"])
    frozen = {name for name, x in small.model.named_parameters() if not x.requires_grad}
    assert frozen == {"fc1.weight", "fc1.bias"} and len(small.modules["fc1"].bias) == 32


@pytest.mark.parametrize(
    ("name", "producers"),
    [
        ("mlp", {"fc1": (), "fc2": ()}),
        ("cnn", {"conv1": ("bn1",), "conv2": ("bn2",)}),
        ("vit", {"vit.layers.0.mlp.fc1": (), "vit.layers.1.mlp.fc1": ()}),
        ("bert-tiny", {"bert.encoder.layer.0.intermediate.dense": (), "bert.pooler.dense": ()}),
    ],
)
@pytest.mark.parametrize("scope", ["local", "global"])
@pytest.mark.sampled(1)
def test_removed_channels_are_as_good_as_zero(name, producers, scope):
    mg = with_metadata(MaseGraph(distinct(load_model(name))))
    small, info = shrink(mg, include=list(producers), weight={"scope": scope})
    zeroed = mg.copy()
    for producer, followers in producers.items():
        followed = followers[0] if followers else producer
        gone = removed(mg, small, followed)
        assert gone.float().mean() == pytest.approx(info["layers"][producer])
        for layer in (producer, *followers):
            silence(zeroed, layer, gone)
    inputs = example_inputs(mg.model)
    torch.testing.assert_close(outputs(small, inputs), outputs(zeroed, inputs))
    other_size = {key: torch.cat([x, x[:2]]) for key, x in inputs.items()}
    torch.testing.assert_close(outputs(small, other_size), outputs(zeroed, other_size))
    before, after = info["parameters"]
    assert after == sum(p.numel() for p in small.model.parameters()) < before
    assert info["sparsity"] == pytest.approx(0.5) and not info["skipped"]
    assert small.model.state_dict().keys() == mg.model.state_dict().keys()


@pytest.mark.parametrize(
    ("name", "value", "heads"),
    [
        ("vit", "vit.layers.{}.attention.v_proj", 4),
        ("bert-tiny", "bert.encoder.layer.{}.attention.self.value", 2),
    ],
)
@pytest.mark.sampled(1)
def test_removed_heads_are_as_good_as_zero(name, value, heads):
    mg = with_metadata(MaseGraph(distinct(load_model(name))))
    small, info = shrink(mg, "head", sparsity=0.5, weight={"method": "l2-norm"})
    zeroed = mg.copy()
    for layer in range(2):
        path = value.format(layer)
        gone = removed(mg, small, path)
        assert gone.view(heads, -1).float().mean(1).tolist().count(1.0) == heads // 2
        silence(zeroed, path, gone)
        shape = small.modules[path].weight.shape
        assert shape[0] == mg.modules[path].weight.shape[0] // 2 == small.modules[path].out_features
    inputs = example_inputs(mg.model)
    torch.testing.assert_close(outputs(small, inputs), outputs(zeroed, inputs))
    both = {key: x[:1, ...] for key, x in inputs.items()}
    torch.testing.assert_close(outputs(small, both), outputs(zeroed, both))
    assert info["hidden"] == heads and info["weights"] == 2 * heads


class Varied(nn.Module):
    """Depthwise and transposed convolutions, pooling, a sigmoid, a reshape with numbers."""

    def __init__(self):
        super().__init__()
        self.a = nn.Conv2d(3, 8, 3, padding=1)
        self.depthwise = nn.Conv2d(8, 8, 3, groups=8)
        self.pool = nn.AvgPool2d(2)
        self.up = nn.ConvTranspose2d(8, 6, 2)
        self.bn = nn.BatchNorm2d(6)
        self.c = nn.Conv2d(6, 4, 2)
        self.head = nn.Linear(4 * 2 * 2, 5)
        self.last = nn.Linear(5, 3)

    def forward(self, x):
        x = self.pool(torch.sigmoid(self.depthwise(self.a(x))))
        x = self.c(F.gelu(self.bn(self.up(x))))
        x = x.permute(0, 2, 3, 1).permute(0, 3, 1, 2).reshape(x.size(0), 16)
        return self.last(self.head(x).tanh())


def test_readers_of_every_kind_are_cut():
    mg = with_metadata(MaseGraph(distinct(Varied()), dummy_in={"x": torch.randn(2, 3, 6, 6)}))
    small, info = shrink(mg, sparsity=0.25)
    assert info["layers"] == {"a": 0.25, "up": pytest.approx(2 / 6), "c": 0.25, "head": 0.2}
    assert set(info["skipped"]) == {"depthwise", "last"}
    assert "grouped" in info["skipped"]["depthwise"]
    zeroed = mg.copy()
    # sigmoid(0) is not zero: what its reader takes from the removed channels is silenced instead
    gone = removed(mg, small, "depthwise")
    with torch.no_grad():
        zeroed.modules["up"].weight[gone] = 0
        zeroed.modules["c"].weight[:, removed(mg, small, "bn")] = 0
    silence(zeroed, "c", removed(mg, small, "c"))
    silence(zeroed, "head", removed(mg, small, "head"))
    for batch in (1, 2, 5):
        x = torch.randn(batch, 3, 6, 6)
        torch.testing.assert_close(outputs(small, {"x": x}), outputs(zeroed, {"x": x}))
    depthwise = small.modules["depthwise"]
    assert depthwise.groups == depthwise.in_channels == depthwise.out_channels == 6
    assert small.modules["bn"].num_features == len(small.modules["bn"].running_var) == 4
    assert small.modules["head"].in_features == 12 and "reshape" in [n.name for n in small.nodes]


@pytest.mark.parametrize(
    "function",
    [
        *(F.relu6, F.celu, F.hardsigmoid, F.logsigmoid, F.mish, torch.abs, torch.exp, torch.square),
        *(nn.ReLU6(), lambda x: x.clamp(-0.1, 0.2), lambda x: -(x**3), lambda x: 2 * x - 1),
    ],
)
@pytest.mark.sampled(3)
def test_units_pass_through_functions_of_one_number(function):
    layers = {"fc1": nn.Linear(3, 8), "fc2": nn.Linear(8, 2)}
    between = Made(lambda m, x: m.fc2(function(m.fc1(x))), **layers)
    mg = with_metadata(MaseGraph(distinct(between), dummy_in={"x": torch.randn(2, 3)}))
    small, info = shrink(mg, include=["fc1"])
    assert info["layers"] == {"fc1": 0.5} and not info["skipped"]
    kept = torch.isin(mg.modules["fc1"].bias, small.modules["fc1"].bias)
    x, full = torch.randn(5, 3), mg.modules["fc2"]
    hidden = function(mg.modules["fc1"](x))[:, kept]
    torch.testing.assert_close(
        small.model(x), F.linear(hidden, full.weight[:, kept], full.bias), msg=str(function)
    )


class Joined(nn.Module):
    """A gated layer, and two residual blocks of which the first has a shortcut layer."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(2, 4, 3)
        self.block1, self.shortcut = nn.Conv2d(4, 8, 3), nn.Conv2d(4, 8, 3)
        self.bn = nn.BatchNorm2d(8)
        self.block2 = nn.Conv2d(8, 8, 3, padding=1)
        self.gate, self.up = nn.Linear(8, 12), nn.Linear(8, 12)
        self.down = nn.Linear(12, 3)

    def forward(self, x):
        x = F.pad(self.stem(x) * 2, (1, 1))
        x = F.relu(self.bn(self.block1(x)) + self.shortcut(x))
        x = (F.relu(self.block2(x)) + x).mean((2, 3))
        return self.down(F.silu(self.gate(x)) * self.up(x))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("scope", ["local", "global"])
def test_layers_that_are_joined_lose_the_same_channels(scope):
    mg = with_metadata(MaseGraph(distinct(Joined()), dummy_in={"x": torch.randn(2, 2, 9, 8)}))
    small, info = shrink(mg, weight={"scope": scope, "method": "l2-norm"})
    assert info["weights"] == 4 + 8 + 12 and set(info["skipped"]) == {"down"}
    layers = info["layers"]
    assert layers["block1"] == layers["shortcut"] == layers["block2"]
    assert layers["gate"] == layers["up"] and info["hidden"] == 12
    trunk, gated = removed(mg, small, "block1"), removed(mg, small, "gate")
    for name in ("shortcut", "block2", "bn"):
        assert torch.equal(removed(mg, small, name), trunk)
    assert torch.equal(removed(mg, small, "up"), gated)
    zeroed = mg.copy()
    silence(zeroed, "stem", removed(mg, small, "stem"))
    for name in ("block1", "shortcut", "block2", "bn"):
        silence(zeroed, name, trunk)
    for name in ("gate", "up"):
        silence(zeroed, name, gated)
    for batch in (1, 3):
        x = torch.randn(batch, 2, 9, 8)
        torch.testing.assert_close(outputs(small, {"x": x}), outputs(zeroed, {"x": x}))


def test_only_some_of_the_joined_layers_is_too_few():
    mg = MaseGraph(Joined(), dummy_in={"x": torch.randn(2, 2, 9, 8)})
    _, info = shrink(mg, include=["gate", "shortcut", "block1"])
    assert info["skipped"]["gate"] == "they are joined with 'up'"
    assert info["layers"] == {} and info["hidden"] == 0


def test_metadata_and_notes_follow_the_shapes():
    mg = with_metadata(MaseGraph(load_model("cnn")))
    small, _ = shrink(mg)
    common = small.node("conv2").meta["mase"].common
    assert common.args["weight"].shape == (16, 8, 3, 3)
    assert common.results["data_out_0"].shape == (3, 16, 4, 4)
    assert small.node("flatten").meta["spec"].shape[-1] == 256
    assert mg.node("conv2").meta["mase"].common.args["weight"].shape == (32, 16, 3, 3)


def test_formats_and_masks_are_cut_with_the_weight():
    mg = with_metadata(MaseGraph(distinct(load_model("cnn"))))
    config = {"name": "integer", "width": 8, "frac_width": 6}
    quantized, _ = passes.quantize_transform_pass(mg, {"by": "type", "conv2d": {"config": config}})
    masked, _ = passes.prune_transform_pass(quantized, {"weight": {"sparsity": 0.3}})
    small, _ = shrink(masked)
    conv = small.modules["conv2"]
    assert conv.weight_mask.shape == conv.weight.shape == (16, 8, 3, 3)
    assert conv.spec == quantized.modules["conv2"].spec
    zeroed = masked.copy()
    for number in (1, 2):
        gone = removed(masked, small, f"bn{number}")
        silence(zeroed, f"conv{number}", gone)
        silence(zeroed, f"bn{number}", gone)
    inputs = example_inputs(mg.model)
    torch.testing.assert_close(outputs(small, inputs), outputs(zeroed, inputs))


def test_what_something_else_needs_stays_whole():
    def residual(m, x):
        y = m.a(x)
        z = m.b(F.relu(y)) + x
        return m.c(m.norm(m.c(z))) + F.relu(y).sum(-1, keepdim=True)

    layers = {name: nn.Linear(6, 6) for name in "abc"}
    net = Made(residual, **layers, norm=nn.LayerNorm(6))
    mg = MaseGraph(net, dummy_in={"x": torch.randn(4, 6)})
    small, info = shrink(mg)
    assert info["skipped"] == {
        "a": "'sum_1' sums over them",
        "b": "they are joined with 'x'",
        "c": "'c' is called more than once",
    }
    assert info["parameters"][0] == info["parameters"][1] and info["sparsity"] == 0
    x = torch.randn(2, 6)
    assert torch.equal(small.model(x), mg.model(x))


def test_a_weight_that_others_use_stays_whole():
    layers = {name: nn.Linear(4, 4) for name in "abc"}
    net = Made(lambda m, x: m.b(m.a(x)) + m.a.weight.sum() + m.c(x), **layers)
    net.c.weight = net.b.weight
    mg = MaseGraph(net, dummy_in={"x": torch.randn(3, 4)})
    _, info = shrink(mg)
    assert info["skipped"]["a"] == "'a' shares its weight with node 'a_weight'"
    assert info["skipped"]["b"] == "'b' shares its weight with the Linear 'c'"
    assert info["hidden"] == 0


def test_every_layer_keeps_a_unit():
    mg = MaseGraph(load_model("mlp"))
    small, _ = shrink(mg, sparsity=0.999)
    assert small.modules["fc1"].out_features == small.modules["fc2"].in_features == 1
    small, info = shrink(mg, sparsity=0.999, weight={"scope": "global", "method": "random"})
    assert small.modules["fc2"].out_features >= 1 and info["hidden"] == 126
    with pytest.raises(ConfigError, match="the graph has none; choose 'channel'"):
        shrink(mg, "head")


@pytest.mark.long
def test_a_shrunk_graph_is_exported_and_trained(tmp_path):
    mg = MaseGraph(load_model("vit"))
    small, _ = shrink(shrink(mg, "head")[0], "row")
    small.export(tmp_path / "small")
    again = MaseGraph.from_checkpoint(tmp_path / "small")
    inputs = example_inputs(mg.model)
    assert torch.equal(outputs(again, inputs), outputs(small, inputs))
    small.model(**inputs)["logits"].sum().backward()
    assert all(p.grad.shape == p.shape for p in small.model.parameters() if p.grad is not None)


@pytest.mark.parametrize(("dim", "passes_by"), [(0, True), (-2, True), (1, False), (None, False)])
def test_asking_for_the_size_of_another_dimension_stops_nothing(dim, passes_by):
    net = Made(lambda m, x: m.b(m.a(x)), a=nn.Linear(6, 8), b=nn.Linear(8, 4))
    mg = MaseGraph(distinct(net), dummy_in={"x": torch.randn(3, 6)})
    a, b = (next(node for node in mg.nodes if node.name == name) for name in "ab")
    with mg.fx_graph.inserting_before(b):
        mg.fx_graph.call_method("size", (a,) if dim is None else (a, dim))
    mg.model.recompile()
    _, info = shrink(mg, include=["a"])
    skipped = {} if passes_by else {"a": "'size' reads their number"}
    assert info["skipped"] == skipped and info["layers"] == ({"a": 0.5} if passes_by else {})


class Shifted(nn.Module):
    """Attention by two heads, whose queries, keys and values are scaled and shifted by numbers."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(8, 8) for _ in range(4))

    def forward(self, x):
        heads = x.size(0), x.size(1), 2, 4
        q, k = (self.q(x) + 0.5).view(heads), (self.k(x) - 0.25).view(heads)
        v = (1 - 2 * self.v(x)).view(heads)
        y = F.scaled_dot_product_attention(*(part.transpose(1, 2) for part in (q, k, v)))
        return self.o(y.transpose(1, 2).reshape(x.size(0), x.size(1), 8))


def test_heads_leave_where_numbers_are_added_to_them():
    """A shift by a number is the same for the heads that stay, and leaves with the others."""
    model = distinct(Shifted())
    mg = with_metadata(MaseGraph(model, dummy_in={"x": torch.randn(2, 5, 8)}))
    small, info = shrink(mg, "head")
    assert not info["skipped"] and info["hidden"] == 1
    kept = torch.isin(model.v.bias, small.modules["v"].bias)
    assert kept.view(2, 4).all(1).sum() == 1
    seen = []
    model.o.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    x = torch.randn(2, 5, 8)
    model(x)
    expected = F.linear(seen[0][..., kept], model.o.weight[:, kept], model.o.bias)
    torch.testing.assert_close(small.model(x), expected)


def test_heads_leave_quantized_attention():
    mg = MaseGraph(distinct(Shifted()), dummy_in={"x": torch.randn(2, 5, 8)})
    integer = {"config": {"name": "integer", "width": 12, "frac_width": 8}}
    rules = {"by": "type", "linear": integer, "scaled_dot_product_attention": integer}
    mg, _ = passes.quantize_transform_pass(mg, rules)
    small, info = shrink(mg, "head", weight={"method": "random"})
    assert info["hidden"] == 1 and not info["skipped"]
    zeroed = mg.copy()
    with torch.no_grad():
        zeroed.modules["o"].weight[:, removed(mg, small, "v")] = 0
    x = {"x": torch.randn(3, 5, 8)}
    torch.testing.assert_close(outputs(small, x), outputs(zeroed, x))
