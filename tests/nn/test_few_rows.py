"""Few float rows by packed layers: the operator's bits, and the operator where it is needed."""

import pytest
import torch
from torch import nn

from chop.formats import QuantSpec, parse_format_string
from chop.kernels.cpu import build, packed
from chop.nn import quantized as q
from chop.nn.packed import pack
from tests.subcases import subcases

COLUMNS, OUTPUTS = 256, 320


@pytest.fixture(autouse=True)
def _loops():
    if build.library().library is None:
        pytest.skip(build.library().detail)


@pytest.fixture
def taken(monkeypatch):
    """Records of each product: True if it was one of few rows."""
    found, call = [], packed.few_rows

    def counted(*operands):
        y = call(*operands)
        found.append(y is not None)
        return y

    monkeypatch.setattr("chop.nn.packed.operators.few_rows", counted)
    return found


def layer(name="mxint:width=8", bias=True, **formats):
    torch.manual_seed(0)
    spec = QuantSpec(weight=parse_format_string(name), **formats)
    return pack(q.QuantLinear.from_float(nn.Linear(COLUMNS, OUTPUTS, bias), spec)).eval()


def product(twin, x):
    """The layer's product by the operator."""
    stored, key = twin.encoded("weight"), twin.spec.weight.key
    parts = stored.codes, stored.scales, stored.tensor_scale, list(stored.shape), key
    return torch.ops.chop.packed_linear(x, QuantSpec().data_in.key, *parts, twin.bias, False)


@subcases("name", ["mxint:width=8", "mxint:width=4", "group_integer:width=4", "mxfp:width=8"])
@subcases("lead", [(), (1, 1), (3,)])
def test_the_bits_are_the_operator_s(name, lead, taken):
    for bias in (False, True):
        twin, x = layer(name, bias), torch.randn(*lead, COLUMNS)
        with torch.inference_mode():
            assert torch.equal(twin(x), product(twin, x))
        assert taken.pop()


def test_written_codes_take_effect(taken):
    twin, x = layer(), torch.randn(1, COLUMNS)
    with torch.no_grad():
        before = twin(x)
        twin.weight.mul_(2)
        torch.testing.assert_close(twin(x) - twin.bias, 2 * (before - twin.bias))
        twin.put_codes("weight", layer("mxint:width=8").encoded("weight"), in_place=False)
        assert torch.equal(twin(x), before)
    assert taken == [True] * 3


def test_operands_that_need_preparation_are_left_to_the_operator(taken):
    twin, x = layer(), torch.randn(2, COLUMNS)
    with torch.no_grad():
        spread = torch.randn(COLUMNS, 2).t()
        assert torch.equal(twin(spread), twin(spread.contiguous()))
        assert taken == [False, True]
        with torch.autocast("cpu", torch.bfloat16):
            assert twin(x).dtype == torch.bfloat16
        coarse = parse_format_string("8.4")
        torch.testing.assert_close(layer(data_in=coarse)(x), twin(coarse(x)))
    assert taken == [False, True, True]
    twin.bias.requires_grad_()
    twin(x).sum().backward()
    assert torch.equal(twin.bias.grad, torch.full((OUTPUTS,), 2.0)) and len(taken) == 3


@pytest.mark.parametrize("name", ["bias", "weight_scales"])
def test_operands_without_values_give_results_without_values(name, taken):
    """The loops would read from address 0."""
    twin = layer()
    moved = getattr(twin, name).detach().to("meta")
    if name == "bias":
        twin.bias = nn.Parameter(moved, requires_grad=False)
    else:
        twin.register_buffer(name, moved)
    for x in (torch.randn(1, COLUMNS), torch.randn(COLUMNS, 2).t()):
        with torch.no_grad():
            assert twin(x).is_meta
    assert taken.count(True) == 0


class Logged(torch.Tensor):
    """Tensor whose operators see each call."""


def test_a_bias_that_differs_from_its_memory_is_added_as_it_is(taken):
    twin, x = layer(), torch.randn(1, COLUMNS)
    with torch.no_grad():
        expected = layer(bias=False)(x) - 1
        twin._parameters["bias"] = torch._neg_view(torch.ones(OUTPUTS))
        torch.testing.assert_close(twin(x), expected)
        twin._parameters["bias"] = torch.full((OUTPUTS,), -1.0).as_subclass(Logged)
        assert type(twin(x)) is Logged
    assert taken == [True]


def test_a_wrong_shape_is_an_error():
    with pytest.raises(RuntimeError, match=r"shapes|size|expected"), torch.no_grad():
        layer()(torch.randn(1, COLUMNS - 1))
