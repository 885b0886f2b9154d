"""Circuits of magnitudes, PReLU and maxima, against the operators."""

import pytest
import torch
from torch import nn

from chop.nn.integer import Call, Edge, IntegerAbs, IntegerAMax, IntegerOptions, IntegerPReLU
from tests.hardware.bench import check, drawn, needs_tools
from tests.hardware.own_bench import passes_own_bench

pytestmark = needs_tools
OPTIONS = IntegerOptions()


@pytest.mark.parametrize(
    ("low", "high", "shape", "fold"),
    [(-128, 127, (17, 12), 51), (-127, 128, (10,), 2), (-9, -3, (5,), 5), (-(2**40), 7, (6,), 3)],
)
@pytest.mark.sampled(1)
def test_magnitude(low, high, shape, fold):
    edge = Edge.of(0.5, low, high)
    operator = IntegerAbs.from_quantized(None, [edge], OPTIONS)
    given = drawn(edge, *shape)
    check(operator, given, fold=fold)
    out = operator.out
    assert (out.low, out.high) == (max(low, -high, 0), max(-low, high))


def prelu(edge, shape, slopes):
    module = nn.PReLU(len(slopes))
    module.weight.data.copy_(torch.tensor(slopes))
    return IntegerPReLU.from_quantized(module, [edge], OPTIONS, Call([(1, *shape)]))


@pytest.mark.parametrize(
    ("low", "high", "shape", "slopes", "fold"),
    [
        (-128, 127, (5, 12), [0.25], 12),
        (-100, 55, (3, 2, 5), [0.1, -0.7, 2.0], 10),
        (-9, -3, (3,), [0.3, 0.2, 0.0], 1),
        (0, 7, (4,), [-1.0], 4),
        (-(2**30), 2**30, (2, 3), [1000.5, 3e-5], 6),
    ],
)
@pytest.mark.sampled(1)
def test_prelu(low, high, shape, slopes, fold):
    edge = Edge.of(0.5, low, high)
    operator, given = prelu(edge, shape, slopes), drawn(edge, *shape)
    plan = check(operator, given, fold=fold)
    assert plan.cycles <= fold
    # The largest slope has 17 bits, so that each result is that close to torch's in float64.
    expected = torch.nn.functional.prelu(
        edge.decode(given.codes), torch.tensor(slopes, dtype=torch.float32).double()
    )
    allowed = edge.decode(given.codes).abs() * 2.0**-17 * max(1.0, *map(abs, slopes))
    assert ((operator.out.decode(operator(given.codes)) - expected).abs() <= allowed).all()


@pytest.mark.parametrize(
    ("shape", "dims", "keepdim", "lanes", "fold"),
    [
        ((4, 6), (-1,), True, 2, 8),
        ((17, 5), (-1,), False, 1, 17),
        ((5, 6), (-2,), False, 3, 10),
        ((3, 4, 5), (-2, -1), True, 1, 60),
        ((7,), (-1,), True, 1, 1),
    ],
)
@pytest.mark.sampled(1)
def test_maximum(shape, dims, keepdim, lanes, fold):
    edge = Edge.of(0.25, -100, 90)
    operator, given = IntegerAMax(edge, shape, dims, keepdim), drawn(edge, *shape, lanes=lanes)
    check(operator, given, fold=fold)
    assert (operator.out.low, operator.out.high) == (-100, 90)
    assert torch.equal(operator(given.codes), given.codes.amax(dims, keepdim))


OWN = {
    "magnitude": ("chop_negate", 9, {"MAGNITUDE": 1}),
    "maximum": ("chop_sum", 8, {"MAXIMUM": 1, "COUNT": 4}),
    "prelu": ("chop_prelu", 14, {"FACTOR_W": 5, "SHIFT": 3, "FILE": '"factor.hex"'}),
}


@pytest.mark.parametrize("name", OWN)
@pytest.mark.parametrize("fault", [False, True])
@pytest.mark.sampled(3)
def test_stalls_resets_and_unknown_data_change_nothing(name, fault, tmp_path):
    """A testbench of its own, and expected codes from Python's integers."""
    module, bits, parameters = OWN[name]
    (tmp_path / "factor.hex").write_text("1b\n")  # -5
    codes = torch.randint(-128, 128, (60,), generator=torch.Generator().manual_seed(0)).tolist()
    expected = {
        "magnitude": [abs(x) for x in codes],
        "maximum": [max(codes[k : k + 4]) for k in range(0, 60, 4)],
        "prelu": [-5 * x if x < 0 else 8 * x for x in codes],
    }[name]
    if fault:
        expected[-1] += 1
    last = passes_own_bench(
        module, {"OUT_W": bits, **parameters}, (8, codes), (bits, expected), tmp_path
    )
    assert (last == "PASS") is not fault
