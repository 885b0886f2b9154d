import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune

from chop import MaseGraph, passes
from chop.base.notices import AdjustedWarning
from chop.formats import Integer, QuantSpec
from chop.models.builtin import BUILTIN_MODELS
from chop.nn.quantized import QuantConv2d, QuantLinear
from tests.networks import Square

from .conftest import with_metadata


def shaken(model):
    """Norms as training leaves them, so that folding has something to do."""
    generator = torch.Generator().manual_seed(0)
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            if module.affine:
                module.weight.data.uniform_(-1.5, 1.5, generator=generator)
                module.bias.data.normal_(generator=generator)
            if module.track_running_stats:
                module.running_mean.normal_(generator=generator)
                module.running_var.uniform_(0.2, 3, generator=generator)
    return model.eval()


CASES = {
    "conv1d": (nn.Conv1d(4, 6, 3, groups=2, bias=False), nn.BatchNorm1d(6), (3, 4, 9)),
    "conv2d": (nn.Conv2d(4, 6, 3, padding=1), nn.BatchNorm2d(6, eps=1e-2), (3, 4, 7, 5)),
    "conv3d": (nn.Conv3d(2, 3, 2), nn.BatchNorm3d(3), (3, 2, 4, 4, 5)),
    "transposed1d": (nn.ConvTranspose1d(4, 6, 3), nn.BatchNorm1d(6, affine=False), (3, 4, 9)),
    "transposed2d": (nn.ConvTranspose2d(4, 6, 3, groups=2), nn.BatchNorm2d(6), (3, 4, 7, 5)),
    "linear": (nn.Linear(4, 6), nn.BatchNorm1d(6), (3, 4)),
    "linear_without_bias": (nn.Linear(4, 6, bias=False), nn.BatchNorm1d(6, affine=False), (3, 4)),
    "reflected": (
        nn.Conv2d(4, 6, 3, padding=1, padding_mode="reflect"),
        nn.BatchNorm2d(6),
        (3, 4, 7, 5),
    ),
    "sync2d": (nn.Conv2d(4, 6, 3, bias=False), nn.SyncBatchNorm(6, affine=False), (3, 4, 7, 5)),
    "sync_transposed": (nn.ConvTranspose2d(4, 6, 3), nn.SyncBatchNorm(6), (3, 4, 7, 5)),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.sampled(3)
def test_every_kind_of_convolution_folds(case):
    convolution, norm, shape = CASES[case]
    model = shaken(nn.Sequential(copy.deepcopy(convolution), copy.deepcopy(norm), nn.ReLU()))
    x = torch.randn(shape)
    expected = model(x)
    mg, info = passes.conv_bn_fusion_transform_pass(MaseGraph(model, dummy_in={"input": x}), {})
    assert info == {"fused": ["1"], "skipped": {}}
    assert list(mg.model.state_dict()) == ["0.weight", "0.bias"]
    torch.testing.assert_close(mg.model(x), expected, atol=1e-5, rtol=1e-5)


class Obstacles(nn.Module):
    def __init__(self):
        super().__init__()
        self.read_twice = nn.Conv2d(3, 3, 1)
        self.after_read_twice = nn.BatchNorm2d(3)
        self.conv = nn.Conv2d(3, 3, 1)
        self.shared_norm = nn.BatchNorm2d(3)
        self.relu = nn.ReLU()
        self.no_statistics = nn.BatchNorm2d(3, track_running_stats=False)

    def forward(self, x):
        y = self.read_twice(x)
        y = self.after_read_twice(y) + y
        y = self.shared_norm(self.conv(self.shared_norm(y)))
        return self.no_statistics(self.conv(self.relu(y)))


def test_what_cannot_be_folded_is_left_and_named():
    x = torch.randn(4, 3, 5, 5)
    mg = MaseGraph(shaken(Obstacles()), dummy_in={"x": x})
    fused, info = passes.conv_bn_fusion_transform_pass(mg)
    assert info["fused"] == []
    reasons = list(info["skipped"].values())
    assert reasons[0] == "the convolution has other readers"
    assert reasons[1] == "its input is not computed by a convolution module or a linear layer"
    assert reasons[2] == "the norm is used in several places"
    assert reasons[3] == "it has no running statistics"
    assert torch.equal(fused.model(x), mg.model(x))


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Linear(4, 4), (3, 5, 4)),
        (nn.Linear(4, 4), (3, 4, 4)),
        (nn.Conv1d(4, 4, 1), (4, 4)),
        (nn.ConvTranspose1d(4, 4, 1), (4, 4)),
    ],
)
def test_a_norm_over_another_dimension_than_the_channels_is_left(layer, shape):
    """BatchNorm1d normalizes dimension 1; a linear layer's features are the last dimension.

    The channels of an unbatched convolution are the first one.
    """
    model = shaken(nn.Sequential(copy.deepcopy(layer), nn.BatchNorm1d(shape[1])))
    x = torch.randn(shape)
    mg, info = passes.conv_bn_fusion_transform_pass(MaseGraph(model, dummy_in={"input": x}), {})
    assert "another dimension" in info["skipped"]["_1"]
    torch.testing.assert_close(mg.model(x), model(x))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["binary", "ternary"])
@pytest.mark.parametrize(
    ("layer", "norm", "shape"),
    [
        (nn.Linear(4, 6), nn.BatchNorm1d(6), (3, 4)),
        (nn.Conv2d(4, 6, 3), nn.BatchNorm2d(6), (3, 4, 5, 5)),
    ],
    ids=["linear", "convolution"],
)
def test_a_norm_after_binary_or_ternary_weights_is_left(name, layer, norm, shape):
    x = torch.randn(shape)
    mg = MaseGraph(shaken(nn.Sequential(copy.deepcopy(layer), norm)), dummy_in={"input": x})
    formats = {"by": "name", "0": {"config": {"weight": {"name": name}}}}
    mg, _ = passes.quantize_transform_pass(mg, formats)
    expected = mg.model(x)
    folded, info = passes.conv_bn_fusion_transform_pass(mg, {})
    assert "changes what" in info["skipped"]["_1"]
    assert torch.equal(folded.model(x), expected)


def test_a_quantized_linear_layer_keeps_its_formats():
    x = torch.randn(64, 4)
    model = shaken(nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6)))
    formats = {
        "by": "type",
        "linear": {"config": {"weight": {"name": "integer", "width": 8, "frac_width": 5}}},
    }
    small, _ = passes.quantize_transform_pass(MaseGraph(model, dummy_in={"input": x}), formats)
    folded, info = passes.conv_bn_fusion_transform_pass(small, {"frac_width": "mse"})
    assert info["fused"] == ["1"] and type(folded.model.get_submodule("0")) is QuantLinear
    assert (folded.model(x) - model(x)).abs().max() < 0.1


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("settings", "count"),
    [
        ({"name": "scale_integer", "width": 8}, 1),
        ({"name": "fp8"}, 1),
        ({"name": "scale_integer", "width": 8, "granularity": "row"}, 6),
        ({"name": "scale_integer", "width": 8, "granularity": "group", "group_size": 4}, 12),
    ],
    ids=str,
)
@pytest.mark.parametrize("gamma", [30.0, -0.02, 0.0])
def test_static_scales_follow_the_folded_weight(settings, count, gamma):
    x = torch.randn(64, 8)
    model = shaken(nn.Sequential(nn.Linear(8, 6), nn.BatchNorm1d(6)))
    nn.init.constant_(model[1].weight, gamma)
    weight = {**settings, "scales": [0.003 + 0.0005 * (k % 3) for k in range(count)]}
    formats = {"by": "type", "linear": {"config": {"weight": weight}}}
    small, _ = passes.quantize_transform_pass(MaseGraph(model, dummy_in={"input": x}), formats)
    expected = small.model(x)
    folded, info = passes.conv_bn_fusion_transform_pass(small, {})
    scales = folded.model.get_submodule("0").spec.weight.scales
    assert info["fused"] == ["1"] and len(scales) == count
    limit = 0.15 * abs(gamma) if count == 1 else 1e-5 * max(1, abs(gamma))
    assert (folded.model(x) - expected).abs().max() <= limit + 1e-6


def test_tied_weights_are_left_alone():
    model = nn.Sequential(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3), nn.Conv2d(3, 3, 1))
    model[2].weight = model[0].weight
    mg = MaseGraph(shaken(model), dummy_in={"input": torch.randn(2, 3, 4, 4)})
    _, info = passes.conv_bn_fusion_transform_pass(mg)
    assert info["skipped"] == {"_1": "the convolution shares its parameters with another module"}


def quantized(config):
    model = shaken(nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4)))
    mg = with_metadata(MaseGraph(model, dummy_in={"input": torch.randn(2, 3, 6, 6)}))
    return passes.quantize_transform_pass(mg, {"by": "type", **config})[0], model


def test_a_quantized_convolution_keeps_its_formats_or_derives_them_anew():
    spec = QuantSpec(Integer(16, 10), Integer(16, 12), Integer(16, 9), Integer(16, 8))
    norm = QuantSpec(bias=Integer(16, 11), data_out=Integer(20, 12))
    mg, model = quantized({"conv2d": {"config": spec}, "batch_norm2d": {"config": norm}})
    x = torch.randn(2, 3, 6, 6)
    kept, _ = passes.conv_bn_fusion_transform_pass(mg, {})
    spec = kept.modules["0"].spec
    assert (spec.weight, spec.data_out) == (Integer(16, 12), Integer(20, 12))
    assert spec.bias == Integer(16, 11)
    torch.testing.assert_close(kept.model(x), model(x), atol=2e-2, rtol=0)
    bias = kept.nodes[1].meta["mase"].common.args["bias"]
    assert (bias.shape, bias.precision) == ((4,), (16, 11))
    anew, _ = passes.conv_bn_fusion_transform_pass(mg, {"frac_width": "minmax"})
    weight = anew.modules["0"].weight
    assert anew.modules["0"].spec.weight == Integer(16, "minmax").fitted(weight)
    assert anew.modules["0"].spec.data_in == Integer(16, 10)


def test_a_quantized_norm_after_a_float_convolution_is_left_alone():
    mg, _ = quantized({"batch_norm2d": {"config": QuantSpec(Integer(8, 4))}})
    _, info = passes.conv_bn_fusion_transform_pass(mg, {})
    assert list(info["skipped"].values()) == ["the norm is quantized and the convolution is not"]


def test_a_mask_survives():
    model = shaken(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)))
    mask = torch.rand(4, 3, 3, 3) > 0.5
    x = torch.randn(2, 3, 6, 6)
    mg = MaseGraph(model, dummy_in={"input": x})
    pruned = QuantConv2d.from_float(mg.modules["0"], QuantSpec())
    pruned.register_buffer("weight_mask", mask)
    mg.replace(mg.node("_0"), pruned)
    fused, info = passes.conv_bn_fusion_transform_pass(mg, {})
    assert info["fused"] == ["1"]
    assert torch.equal(fused.modules["0"].weight_mask, mask)
    torch.testing.assert_close(fused.model(x), mg.model(x), atol=1e-5, rtol=1e-5)


def test_the_fused_model_trains_and_survives_export(tmp_path):
    mg, _ = passes.conv_bn_fusion_transform_pass(MaseGraph(shaken(BUILTIN_MODELS["cnn"].build(10))))
    x = torch.randn(4, 1, 8, 8)
    mg.model.train()
    mg.model(pixel_values=x).logits.sum().backward()
    assert all(parameter.grad is not None for parameter in mg.model.parameters())
    mg.export(tmp_path / "fused")
    again = MaseGraph.from_checkpoint(tmp_path / "fused")
    assert torch.equal(again.model(pixel_values=x).logits, mg.model(pixel_values=x).logits)


COMPUTED = {
    "weight norm": parametrizations.weight_norm,
    "spectral norm": parametrizations.spectral_norm,
    "orthogonal": parametrizations.orthogonal,
    "own": lambda layer: parametrize.register_parametrization(layer, "weight", Square()) or layer,
    "own bias": lambda layer: (
        parametrize.register_parametrization(layer, "bias", Square()) or layer
    ),
    "torch's mask": lambda layer: prune.l1_unstructured(layer, "weight", 0.5),
}


def with_statistics(norm):
    torch.manual_seed(1)
    for x in (norm.running_mean, norm.bias):
        nn.init.uniform_(x, -1, 1)
    for x in (norm.running_var, norm.weight):
        nn.init.uniform_(x, 0.5, 2)
    return norm


@pytest.mark.parametrize("kind", COMPUTED)
@pytest.mark.parametrize(
    "layers, shape",
    [
        ((nn.Conv1d, nn.BatchNorm1d), (2, 4, 9)),
        ((nn.Conv2d, nn.BatchNorm2d), (2, 4, 6, 6)),
        ((nn.ConvTranspose2d, nn.BatchNorm2d), (2, 4, 5, 5)),
        ((nn.Conv3d, nn.BatchNorm3d), (2, 4, 4, 4, 4)),
    ],
)
@pytest.mark.sampled(1)
def test_computed_weights_are_left_and_named(kind, layers, shape):
    torch.manual_seed(0)
    convolution, norm = layers[0](4, 4, 2), with_statistics(layers[1](4))
    plain, other = layers[0](4, 4, 2), with_statistics(layers[1](4))
    net = nn.Sequential(COMPUTED[kind](convolution), norm, nn.ReLU(), plain, other).eval()
    x = torch.randn(shape)
    net(x)
    mg = MaseGraph(net, dummy_in={"input": x})
    fused, info = passes.conv_bn_fusion_transform_pass(mg, {})
    reason = "torch.nn.utils.prune" if kind == "torch's mask" else "a parametrization"
    assert info["fused"] == ["4"]
    assert info["skipped"] == {"_1": f"the weight of the convolution is computed by {reason}"}
    torch.testing.assert_close(fused.model(x), net(x), atol=1e-5, rtol=1e-5)
    norm_first = nn.Sequential(layers[0](4, 4, 2), with_statistics(layers[1](4))).eval()
    parametrize.register_parametrization(norm_first[1], "weight", Square())
    mg = MaseGraph(norm_first, dummy_in={"input": x})
    _, info = passes.conv_bn_fusion_transform_pass(mg, {})
    assert info["skipped"] == {"_1": "the weight of the norm is computed by a parametrization"}


@pytest.mark.parametrize("learns", [True, False])
def test_scales_of_channels_are_folded_with_their_channels(learns, tmp_path):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), with_statistics(nn.BatchNorm2d(4)), nn.ReLU()).eval()
    net[1].running_var.copy_(torch.tensor([0.01, 1.0, 25.0, 400.0]))
    x = torch.randn(8, 3, 6, 6)
    weight = {"name": "scale_integer", "width": 4, "granularity": "channel"}
    settings = {"weight": weight, "data_in": None, "bias": None, "gradient": "lsq"}
    rule = {"by": "type", "conv2d": {"config": settings}}
    mg, _ = passes.quantize_transform_pass(MaseGraph(net, dummy_in={"input": x}), rule)
    mg.model(x)
    scales = mg.modules["0"].weight_scale.detach().clone()
    if not learns:
        mg.replace(mg.node("_0"), mg.modules["0"].freeze_scales())
    expected = mg.model(x)
    fused, info = passes.conv_bn_fusion_transform_pass(mg, {})
    assert info["fused"] == ["1"]
    torch.testing.assert_close(fused.model(x), expected, atol=1e-5, rtol=1e-5)
    layer = fused.modules["0"]
    if learns:
        factors = net[1].weight * (net[1].running_var + net[1].eps).rsqrt()
        torch.testing.assert_close(layer.weight_scale, scales * factors)
        assert torch.equal(mg.modules["0"].weight_scale, scales)
    fused.export(tmp_path / "fused")
    again = MaseGraph.from_checkpoint(tmp_path / "fused")
    assert torch.equal(again.model(x), fused.model(x))
    fused.model.train()(x).square().mean().backward()
    assert layer.weight.grad.abs().sum() > 0 and (not learns or layer.weight_scale.grad is not None)


@pytest.mark.parametrize("frac_width", ["keep", "mse"])
def test_a_weight_that_leaves_the_range_of_its_integers_is_told(frac_width):
    mg, _ = quantized({"conv2d": {"config": QuantSpec(Integer(16, 8), Integer(8, 7))}})
    mg.modules["1"].weight.data.fill_(40.0)
    settings = {"frac_width": frac_width}
    if frac_width == "mse":
        passes.conv_bn_fusion_transform_pass(mg, settings)  # a warning is an error
        return
    with pytest.warns(AdjustedWarning, match=r"folded weight of '0' reaches .* saturates at 1 "):
        passes.conv_bn_fusion_transform_pass(mg, settings)
