import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.profiler import profile

from chop import MaseGraph, passes
from chop.nn.fused import ACTIVATIONS, LinearActivation
from chop.nn.fused.linear_activation import MIN_PRODUCTS

from .conftest import with_metadata

WIDTH = 96
ROWS = MIN_PRODUCTS // WIDTH**2 + 1
needs_onednn = pytest.mark.skipif(
    not torch.backends.mkldnn.is_available(), reason="this torch has no oneDNN"
)


class Block(nn.Module):
    """Two layers, and an activation between them that `apply` computes."""

    def __init__(self, apply):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH, bias=False)
        self.act = apply if isinstance(apply, nn.Module) else None
        self.apply_function = apply

    def forward(self, x):
        y = self.up(x)
        return self.down(self.act(y) if self.act is not None else self.apply_function(y))


FORMS = {
    "relu": [F.relu, torch.relu, torch.Tensor.relu_, nn.ReLU(inplace=True)],
    "gelu": [F.gelu, nn.GELU()],
    "gelu_tanh": [lambda y: F.gelu(y, approximate="tanh"), nn.GELU("tanh")],
    "silu": [F.silu, nn.SiLU()],
    "tanh": [torch.tanh, torch.Tensor.tanh, nn.Tanh()],
    "sigmoid": [torch.sigmoid, nn.Sigmoid()],
}
ALL_FORMS = [(name, form) for name, forms in FORMS.items() for form in forms]


def raised(model):
    return with_metadata(MaseGraph(model.eval(), dummy_in={"x": torch.randn(3, WIDTH)}))


def operators_run(model, x):
    with profile() as record:
        model(x)
    return {event.key for event in record.key_averages()}


@pytest.mark.parametrize("name, form", ALL_FORMS)
@pytest.mark.sampled(3)
def test_every_form_of_an_activation_is_taken_over(name, form):
    mg = raised(Block(form))
    fused, info = passes.fuse_linear_activation_transform_pass(mg, {})
    assert info == {"fused": ["up"], "skipped": {}}
    layer = fused.model.up
    assert isinstance(layer, LinearActivation) and layer.activation == name
    assert len(fused.nodes) == len(mg.nodes) - 1
    assert fused.model.state_dict().keys() == mg.model.state_dict().keys()
    for rows in (0, 1, ROWS):
        x = torch.randn(rows, WIDTH)
        with torch.inference_mode():
            torch.testing.assert_close(fused.model(x), mg.model(x), atol=1e-5, rtol=1e-5)
    x = torch.randn(ROWS, WIDTH)
    for model in (mg.model, fused.model):
        model.train().zero_grad()
        model(x).square().sum().backward()
    for ours, naive in zip(fused.model.parameters(), mg.model.parameters(), strict=True):
        assert torch.equal(ours.grad, naive.grad)


@needs_onednn
@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("bias", [True, False])
def test_the_kernel_equals_its_reference(name, bias):
    layer = LinearActivation.from_linear(nn.Linear(WIDTH, 2 * WIDTH, bias=bias), name)
    strided = torch.randn(WIDTH, 2, ROWS).permute(1, 2, 0)
    extreme = torch.randn(ROWS, WIDTH)
    extreme[0], extreme[1, 0], extreme[2], extreme[3, 0] = 0, 1e30, -50, math.nan
    with torch.inference_mode():
        for x in (torch.randn(ROWS, WIDTH), torch.randn(7, ROWS, WIDTH), strided, extreme):
            y = layer(x)
            expected = layer.reference(x)
            torch.testing.assert_close(y, expected, atol=1e-5, rtol=1e-5, equal_nan=True)
            assert y.shape == (*x.shape[:-1], 2 * WIDTH)
        ran = operators_run(layer, strided)
    assert "mkldnn::_linear_pointwise" in ran and "aten::addmm" not in ran


@needs_onednn
def test_small_products_other_dtypes_and_training_take_the_plain_form():
    layer = LinearActivation.from_linear(nn.Linear(WIDTH, WIDTH), "gelu")
    kernel = "mkldnn::_linear_pointwise"
    assert kernel not in operators_run(layer, torch.randn(ROWS, WIDTH))
    layer.weight.requires_grad_(False)
    layer(torch.randn(ROWS, WIDTH)).sum().backward()
    assert layer.bias.grad.abs().max() > 0
    with torch.no_grad():
        assert kernel in operators_run(layer, torch.randn(ROWS, WIDTH))
        assert kernel not in operators_run(layer, torch.randn(1, WIDTH))
        with torch.autocast("cpu", torch.bfloat16):
            assert layer(torch.randn(ROWS, WIDTH)).dtype == torch.bfloat16
        assert kernel not in operators_run(layer.double(), torch.randn(ROWS, WIDTH).double())


class Branches(nn.Module):
    """Layers that must stay: read twice, called twice, hooked, parametrized."""

    def __init__(self):
        super().__init__()
        self.twice, self.read, self.hooked = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.hooked.register_forward_hook(lambda module, inputs, y: None)
        self.normed = nn.utils.parametrizations.weight_norm(nn.Linear(WIDTH, WIDTH))

    def forward(self, x):
        x = self.twice(self.twice(x).relu())
        y = self.read(x)
        return self.normed(self.hooked(y.relu() + y).relu()).relu()


def test_layers_that_others_look_at_stay():
    mg = raised(Branches())
    fused, info = passes.fuse_linear_activation_transform_pass(mg, {})
    assert info["fused"] == []
    assert info["skipped"] == {
        "twice": "it is used in several places",
        "read": "its result has other readers",
        "hooked": "it, or its activation, has hooks",
        "normed": "it is a ParametrizedLinear instead of a plain nn.Linear",
    }
    assert mg.diff(fused) == []


def test_quantized_activations_stay():
    integer = {"name": "integer", "width": 8, "frac_width": 5}
    rules = {"by": "type", "gelu": {"config": {"data_in": integer}}}
    quantized, _ = passes.quantize_transform_pass(raised(Block(nn.GELU())), rules)
    fused, info = passes.fuse_linear_activation_transform_pass(quantized, {})
    assert info["fused"] == [] and list(info["skipped"]) == ["up"]
    assert quantized.diff(fused) == []


def test_fused_layers_are_exported(tmp_path):
    fused, _ = passes.fuse_linear_activation_transform_pass(raised(Block(F.gelu)), {})
    fused.export(tmp_path / "fused")
    x = torch.randn(ROWS, WIDTH)
    again = MaseGraph.from_checkpoint(tmp_path / "fused")
    assert isinstance(again.model.up, LinearActivation)
    assert torch.equal(again.model(x), fused.model(x))
