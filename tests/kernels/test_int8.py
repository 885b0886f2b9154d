"""Products of 8-bit integers: sums are exact, on every processor and by every instruction set."""

import ctypes
import math
import os
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from chop.formats import Integer, MXInt, ScaleInteger
from chop.kernels.cpu import int8, packed, reader
from chop.kernels.cpu.measure import pointer
from tests.kernels.coded import packed_linear, parts, same
from tests.kernels.instruction_sets import SETS, one_set
from tests.subcases import subcases

pytestmark = pytest.mark.usefixtures("loops")

WHOLE_INPUTS = [
    ScaleInteger(8, granularity="row"),
    ScaleInteger(6),
    ScaleInteger(8, scales=(0.02,)),
    Integer(8, 5),
]


@subcases("x_format", WHOLE_INPUTS, ids=lambda fmt: fmt.label)
@subcases(
    "fmt",
    [ScaleInteger(8), ScaleInteger(8, granularity="channel"), Integer(8, 8)],
    ids=lambda fmt: fmt.label,
)
def test_integers_are_multiplied_exactly(x_format, fmt):
    weight, x = torch.randn(256, 320) * 0.05, torch.randn(600, 320)
    x[3], x[5, 7] = 0, 1e4
    encoded, bias = fmt.encode(weight), torch.randn(256)
    y = packed.linear(x, x_format.key, parts(encoded, fmt), bias)
    assert int8.whole_rule(x_format) is not None
    rounded, decoded = x_format.round(x).double(), fmt.decode(encoded).double()
    error = (y - F.linear(rounded, decoded, bias.double())).abs()
    # Whole sums are exact. Each float32 of the reference is off by half a unit, and so are the two
    # scales' product, its product with the sum, and the sum with the bias.
    assert (error <= 6 * 2.0**-24 * (rounded.abs() @ decoded.abs().T + bias.abs())).all()


def test_integers_leave_nan_to_the_floats():
    fmt, x_format = ScaleInteger(8), ScaleInteger(8, granularity="row")
    x = torch.randn(40, 512)
    x[2, 3], x[4, 5] = torch.nan, torch.inf
    encoded = fmt.encode(torch.randn(256, 512))
    y = packed_linear(x, x_format, encoded, fmt)
    exact = F.linear(x_format.round(x), fmt.decode(encoded))
    assert torch.equal(y.isnan(), exact.isnan()) and y[2].isnan().all()


ON_AN_OLDER_CPU = """
import torch
import chop.kernels
from chop.formats import ScaleInteger
fmt, x = ScaleInteger(8), torch.ones(8, 512)
encoded = fmt.encode(torch.ones(256, 512))
parts = (encoded.codes, encoded.scales, None, [256, 512], fmt.key)
y = torch.ops.chop.packed_linear(x, ScaleInteger(8, granularity="row").key, *parts, None, False)
print((y - 512).abs().max().item())
"""


@pytest.mark.long
def test_integers_are_left_to_cpus_that_add_them_in_32_bits():
    """Others, which oneDNN is made to believe in, saturate sums of 16 bits."""
    environment = {**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX2"}
    command = (sys.executable, "-c", ON_AN_OLDER_CPU)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert float(done.stdout) < 0.1


def test_longer_sums_than_32_bits_hold_are_left_to_the_floats():
    fmt, columns = ScaleInteger(8), int8.LONGEST_SUM + 8
    encoded = fmt.encode(torch.ones(1, columns))
    y = packed_linear(torch.ones(4, columns), fmt, encoded, fmt)
    torch.testing.assert_close(y, torch.full((4, 1), float(columns)), rtol=1e-5, atol=0)


@pytest.mark.parametrize(
    ("number_format", "takes"),
    [
        (Integer(8, 4, floor=True), False),
        (Integer(9, 4), False),
        (Integer(8, 4, is_signed=False), False),
        (ScaleInteger(8, quantile=0.9), False),
        (ScaleInteger(8, granularity="group"), False),
        (ScaleInteger(8, scales=(0.0,)), False),
        (MXInt(8), False),
        (ScaleInteger(4, granularity="row"), True),
    ],
)
def test_only_signed_integers_to_nearest_are_multiplied_as_such(number_format, takes):
    assert (int8.whole_rule(number_format) is not None) == takes


def whole_sums(x, x_format, weight, fmt, bias):
    """What `int8.linear` says it computes, in whole numbers of 64 bits."""
    codes, x_codes = fmt.encode(weight), x_format.encode(x)
    numbers = codes.codes.view(torch.int8).view(weight.shape).long()
    rounded = x_codes.codes.view(torch.int8).view(x.shape).long()
    scales = codes.scales if codes.scales is not None else torch.tensor([2.0**-fmt.frac_width])
    x_scales = x_codes.scales
    x_scales = torch.tensor([2.0**-x_format.frac_width]) if x_scales is None else x_scales
    sums = (rounded @ numbers.T).float() * (x_scales.view(-1, 1) * scales.view(1, -1))
    return sums + (0 if bias is None else bias)


@pytest.mark.parametrize("name", SETS)
@pytest.mark.sampled(1)
def test_products_of_integers_are_those_of_whole_numbers(name, loops, monkeypatch, small_ones):
    found = one_set(name, "int8", loops)
    whole = {"channel": ScaleInteger(8, granularity="channel"), "one": Integer(8, 6)}
    by_row = {"row": ScaleInteger(8, granularity="row"), "one": Integer(8, 5)}
    monkeypatch.setattr(int8, "is_exact", lambda: False)
    for outputs, columns in [(1, 7), (2, 16), (17, 33), (40, 320), (15, 800), (35, 1601)]:
        weight, bias = torch.randn(outputs, columns), torch.randn(outputs)
        for fmt in whole.values():
            stored = parts(fmt.encode(weight), fmt)
            own = replace(reader.find_reader(stored), loops=found.library)
            for x_format in by_row.values():
                rule = int8.known_rule(x_format, own, columns)
                for given in (None, bias):
                    product = int8.Product(own, rule, stored, given)
                    for rows in (1, 3, 4, 7, 8, 13, 40):
                        x = 2 * torch.randn(rows, columns)
                        assert same(product(x), whole_sums(x, x_format, weight, fmt, given))


@pytest.mark.parametrize("granularity", ["tensor", "row"])
def test_more_rows_than_are_rounded_together_are_multiplied_alike(granularity, small_ones):
    """At most 2^19 numbers at a time: 24 rows, and 5 that are left."""
    fmt, x_format = (
        ScaleInteger(8, granularity="channel"),
        ScaleInteger(8, granularity=granularity),
    )
    weight, x, bias = torch.randn(3, 20000), torch.randn(101, 20000), torch.randn(3)
    stored = parts(fmt.encode(weight), fmt)
    product = int8.prepared_product(x_format, stored, bias)
    assert same(product(x), whole_sums(x, x_format, weight, fmt, bias))


def test_the_longest_sums_of_the_largest_products_are_exact(small_ones):
    fmt = x_format = Integer(8, 0)
    weight = torch.full((5, int8.LONGEST_SUM), -128.0)
    weight[1:3], weight[4, ::2] = 127.0, 127.0
    x = torch.full((7, int8.LONGEST_SUM), -128.0)
    x[1::2] = 127.0
    product = int8.prepared_product(x_format, parts(fmt.encode(weight), fmt), None)
    assert same(product(x), (x.long() @ weight.long().T).float())


@pytest.mark.parametrize("count", [2, 3])
def test_threads_take_any_number_of_outputs(count, threads, small_ones):
    fmt, x_format = ScaleInteger(8, granularity="channel"), ScaleInteger(8, granularity="row")
    weight, x, bias = torch.randn(257, 1000), torch.randn(13, 1000), torch.randn(257)
    product = int8.prepared_product(x_format, parts(fmt.encode(weight), fmt), bias)
    threads(count)
    assert same(product(x), whole_sums(x, x_format, weight, fmt, bias))


def test_products_by_onednn_are_those_of_the_loops(monkeypatch, onednn_from):
    if not int8.is_exact():
        pytest.skip("oneDNN adds in 16 bits on this CPU")
    onednn_from(math.inf)
    fmt, x_format = ScaleInteger(8, granularity="channel"), ScaleInteger(8, granularity="row")
    weight, x, bias = torch.randn(260, 320), torch.randn(2, 301, 320), torch.randn(260)
    stored = parts(fmt.encode(weight), fmt)
    expected = int8.prepared_product(x_format, stored, bias)(x)
    onednn_from(16)
    product = int8.prepared_product(x_format, stored, bias)
    monkeypatch.setattr(int8, "_multiply", None)
    assert same(product(x), expected)


def test_quotients_next_to_a_tie_are_rounded_as_those_of_float64(loops):
    scales = torch.rand(50) * torch.logspace(-30, 20, 50)
    for scale in scales.float():
        ties = (torch.arange(-128, 128) + 0.5) * scale
        below, above = (torch.nextafter(ties, torch.tensor(end)) for end in (-1e38, 1e38))
        x = torch.cat((ties, below, above, torch.randn(200) * 100 * scale))
        codes, found_scales = torch.empty(x.shape, dtype=torch.int8), torch.empty(1)
        rule = int8.Rule(-128, 127, scale.item(), 1e-30, 1.0)
        loops.chop_int8_codes(
            *map(pointer, (x, codes, found_scales)),
            *map(ctypes.c_int64, (1, x.numel())),
            ctypes.byref(rule),
            1,
        )
        expected = (x.double() / scale.double()).round().clamp(-128, 127)
        assert torch.equal(codes.double(), expected)


def test_the_code_of_nan_is_zero_as_the_reference_stores_it(loops):
    x = torch.tensor([[torch.nan, 3.0, -torch.nan, torch.inf, -2.0, -torch.inf, 0.4, torch.nan]])
    codes, scales = torch.full(x.shape, 99, dtype=torch.int8), torch.empty(1)
    rule = int8.Rule(-128, 127, 1.0, 1e-30, 1.0)
    found = loops.chop_int8_codes(
        *map(pointer, (x, codes, scales)), *map(ctypes.c_int64, (1, 8)), ctypes.byref(rule), 1
    )
    assert found == 1
    stored = Integer(8, 0).decode(Integer(8, 0).encode(x))
    assert codes.tolist() == stored.int().tolist() == [[0, 3, 0, 127, -2, -128, 0, 0]]
