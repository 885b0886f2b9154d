"""Operators with learned scales: where they start, what keeps them, how they settle."""

import copy
import pickle

import pytest
import torch
from safetensors.torch import load, save
from torch import nn

from chop.errors import ConfigError
from chop.formats import (
    BinaryResidual,
    Integer,
    MXInt,
    QuantSpec,
    ScaleInteger,
    Ternary,
    initial_scales,
)
from chop.nn import quantized as q
from chop.nn.lora import LoraLinear
from chop.nn.quantized.modules.linear import LinearBinaryResidualSign, LinearScaleInteger
from chop.nn.sparsity.mask import attach_mask
from tests.nn.test_quantized import EXAMPLES, example
from tests.subcases import subcases

CHANNEL = ScaleInteger(4, granularity="channel")
SPEC = QuantSpec(ScaleInteger(4), CHANNEL, MXInt(), gradient="lsq")


def linear(spec=SPEC):
    torch.manual_seed(0)
    return q.QuantLinear.from_float(nn.Linear(12, 5), spec)


def test_parameters_are_there_before_the_first_forward_and_start_at_it():
    layer = linear()
    scales = dict(layer.named_parameters())
    assert scales["weight_scale"].shape == (5,) and scales["data_in_scale"].shape == (1,)
    assert layer.waiting == ("data_in", "weight")
    assert not layer.weight_scale.any() and not layer.data_in_scale.any()
    layer.weight.data = 3 * layer.weight.data  # as users of the constructors do
    x = torch.randn(4, 6, 12)
    y = layer(x)
    assert scales["weight_scale"] is layer.weight_scale and layer.waiting == ()
    assert torch.equal(layer.weight_scale, initial_scales(CHANNEL, layer.weight))
    expected = 2 * x.abs().mean() / 7**0.5
    torch.testing.assert_close(layer.data_in_scale.detach(), expected.reshape(1))
    layer.weight.data = 2 * layer.weight.data
    layer(100 * x)
    torch.testing.assert_close(layer.data_in_scale.detach(), expected.reshape(1))
    assert y.shape == (4, 6, 5)


def test_one_step_moves_scales_and_weights_and_lowers_the_loss():
    layer, x = linear(), torch.randn(64, 12)
    target = nn.Linear(12, 5)(x).detach()
    optimizer = torch.optim.Adam(layer.parameters(), lr=1e-2)
    losses = []
    for _ in range(30):
        loss = (layer(x) - target).square().mean()
        optimizer.zero_grad()
        loss.backward()
        assert all(p.grad.isfinite().all() and p.grad.abs().sum() > 0 for p in layer.parameters())
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]


def test_learned_gammas_of_a_residual_move_and_fit_better_than_measured_ones():
    """Skewed values: means of magnitudes are not the best factors."""
    x = torch.randn(64, 16).exp()
    losses = {}
    for gradient in ("identity", "lsq"):
        layer = q.QuantReLU(config={"data_in": BinaryResidual(levels=3), "gradient": gradient})
        layer(x)
        before = [p.detach().clone() for p in layer.parameters()]
        optimizer = torch.optim.Adam(layer.parameters(), lr=1e-2) if before else None
        for _ in range(200 if before else 0):
            optimizer.zero_grad()
            (layer(x) - x).square().mean().backward()
            optimizer.step()
        losses[gradient] = (layer(x) - x).square().mean().item()
    assert losses["lsq"] < 0.8 * losses["identity"]
    assert ((layer.data_in_scale - before[0]).abs() > 0.01).all()


@pytest.mark.parametrize(
    "fmt", [ScaleInteger(3), CHANNEL, BinaryResidual(), Ternary(scaling_factor=True)], ids=str
)
def test_a_settled_operator_computes_the_same_and_learns_nothing(fmt):
    layer, x = linear(QuantSpec(fmt, fmt, fmt, fmt, gradient="lsq")), torch.randn(7, 12)
    layer(x)
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            parameter.mul_(1.1 if name.endswith("_scale") else 1.0)
    settled = layer.freeze_scales()
    assert torch.equal(settled(x), layer(x))
    assert [name for name, _ in settled.named_parameters()] == ["weight", "bias"]
    assert settled.spec.lsq_operands == [] and settled.freeze_scales() is settled
    assert settled.spec.weight.scales is not None and layer.spec.weight.scales is None
    again = settled.with_spec(QuantSpec(*(f for _, f in settled.spec.items()), gradient="lsq"))
    assert torch.equal(again(x), layer(x)) and again.weight_scale.requires_grad


def test_what_still_waits_cannot_settle():
    with pytest.raises(ConfigError, match="data_in are uninitialized.*calibrate_transform_pass"):
        linear().freeze_scales()
    only_weight = linear(QuantSpec(weight=CHANNEL, gradient="lsq"))
    start = initial_scales(CHANNEL, only_weight.weight)
    assert only_weight.freeze_scales().spec.weight == CHANNEL.with_scales(start)
    assert only_weight.waiting == ("weight",)


def test_copies_and_files_keep_scales_and_whether_they_started():
    layer, x = linear(), torch.randn(3, 12)
    layer(x)
    with torch.no_grad():
        layer.data_in_scale.mul_(1.5)
    fresh = linear()
    fresh.load_state_dict(load(save(layer.state_dict())))
    for twin in (fresh, copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert twin.waiting == () and torch.equal(twin(x), layer(x))
    waiting = linear()
    waiting.load_state_dict(linear().state_dict())
    assert waiting.waiting == ("data_in", "weight")


def test_other_formats_keep_the_scales_of_operands_that_stay():
    layer = linear()
    layer(torch.randn(3, 12))
    weight_scale, before = layer.weight_scale, list(layer.state_dict())
    other = layer.with_spec(QuantSpec(ScaleInteger(8), CHANNEL, gradient="lsq"))
    assert other.weight_scale is weight_scale and other.waiting == ("data_in",)
    assert list(layer.state_dict()) == before and layer.waiting == ()
    plain = layer.with_spec(QuantSpec(ScaleInteger(8), CHANNEL))
    assert list(plain.state_dict()) == ["weight", "bias"] and plain.waiting == ()
    assert plain(torch.randn(2, 12)).isfinite().all()


def test_a_mask_and_an_adapter_on_top():
    layer, x = linear(), torch.randn(3, 12)
    attach_mask(layer, layer.weight.abs() < 0.1, {"method": "l1-norm"})
    y = layer(x)
    shown = torch.where(layer.weight_mask, layer.weight, 0)
    assert torch.equal(layer.weight_scale, initial_scales(CHANNEL, shown.detach()))
    y.sum().backward()
    assert (layer.weight.grad[~layer.weight_mask] == 0).all()
    assert torch.equal(layer.freeze_scales()(x), y)
    lora = LoraLinear.around(layer, rank=2)
    assert torch.equal(lora(x), y) and lora.weight_scale is layer.weight_scale
    assert torch.equal(lora.freeze_scales()(x), y) and isinstance(lora.freeze_scales(), LoraLinear)


def test_empty_inputs_start_nothing_and_types_follow_the_module():
    layer = linear()
    assert layer(torch.randn(0, 12)).shape == (0, 5) and "data_in" in layer.waiting
    half = linear().to(torch.bfloat16)
    x = torch.randn(3, 12, dtype=torch.bfloat16)
    assert half(x).dtype == torch.bfloat16 and half.data_in_scale.dtype == torch.bfloat16
    assert torch.equal(half.freeze_scales()(x), half(x))


@pytest.mark.parametrize("blank", [0.0, torch.nan])
def test_inputs_without_a_magnitude_start_nothing(blank):
    layer, x = linear(), torch.randn(4, 12)
    y = layer(torch.full((4, 12), blank))
    assert torch.equal(y.isnan(), torch.full((4, 5), blank != 0)) and "data_in" in layer.waiting
    layer(x)
    assert layer.waiting == () and layer.data_in_scale > 0.1


@pytest.mark.long
def test_compiles_as_a_whole_once_it_has_started():
    layer, x = linear(), torch.randn(3, 12)
    torch._dynamo.reset()
    with pytest.raises(Exception, match="exception"):
        torch.compile(linear(), fullgraph=True, backend="aot_eager")(x)
    with torch.no_grad():  # the first batch, outside the graph
        y = torch.compile(layer, backend="aot_eager")(x)
    assert layer.waiting == () and torch.equal(y, layer(x))
    y = layer(x)
    calls = torch.export.export(layer, (x,)).graph.find_nodes(
        op="call_function", target=torch.ops.chop.lsq_fake_quantize.default
    )
    assert len(calls) == 2
    y.square().sum().backward()
    expected = {name: p.grad.clone() for name, p in layer.named_parameters()}
    layer.zero_grad()
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    z = compiled(x)
    z.square().sum().backward()
    assert torch.equal(y, z) and expected.keys() == dict(layer.named_parameters()).keys()
    for name, parameter in layer.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name])


@subcases("name", EXAMPLES)
def test_every_operator_learns_the_scales_of_what_it_quantizes(name):
    module, x, twin = example(name)
    present = twin.present_operands(module)
    fmt = ScaleInteger(6)
    layer = twin.from_float(module, QuantSpec(fmt, fmt, fmt, fmt, gradient="lsq")).eval()
    y = layer(x)
    y.square().sum().backward()
    learned = {n: p for n, p in layer.named_parameters() if n.endswith("_scale")}
    assert set(learned) == {f"{operand}_scale" for operand in (*present, "data_out")}
    assert all(p.grad.isfinite().all() for p in learned.values())
    assert any(p.grad.abs().sum() > 0 for p in learned.values())
    assert layer.waiting == () and torch.equal(layer.freeze_scales()(x), y)


def test_calls_attention_and_bound_classes():
    spec = QuantSpec(ScaleInteger(6), ScaleInteger(6), gradient="lsq")
    attention = q.QuantScaledDotProductAttention(spec)
    query, key, value = torch.randn(3, 2, 2, 5, 4)
    y = attention(query, key, value)
    names = {name for name, _ in attention.named_parameters()}
    steps = {"product.data_in_scale", "softmax.data_in_scale"}
    assert names == {*steps, "context.data_in_scale", "context.weight_scale"}
    settled = attention.freeze_scales()
    assert torch.equal(settled(query, key, value), y) and not list(settled.parameters())
    assert len(list(attention.with_spec(spec).parameters())) == 4
    mixed = QuantSpec(Integer(8, 4), ScaleInteger(6), data_out=ScaleInteger(8), gradient="lsq")
    assert attention.with_spec(mixed)(query, key, value).shape == y.shape
    call = q.QuantCall(torch.add, {"input": "data_in", "other": "data_in"}, spec)
    call(query, key)
    assert torch.equal(call.freeze_scales()(query, key), call(query, key))
    config = {"data_in_width": 4, "weight_width": 4, "bias_width": 8, "gradient": "lsq"}
    bound = LinearScaleInteger(12, 5, config=config)
    assert torch.equal(bound(query.new_ones(2, 12)), bound.freeze_scales()(query.new_ones(2, 12)))
    assert LinearBinaryResidualSign(4, 2, config={"gradient": "lsq"}).weight_scale.shape == (2,)


def test_an_operand_of_zeros_leaves_the_start_to_the_other():
    """A branch that starts at zero, as of adapters, and what it is added to."""
    spec = QuantSpec(ScaleInteger(8), gradient="lsq")
    added = q.QuantCall(torch.add, {"input": "data_in", "other": "data_in"}, spec)
    x, y = torch.zeros(2, 3, requires_grad=True), torch.randn(2, 3, requires_grad=True)
    added(x, y).sum().backward()
    assert added.data_in_scale.all()
    assert x.grad.isfinite().all() and y.grad.isfinite().all()
