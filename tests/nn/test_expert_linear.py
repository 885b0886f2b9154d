"""Quantized and packed layers of several experts."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from chop.captured.layers.expert_linear import ExpertLinear
from chop.errors import ConfigError
from chop.formats import FP8, Float, QuantSpec, parse_format_string
from chop.nn.packed import PackedExpertLinear, pack
from chop.nn.quantized import QuantExpertLinear
from chop.quantization.rounding.experts import layer_of_expert

FORMATS = ("mxint:width=4", "mxint:width=8", "nvfp4", "mxfp", "group_integer:width=4", "ternary")
HIT = torch.tensor([2, 0, 2, 2, 0])


class CodesRead(TorchDispatchMode):
    """Counts the bytes of codes that are decoded or multiplied."""

    bytes = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        places = {torch.ops.chop.decode.default: 0, torch.ops.chop.packed_linear.default: 2}
        if func in places:
            self.bytes += args[places[func]].numel()
        return func(*args, **(kwargs or {}))


def quantized(
    sizes: tuple[int, int, int] = (4, 32, 24), weight: str = "mxint:width=4", **others: str
) -> QuantExpertLinear:
    torch.manual_seed(0)
    texts = {"weight": weight, **others}
    spec = QuantSpec().with_quantizers(**{n: parse_format_string(x) for n, x in texts.items()})
    return QuantExpertLinear.from_float(ExpertLinear(*sizes), spec).eval()


def inputs(features: int = 32) -> Tensor:
    return torch.randn(len(HIT), features, generator=torch.Generator().manual_seed(1))


def test_with_float_formats_it_is_the_float_layer() -> None:
    layer = ExpertLinear(4, 32, 24)
    twin = QuantExpertLinear.from_float(layer, QuantSpec())
    assert torch.equal(twin(inputs(), HIT), layer(inputs(), HIT))
    assert twin.weight is layer.weight and list(twin.state_dict()) == list(layer.state_dict())


@pytest.mark.parametrize("name", FORMATS)
def test_matrices_of_experts_are_rounded_as_one(name: str) -> None:
    layer, x = quantized(weight=name), inputs()
    rounded = layer.spec.number_format("weight").round(layer.weight.detach()).view(4, 24, 32)
    expected = [F.linear(r, rounded[e], layer.bias[e]) for r, e in zip(x, HIT, strict=True)]
    torch.testing.assert_close(layer(x, HIT), torch.stack(expected))


@pytest.mark.parametrize("name", FORMATS)
@torch.no_grad()
def test_codes_give_the_same_bits(name: str) -> None:
    layer, x = quantized(weight=name), inputs()
    packed = pack(layer)
    assert type(packed) is PackedExpertLinear
    assert torch.equal(packed(x, HIT), layer(x, HIT))
    assert torch.equal(packed.unpack()(x, HIT), layer(x, HIT))
    assert torch.equal(packed.weight, layer.quantize("weight", layer.weight))


@pytest.mark.parametrize("sizes", [(4, 32, 24), (4, 160, 128)], ids=["small", "by_a_kernel"])
@torch.no_grad()
def test_only_codes_of_experts_with_rows_are_read(sizes: tuple[int, int, int]) -> None:
    packed, x = pack(quantized(sizes)), inputs(sizes[1])
    for expert in (HIT, HIT * 0 + 3, HIT[:0]):
        with CodesRead() as read:
            packed(x[: len(expert)], expert)
        share = len(expert.unique()) / 4
        assert read.bytes == share * packed.weight_codes.numel()


@torch.no_grad()
def test_a_kernel_multiplies_by_large_codes() -> None:
    layer, x = quantized((4, 160, 128)), inputs(160)
    torch.testing.assert_close(pack(layer)(x, HIT), layer(x, HIT), rtol=1e-5, atol=1e-5)
    assert torch.equal(pack(layer, exact=True)(x, HIT), layer(x, HIT))


@torch.no_grad()
def test_one_scale_for_all_decodes_all() -> None:
    layer, x = quantized(weight="scale_integer:width=8"), inputs()
    packed = pack(layer)
    with CodesRead() as read:
        y = packed(x, HIT)
    assert read.bytes in (0, packed.weight_codes.numel()) and torch.equal(y, layer(x, HIT))


@torch.no_grad()
def test_inputs_biases_and_results_have_formats_too() -> None:
    names = dict.fromkeys(("data_in", "bias", "data_out"), "mxint:width=6")
    layer, x = quantized(**names), inputs()
    y = layer(x, HIT)
    assert torch.equal(y, layer.quantize("data_out", y)) and not torch.equal(y, quantized()(x, HIT))
    assert torch.equal(pack(layer)(x, HIT), y)


def test_weights_learn_through_their_rounding() -> None:
    layer, x = quantized().train(), inputs()
    layer(x, HIT).square().sum().backward()
    by_expert = layer.weight.grad.view(4, -1).abs().sum(1)
    assert (by_expert > 0).tolist() == [True, False, True, False]
    with pytest.raises(ConfigError, match="a PackedExpertLinear cannot be trained"):
        pack(layer).train()(x, HIT)


@torch.no_grad()
def test_other_dtypes_devices_and_copies() -> None:
    packed, x = pack(quantized((4, 160, 128))), inputs(160)
    y = packed(x, HIT)
    with torch.inference_mode():
        assert torch.equal(copy.deepcopy(packed)(x, HIT), y)
    half = copy.deepcopy(packed).to(torch.bfloat16)
    torch.testing.assert_close(half(x.bfloat16(), HIT).float(), y, rtol=0.05, atol=0.05)
    assert packed.to("meta")(x.to("meta"), HIT.to("meta")).shape == y.shape


@pytest.mark.long
@torch.no_grad()
def test_a_compiler_sees_one_graph() -> None:
    packed, x = pack(quantized((4, 160, 128))), inputs(160)
    compiled = torch.compile(packed, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x, HIT), packed(x, HIT), rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_state_dicts_hold_the_codes() -> None:
    packed, other = pack(quantized()), pack(quantized(bias="mxint:width=8"))
    assert list(packed.state_dict()) == ["bias", "weight_codes", "weight_scales"]
    assert "bias_codes" in other.state_dict()
    twin = pack(QuantExpertLinear.from_float(ExpertLinear(4, 32, 24), packed.spec)).eval()
    twin.load_state_dict(packed.state_dict())
    assert torch.equal(twin(inputs(), HIT), packed(inputs(), HIT))


def with_static_scales(**changes: Any) -> QuantExpertLinear:
    layer = quantized()
    scales = tuple(changes.pop("scales", (0.01, 0.02, 0.03, 0.04)))
    kind = FP8(granularity="channel", scales=scales)
    return layer.with_spec(dataclasses.replace(layer.spec, data_in=kind, **changes))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [4, 5])  # as many as experts, and not
def test_static_scales_of_inputs_are_those_of_the_experts(rows: int, dtype: torch.dtype) -> None:
    layer, expert = with_static_scales().to(dtype), HIT[:rows]
    x = (inputs()[:rows] * 3).to(dtype)
    single = [
        FP8(scales=(0.01 * (int(n) + 1),)).round(row) for n, row in zip(expert, x, strict=True)
    ]
    expected = torch.stack(single)
    assert torch.equal(layer.round_inputs(x, expert), expected)
    assert torch.equal(pack(layer).round_inputs(x, expert), expected)
    x.requires_grad_()
    with_gradient = layer.round_inputs(x, expert)
    assert torch.equal(with_gradient, expected)
    with_gradient.sum().backward()
    assert torch.equal(x.grad, torch.ones_like(x))


def test_static_scales_of_inputs_are_learned_by_expert() -> None:
    layer = with_static_scales(gradient="lsq", weight=Float()).train()
    x = inputs()
    layer(x, HIT).square().sum().backward()
    found = layer.data_in_scale.grad != 0
    assert found.tolist() == [n in HIT for n in range(4)]
    with torch.no_grad():
        layer.data_in_scale.mul_(2)
    settled = layer.freeze_scales()
    assert settled.spec.data_in.scales == pytest.approx((0.02, 0.04, 0.06, 0.08))
    assert torch.equal(settled(x, HIT), layer(x, HIT))


@pytest.mark.parametrize("granularity", ["tensor", "channel"])
@torch.no_grad()
def test_the_layer_of_an_expert_has_the_learned_scales(granularity: str) -> None:
    weight = f"scale_integer:width=4:granularity={granularity}"
    single = quantized(weight=weight, data_in="scale_integer:width=8")
    single = single.with_spec(dataclasses.replace(single.spec, gradient="lsq")).train()
    by_expert = with_static_scales(gradient="lsq", weight=parse_format_string(weight)).train()
    for layer in (single, by_expert):
        layer(inputs(), HIT)  # starts them
        for scales in (layer.data_in_scale, layer.weight_scale):
            scales.mul_(torch.linspace(0.5, 2, len(scales)))
        expected = layer(inputs(), HIT)
        for number in (0, 2):
            rows = layer_of_expert(layer, number)(inputs()[number == HIT])
            torch.testing.assert_close(rows + layer.bias[number], expected[number == HIT])


def test_scales_of_inputs_that_no_experts_have_are_refused() -> None:
    layer = with_static_scales(scales=(0.1, 0.2, 0.3, 0.4, 0.5))
    for each in (layer, pack(layer)):
        with pytest.raises(ConfigError, match="one static scale or 4, one per expert, got 5"):
            each(inputs(), HIT)
