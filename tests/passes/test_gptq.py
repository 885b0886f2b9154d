import contextlib

import pytest
import torch
from torch import nn

from chop import MaseGraph, passes
from chop.errors import ConfigError
from chop.formats import Integer, QuantSpec
from chop.formats.group_affine import GroupAffine
from chop.formats.group_integer import GroupInteger
from chop.formats.mxfp import MXFP
from chop.formats.mxint import MXInt
from chop.formats.scale_integer import ScaleInteger
from chop.formats.ternary import Ternary
from chop.ir.batches import run_layerwise
from chop.nn.quantized import QuantizedOperator
from chop.quantization.rounding import gptq
from tests.networks import Made

from .conftest import with_metadata


def correlated(rows, seed):
    generator = torch.Generator().manual_seed(seed)
    mix = torch.randn(6, 2 * 11 * 11, generator=torch.Generator().manual_seed(0))
    return (torch.randn(rows, 6, generator=generator) @ mix).view(rows, 2, 11, 11)


@pytest.fixture(scope="module")
def graph():
    torch.manual_seed(0)
    model = Made(
        lambda m, x: m.fc2(m.fc1(m.grouped(m.conv(x).relu()).flatten(1)).relu()),
        conv=nn.Conv2d(2, 4, 3, stride=2, padding=1, dilation=2),
        grouped=nn.Conv2d(4, 4, 3, padding="same", groups=2, padding_mode="reflect"),
        fc1=nn.Linear(100, 32),
        fc2=nn.Linear(32, 32),
    )
    return with_metadata(MaseGraph(model.eval(), dummy_in={"x": correlated(3, 9)}))


def quantized(mg, weight, data_in=None):
    spec = QuantSpec(data_in or QuantSpec().data_in, weight)
    rules = {name: {"config": spec} for name in ("linear", "conv2d")}
    return passes.quantize_transform_pass(mg, {"by": "type", **rules})[0]


@pytest.mark.parametrize("actorder", [False, True])
@pytest.mark.parametrize("data_in", [None, Integer(8, "auto")])
@pytest.mark.sampled(2)
def test_a_whole_model_comes_nearer_to_float_on_rows_it_has_not_seen(graph, actorder, data_in):
    mg = quantized(graph, Integer(4, "mse"), data_in)
    batches = [{"x": x} for x in correlated(256, 1).split(50)]
    before = {name: value.clone() for name, value in mg.model.state_dict().items()}
    better, info = passes.gptq_transform_pass(mg, {"batches": batches, "actorder": actorder})
    assert list(info["layers"]) == ["conv", "grouped", "fc1", "fc2"]
    assert info["skipped"] == {}
    assert all(row["after"] < row["before"] for row in info["layers"].values())
    for path in info["layers"]:
        layer = better.modules[path]
        assert torch.equal(layer.spec.weight.round(layer.weight), layer.weight)
        assert layer.spec == mg.modules[path].spec
    x = correlated(100, 2)
    exact = graph.model(x)
    error, nearest = ((m.model(x) - exact).square().mean() for m in (better, mg))
    assert error < nearest / 2
    # the graph that came in is as it was
    assert all(torch.equal(before[name], value) for name, value in mg.model.state_dict().items())


def test_the_errors_told_are_those_of_the_layers_own_outputs(graph):
    mg = quantized(graph, Integer(4, "mse"))
    x = correlated(64, 1)
    batches = [{"x": x[:40]}, {"x": x[40:]}]
    better, info = passes.gptq_transform_pass(mg, {"batches": batches, "row_weights": "uniform"})
    seen = {}
    hooks = [
        better.modules[path].register_forward_pre_hook(
            lambda _, args, path=path: seen.update({path: args[0]})
        )
        for path in info["layers"]
    ]
    better.model(x)
    for hook in hooks:
        hook.remove()
    for path, told in info["layers"].items():
        layer, exact = better.modules[path], graph.modules[path]
        bias = exact.bias if path.startswith("fc") else exact.bias[:, None, None]
        for twin, share in ((mg.modules[path], told["before"]), (layer, told["after"])):
            error = (twin(seen[path]) - exact(seen[path])).square().sum()
            energy = (exact(seen[path]) - bias).square().sum()
            assert (error / energy).item() == pytest.approx(share, rel=1e-3)


def roundings(monkeypatch):
    """The layers that round their weights, one entry each time."""
    counted, plain = [], QuantizedOperator._round

    def count(self, operand, x, mask):
        if operand == "weight" and not self.spec.weight.is_identity:
            counted.append(self)
        return plain(self, operand, x, mask)

    monkeypatch.setattr(QuantizedOperator, "_round", count)
    return counted


@pytest.mark.parametrize("weight", [GroupAffine(4, 8), GroupInteger(3, 8), MXInt(4)])
@pytest.mark.long
def test_a_corrected_weight_is_rounded_no_more_on_each_batch(graph, weight, monkeypatch):
    mg, rows = quantized(graph, weight), correlated(64, 1)
    counted = roundings(monkeypatch)
    counts = []
    for size in (32, 4):
        better, _ = passes.gptq_transform_pass(
            mg, {"batches": [{"x": x} for x in rows.split(size)], "row_weights": "uniform"}
        )
        assert all(better.modules[path].spec == mg.modules[path].spec for path in ("conv", "fc2"))
        counts.append(len(counted))
        counted.clear()
    assert counts[0] == counts[1]

    # The same weights come where each layer rounds its weight on each batch, and all nodes run.
    def plain_run(mg, batches, visit, until):
        run_layerwise(mg, batches, visit)

    def plain_weights():
        return contextlib.nullcontext(lambda layer: None)

    monkeypatch.setattr("chop.quantization.walk.walk.run_layerwise", plain_run)
    monkeypatch.setattr(gptq, "rounded_weights", plain_weights)
    batches = {"batches": [{"x": x} for x in rows.split(4)], "row_weights": "uniform"}
    found, _ = passes.gptq_transform_pass(mg, batches)
    assert len(counted) > counts[0]
    for name, value in found.model.state_dict().items():
        assert torch.equal(better.model.state_dict()[name], value)


def test_masks_and_what_they_hide_stay(graph):
    mg = quantized(graph, Integer(6, "mse"))
    layer = mg.modules["fc1"]
    mask = torch.rand(layer.weight.shape) > 0.5
    layer.register_buffer("weight_mask", mask)
    better, info = passes.gptq_transform_pass(mg, {"batches": [{"x": correlated(200, 1)}]})
    new = better.modules["fc1"]
    assert torch.equal(new.weight_mask, mask)
    assert torch.equal(new.weight[~mask], layer.weight[~mask])
    assert info["layers"]["fc1"]["after"] < info["layers"]["fc1"]["before"] / 2
    assert torch.equal(new.spec.weight.round(new.weight[mask]), new.weight[mask])


def test_what_cannot_be_corrected_is_named():
    layers = {name: nn.Linear(4, 4) for name in ("twice", "a", "b")}
    net = Made(
        lambda m, x: m.conv(m.b(m.a(m.twice(m.twice(x))))[:, :, None]),
        **layers,
        conv=nn.Conv1d(4, 4, 1),
    )
    net.b.weight = net.a.weight
    mg = with_metadata(MaseGraph(net, dummy_in={"x": torch.randn(3, 4)}))
    spec = {"config": QuantSpec(weight=Integer(4, "mse"))}
    mg, _ = passes.quantize_transform_pass(mg, {"linear": spec, "conv1d": spec})
    same, info = passes.gptq_transform_pass(mg, {"batches": [{"x": torch.randn(9, 4)}]})
    assert set(info["skipped"].values()) == {
        "it is used in several places",
        "it is not a Linear, a Conv2d or an expert layer",
        "it shares its parameters with another module",
    }
    assert (len(info["skipped"]), info["layers"]) == (5, {})
    for name, value in mg.model.state_dict().items():
        assert torch.equal(same.model.state_dict()[name], value)


SCALED = [
    MXInt(4, block_size=8),
    MXFP(4, 2),
    ScaleInteger(4, granularity="row"),
    ScaleInteger(4, granularity="group", group_size=5),
    GroupAffine(3, group_size=8),
    GroupAffine(4, group_size=5),
]


@pytest.mark.parametrize("number_format", SCALED, ids=lambda x: x.label)
@pytest.mark.sampled(3)
def test_formats_with_scales_keep_those_of_the_float_weights(graph, number_format):
    mg = quantized(graph, number_format)
    better, info = passes.gptq_transform_pass(mg, {"batches": [{"x": correlated(200, 1)}]})
    # rows of a 3 x 3 kernel are short, and much of each has to stay to keep the scale
    assert all(row["after"] <= row["before"] for row in info["layers"].values())
    assert info["layers"]["fc1"]["after"] < info["layers"]["fc1"]["before"]
    for path in info["layers"]:
        weight = better.modules[path].weight
        nearest = number_format.round(mg.modules[path].weight)
        assert torch.equal(number_format.round(weight), weight)
        scales, before = (number_format.encode(x).scales for x in (weight, nearest))
        if number_format.name != "group_affine":  # few values lie on several grids
            torch.testing.assert_close(scales, before, rtol=1e-6, atol=0)


def test_a_scale_that_follows_all_weights_is_refused(graph):
    mg = quantized(graph, Ternary(2, scaling_factor=True))
    mg.model.train()
    with pytest.raises(ConfigError, match="'conv' has weights in ternary.* follow the weights"):
        passes.gptq_transform_pass(mg, {"batches": [{"x": correlated(200, 1)}]}, inplace=True)
    assert mg.model.training and torch.is_grad_enabled()


def test_weights_that_a_narrow_dtype_does_not_hold_are_refused(graph):
    number_format, x = GroupInteger(8), correlated(200, 1)
    mg = quantized(graph, number_format)
    passes.gptq_transform_pass(mg, {"batches": [{"x": x}]})
    mg = mg.copy()
    mg.model.bfloat16()
    with pytest.raises(ConfigError, match="bfloat16 cannot represent exactly.*float32"):
        passes.gptq_transform_pass(mg, {"batches": [{"x": x.bfloat16()}]})
