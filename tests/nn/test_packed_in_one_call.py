"""Small packed layers of 8-bit integers: rounding, product, scales and bias in one call."""

import copy
import gc
import weakref
from contextlib import suppress

import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode

from chop.formats import FP8, Binary, Integer, MXInt, QuantSpec, ScaleInteger
from chop.kernels.codes import fixed_tables
from chop.kernels.cpu import build, int8
from chop.nn import quantized as q
from chop.nn.packed import pack
from chop.nn.packed.operators import _are_integers
from chop.nn.weight_cache import cached_bytes
from tests.subcases import subcases

SPECS = {
    "fixed point": QuantSpec(data_in=Integer(8, 5), weight=Integer(8, 7), bias=Integer(8, 7)),
    "float bias": QuantSpec(data_in=Integer(8, 5), weight=Integer(8, 7)),
    "4 bits": QuantSpec(data_in=Integer(4, 2), weight=Integer(4, 3), bias=Integer(6, 4)),
    "4 and 5 bits, rows and channels": QuantSpec(
        data_in=ScaleInteger(4, granularity="row"), weight=ScaleInteger(5, granularity="channel")
    ),
    "rows and channels": QuantSpec(
        data_in=ScaleInteger(8, granularity="row"), weight=ScaleInteger(8, granularity="channel")
    ),
    "whole tensors": QuantSpec(
        data_in=ScaleInteger(8), weight=ScaleInteger(8), data_out=Integer(12, 6)
    ),
}
EXACT = ("fixed point", "float bias", "4 bits")
"""Of powers of two and short sums: float32 adds them without rounding."""


@pytest.fixture(autouse=True)
def _loops():
    if build.library().library is None:
        pytest.skip(build.library().detail)


@pytest.fixture
def calls(monkeypatch):
    """Which products are called."""
    found = []
    call = int8.Product.__call__

    def counted(product, x):
        y = call(product, x)
        found.append(y is not None)
        return y

    monkeypatch.setattr(int8.Product, "__call__", counted)
    return found


def layer_of(spec, bias=True, inputs=48, outputs=20):
    """A layer, and its packed twin; `spec` is one of those above or of the test's own."""
    linear = nn.Linear(inputs, outputs, bias=bias)
    layer = q.QuantLinear.from_float(linear, SPECS.get(spec, spec)).eval()
    return layer, pack(layer).eval()


@subcases("name", SPECS)
@subcases("bias", [True, False])
def test_the_result_is_that_of_the_layer(name, bias, calls):
    layer, twin = layer_of(name, bias)
    for shape in [(48,), (1, 48), (3, 5, 48), (40, 48)]:
        x = 3 * torch.randn(shape)
        with torch.inference_mode():
            expected, found = layer(x), twin(x)
        assert calls.pop() and not calls
        if name in EXACT:
            assert torch.equal(found, expected)
        else:
            step = 2.0**-6 if name == "whole tensors" else 0
            assert ((found - expected).abs() <= 1e-5 + step).all()


@subcases("name", SPECS)
def test_a_row_has_one_result_among_any_others(name):
    _, twin = layer_of(name)
    x = torch.randn(37, 48)
    if name == "whole tensors":  # which share a scale
        x[:] = x.sign()
    with torch.no_grad():
        together = twin(x)
        for rows in (1, 2, 5, 9):
            assert torch.equal(twin(x[:rows]), together[:rows])
        assert torch.equal(twin(x[11]), together[11])


def test_what_has_to_be_seen_takes_the_way_that_shows_it(calls):
    layer, twin = layer_of("float bias")
    x = torch.randn(4, 48)
    assert twin(x).requires_grad  # its bias learns
    given = x.clone().requires_grad_()
    twin(given).sum().backward()
    assert given.grad is not None
    spread = torch.randn(4, 96)[:, ::2]
    with torch.no_grad():
        with torch.autocast("cpu", torch.bfloat16):
            assert twin(x).dtype == torch.bfloat16
        torch.testing.assert_close(twin(spread), layer(spread), rtol=0, atol=0)
        assert twin(x[:0]).shape == (0, 20)
        assert torch.equal(torch.vmap(twin)(x), layer(x))
        assert torch.equal(pack(layer, exact=True).eval()(x), layer(x))
        exported = torch.export.export(twin, (x,)).module()
        assert torch.equal(exported(x), layer(x))
    assert calls == []
    with torch.no_grad():
        assert twin.bfloat16()(x.bfloat16()).dtype == torch.bfloat16
    assert calls == []


def test_nan_and_infinity_are_those_of_the_layer(calls):
    for name in SPECS:
        layer, twin = layer_of(name)
        x = torch.randn(4, 48)
        x[1, 2], x[3, 4] = torch.nan, -torch.inf
        with torch.no_grad():
            expected, found = layer(x), twin(x)
        assert calls.pop() is False
        assert torch.equal(found.isnan(), expected.isnan())


def test_other_codes_and_another_bias_are_noticed(calls):
    layer, twin = layer_of("float bias")
    x = torch.randn(4, 48)

    def check():
        with torch.no_grad():
            reference = q.QuantLinear.from_float(twin.unpack(), twin.spec).eval()
            assert torch.equal(twin(x), reference(x))
        assert calls.pop()

    check()
    with torch.no_grad():
        twin.bias.add_(1)
        check()
        twin.bias = nn.Parameter(torch.randn(20))
        check()
        twin.weight = torch.randint(-100, 100, (20, 48)) / 128
        check()
        twin.weight_codes.zero_()
        check()
        twin.load_state_dict(pack(layer).state_dict())
        check()
    clone = copy.deepcopy(twin)
    with torch.no_grad():
        clone.weight_codes.zero_()
        assert torch.equal(twin(x), layer_result := twin.unpack()(x)) and layer_result.any()


def test_other_formats_are_left_to_the_long_way(calls):
    for spec in (
        QuantSpec(weight=Integer(8, 7)),
        QuantSpec(data_in=MXInt(8), weight=Integer(8, 7)),
        QuantSpec(data_in=Integer(8, 5), weight=MXInt(8)),
        QuantSpec(data_in=Integer(8, 5), weight=Integer(8, 7, is_signed=False)),
        QuantSpec(data_in=Integer(8, 5, is_signed=False), weight=Integer(8, 7)),
        QuantSpec(data_in=Integer(8, 5), weight=Integer(9, 7)),
        QuantSpec(data_in=Integer(12, 5), weight=Integer(8, 7)),
    ):
        layer, twin = layer_of(spec, inputs=64)
        x = torch.randn(4, 64)
        with torch.no_grad():
            assert torch.equal(twin(x), layer(x))
    assert calls == []


def test_codes_of_fewer_bits_are_kept_as_bytes():
    _, twin = layer_of("4 bits")
    before = cached_bytes(twin)
    with torch.no_grad():
        twin(torch.randn(2, 48))
    assert cached_bytes(twin) - before == 20 * 48 + 4 * 20  # and the bias


def test_what_is_prepared_goes_with_the_layer():
    _, twin = layer_of("fixed point")
    with torch.no_grad():
        twin(torch.randn(2, 48))
    del twin
    gc.collect()
    assert not [x for x in gc.get_objects() if type(x) is int8.Product and x.shape == (20, 48)]


@pytest.mark.parametrize("spec", [QuantSpec(weight=MXInt(8)), QuantSpec(weight=Integer(4, 3))])
def test_operands_of_a_layer_with_float_inputs_are_looked_up_once(spec, monkeypatch):
    (layer, twin), x = layer_of(spec, inputs=64), torch.randn(4, 64)
    assert torch.equal(twin(x), layer(x))
    monkeypatch.setattr(type(twin), "_decode", None)  # what is kept is used
    assert torch.equal(twin(x), layer(x))
    assert torch.equal(torch.vmap(twin)(x), layer(x))
    twin(x).sum().backward()
    assert torch.equal(twin.bias.grad, torch.full((20,), 4.0))
    twin.train()
    with torch.no_grad():
        assert torch.equal(twin(x), layer(x))
    monkeypatch.undo()
    twin.eval().bias = nn.Parameter(torch.zeros(20))
    torch.testing.assert_close(twin(x), layer(x) - layer.bias)


@pytest.mark.parametrize("shape", [(4, 12), (1, 96), (96,), (4, 49), ()])
def test_inputs_of_another_size_are_refused_as_ever(shape, calls):
    layer, twin = layer_of("fixed point")
    with torch.no_grad():
        twin(torch.randn(4, 48))
        for each in (layer, twin):
            with pytest.raises(RuntimeError):
                each(torch.ones(shape))
    assert calls == [True]


def test_a_bias_of_another_shape_is_that_of_the_layer(calls):
    layer, twin = layer_of("float bias")
    x = torch.randn(3, 48)
    with torch.no_grad():
        for shape in [(1,), (3, 20), (3, 1)]:
            layer.bias = nn.Parameter(torch.randn(shape))
            twin.bias = layer.bias
            assert torch.equal(twin(x), layer(x))
        twin.bias = nn.Parameter(torch.randn(5))
        with pytest.raises(RuntimeError):
            twin(x)
        negative = torch.randn(20)
        twin.bias = nn.Parameter(torch._neg_view(negative))
        layer.bias = nn.Parameter(-negative)
        assert torch.equal(twin(x), layer(x))
        assert torch.equal(twin(torch._neg_view(x)), layer(-x))
    assert calls == []


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_the_default_dtype_changes_nothing(dtype, calls):
    twins = {name: layer_of(name) for name in SPECS}
    large, packed = layer_of("whole tensors", inputs=512, outputs=256)
    x, many = torch.randn(4, 48), torch.randn(9, 512)
    with torch.no_grad():
        expected = {name: layer(x) for name, (layer, _) in twins.items()}
        torch.set_default_dtype(dtype)
        try:
            for name, (_, twin) in twins.items():
                torch.testing.assert_close(twin(x), expected[name], rtol=0, atol=2.0**-6)
            torch.testing.assert_close(packed(many), large(many), rtol=0, atol=2.0**-6)
        finally:
            torch.set_default_dtype(torch.float32)
    assert calls and all(calls)


@pytest.mark.parametrize("spec", [SPECS["fixed point"], QuantSpec(weight=Integer(8, 7))])
def test_what_a_mode_or_a_transform_gave_is_not_kept(spec):
    (layer, twin), x = layer_of(spec), torch.randn(4, 48)
    with torch.no_grad():
        with FakeTensorMode(allow_non_fake_inputs=True) as mode:
            twin(mode.from_tensor(x))
        make_fx(twin, tracing_mode="fake", _allow_non_fake_inputs=True)(x)
        assert torch.equal(twin(x), layer(x))
        with Doubling():
            twin(x)
        assert torch.equal(twin(x), layer(x))


@pytest.mark.parametrize("spec", [SPECS["fixed point"], QuantSpec.uniform(FP8())])
def test_a_first_call_with_fake_tensors_reads_no_table(spec):
    (layer, twin), x = layer_of(spec, inputs=512, outputs=256), torch.randn(40, 512)
    for cached in (fixed_tables, _are_integers):
        cached.cache_clear()
    with torch.no_grad():
        with FakeTensorMode(allow_non_fake_inputs=True) as mode:
            assert twin(mode.from_tensor(x)).shape == (40, 256)
        torch.testing.assert_close(twin(x), layer(x))


class Doubling(TorchFunctionMode):
    """Writes into the weight of `F.linear`."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is nn.functional.linear:
            args[1].mul_(2)
        return func(*args, **(kwargs or {}))


def test_transforms_may_go_over_the_bias():
    for spec in (SPECS["float bias"], QuantSpec(weight=Integer(8, 7))):
        (layer, twin), x, biases = layer_of(spec), torch.randn(4, 48), torch.randn(3, 20)

        def called(bias, twin=twin, x=x):
            return torch.func.functional_call(twin, {"bias": bias}, (x,))

        found = torch.vmap(called)(biases)
        for bias, each in zip(biases, found, strict=True):
            torch.testing.assert_close(each, layer(x) - layer.bias + bias)
        grad = torch.func.grad(lambda bias, called=called: called(bias).sum())(biases[0])
        assert torch.equal(grad, torch.full((20,), 4.0))


def test_a_bias_that_draws_at_random_is_drawn(calls):
    spec = QuantSpec(data_in=Integer(8, 5), weight=Integer(8, 7), bias=Binary(stochastic=True))
    for inputs, outputs in ((48, 20), (512, 256)):
        (layer, twin), x = layer_of(spec, True, inputs, outputs), torch.randn(1, inputs)
        with torch.no_grad():
            products = layer(x) - layer.bias.sign()
            drawn = (twin(x) - products).abs().round()
        assert set(drawn.unique().tolist()) <= {0.0, 1.0, 2.0, 3.0} and calls == []


def test_scales_elsewhere_are_not_read(calls):
    _, twin = layer_of("rows and channels")
    twin._buffers["weight_scales"] = twin.weight_scales.to("meta")
    with torch.no_grad(), suppress(RuntimeError, NotImplementedError):
        twin(torch.randn(2, 48))
    assert calls == []


@pytest.mark.parametrize("scale", [2.0**-140, 2.0**-130, 2.0**-127, 2.0**110])
def test_inverses_that_float32_does_not_hold_are_not_taken(scale):
    spec = QuantSpec(data_in=ScaleInteger(8, scales=(scale,)), weight=Integer(8, 7))
    (layer, twin), x = layer_of(spec, bias=False), torch.randn(4, 48) * 30 * scale
    with torch.no_grad():
        expected, found = layer(x).double(), twin(x).double()
    assert ((found - expected).abs() <= 1e-5 * expected.abs().max() + 2.0**-148).all()


def test_codes_are_freed_where_a_layer_is_moved_away():
    for weight in (Integer(8, 7), MXInt(8)):
        spec = QuantSpec(data_in=Integer(8, 5), weight=weight)
        layer = pack(q.QuantLinear(512, 256, config=spec)).eval()
        with torch.no_grad():
            layer(torch.randn(3, 512))
        codes = weakref.ref(layer.weight_codes)
        layer.to("meta")
        gc.collect()
        assert codes() is None
