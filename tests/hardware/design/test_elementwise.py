"""Circuits of operators that treat each code by itself, against the operators."""

import math
import random
from dataclasses import replace
from fractions import Fraction

import pytest
import torch

from chop.errors import ConfigError
from chop.hardware.design.components import COMPONENTS
from chop.hardware.design.plan import Site
from chop.hardware.design.stream import Stream
from chop.hardware.plans.division import Division
from chop.nn.integer import (
    Edge,
    Grid,
    IntegerAdd,
    IntegerMul,
    IntegerNegate,
    IntegerOptions,
    IntegerReLU,
    IntegerScale,
    IntegerSub,
    Requantize,
    Table,
)
from chop.nn.integer.rounding import round_shift
from tests.hardware.bench import Driven, check, drawn, needs_tools

pytestmark = needs_tools
OPTIONS = IntegerOptions()
SHAPES = [((17, 12), 204), ((17, 12), 17), ((10,), 2), ((1,), 1), ((3, 5), 5), ((2, 3, 7), 21)]


@pytest.mark.parametrize(
    ("low", "high", "shape", "fold"),
    [
        (-128, 127, (17, 12), 204),
        (-128, 127, (17, 12), 17),
        (-7, 3, (10,), 2),
        (-1, 0, (1,), 1),
        (-9, -3, (3, 5), 5),
        (-(2**40), 2**41, (2, 3), 3),
    ],
)
@pytest.mark.sampled(1)
def test_relu(low, high, shape, fold):
    edge = Edge.of(0.5, low, high)
    out = replace(edge, low=max(low, 0), high=max(high, 0))
    check(IntegerReLU(out), drawn(edge, *shape), fold=fold)


@pytest.mark.parametrize(
    ("low", "high", "shape", "fold"),
    [(-128, 127, (17, 12), 51), (-127, 128, (10,), 2), (-1, 0, (1,), 1), (-(2**40), 7, (6,), 3)],
)
@pytest.mark.long
def test_negation(low, high, shape, fold):
    edge = Edge.of(0.5, low, high)
    check(IntegerNegate.from_quantized(None, [edge], OPTIONS), drawn(edge, *shape), fold=fold)


@pytest.mark.parametrize(
    ("low", "high", "entry_bits", "shape", "fold"),
    [
        (-128, 127, 8, (17, 12), 51),
        (-100, 55, 12, (10,), 10),
        (0, 9, 4, (5, 3), 3),
        (-3, -1, 1, (4,), 1),
        (5, 5, 3, (2,), 2),
        (-2048, 2047, 33, (40,), 20),
    ],
)
@pytest.mark.sampled(1)
def test_table(low, high, entry_bits, shape, fold):
    generator = torch.Generator().manual_seed(high)
    top = 2 ** (entry_bits - 1)
    entries = torch.randint(-top, top, (high - low + 1,), generator=generator)
    out = Edge.of(0.25, int(entries.min()), int(entries.max()))
    plan = check(Table(entries, low, out), drawn(Edge.of(1.0, low, high), *shape), fold=fold)
    # Each lane has a table of its own.
    bits = plan.out.lanes * len(entries) * plan.out.width
    assert plan.memories["TABLE_FILE"].bits == bits


@pytest.mark.parametrize("kind", [IntegerAdd, IntegerSub])
@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((1.0, -128, 127), (1.0, -128, 127)),
        ((0.25, -100, 7), (1.0, -3, 3)),
        ((8.0, -1, 0), (0.5, 0, 200)),
        ((1.0, -(2**30), 2**30), (2.0**-20, -5, 5)),
    ],
)
@pytest.mark.parametrize(("shape", "fold"), [((17, 12), 34), ((5,), 5)])
@pytest.mark.long
def test_sums(kind, a, b, shape, fold):
    a, b = Edge.of(*a), Edge.of(*b)
    check(kind(a, b), drawn(a, *shape), drawn(b, *shape, seed=1), fold=fold)


@pytest.mark.parametrize(
    ("a", "b", "shape", "fold"),
    [
        ((-128, 127), (-128, 127), (17, 12), 51),
        ((-1, 0), (-1, 1), (7,), 7),
        ((0, 255), (-3, 9), (10,), 2),
        ((-(2**30), 2**30), (-(2**30), 2**30), (3, 3), 3),
        ((4, 9), (-5, -2), (6,), 3),
        ((0, 0), (-8, 7), (6,), 3),
    ],
)
@pytest.mark.sampled(1)
def test_product(a, b, shape, fold):
    a, b = Edge.of(0.5, *a), Edge.of(0.25, *b)
    check(IntegerMul(a, b), drawn(a, *shape), drawn(b, *shape, seed=1), fold=fold)


@pytest.mark.parametrize("factor", [0.125, -1.0, 0.1, -3.7e5, 12.0, 2.0**-40])
@pytest.mark.long
def test_scale(factor):
    edge = Edge.of(0.5, -128, 101)
    check(IntegerScale(edge, factor), drawn(edge, 17, 5), fold=17)


def test_inputs_in_different_orders_are_refused():
    edge = Edge.of(1.0, -8, 7)
    a = Stream.in_order((3, 4), edge)
    b = Stream(torch.arange(12).view(4, 3).T, edge, 1)
    with pytest.raises(ConfigError, match="IntegerAdd: expected two inputs .* same .* order"):
        COMPONENTS["IntegerAdd"].plan(Site(IntegerAdd(edge, edge), (a, b), 12))


ROUNDINGS = ["nearest_even", "floor", "sign", "threshold"]


def channels(*steps, axis=-1, low=-5000, high=4000):
    return Edge(torch.tensor(steps, dtype=torch.float64), axis, low, high)


def with_ties(driven):
    """Every small code, which has all remainders, in place of the first ones."""
    codes = driven.codes.clone().view(-1)
    edge = driven.stream.edge
    small = torch.arange(max(edge.low, -40), min(edge.high, 40) + 1)[: codes.numel() // 2]
    codes[: small.numel()] = small
    return driven._replace(codes=codes.view(driven.codes.shape))


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize(
    ("edge", "step", "shape", "fold"),
    [
        (Edge.of(2.0**-6, -5000, 4000), 0.25, (17, 12), 51),
        (Edge.of(0.037, -5000, 4000), 0.9, (17, 12), 17),
        (Edge.of(4.0, -9, 11), 0.5, (10,), 5),
        (Edge.of(7.3, -9, 11), 0.01, (10,), 2),
        (Edge.of(1.0, -5, 900, divisor=8), 3.3, (10,), 2),
        (channels(0.11, 0.013, 0.7, 0.2, 0.019), 3.0, (17, 5), 85),
        (channels(0.11, 0.013, 0.7, 0.2, 0.019, 0.4), 3.0, (17, 6), 34),
        (channels(0.25, 0.5, 4.0), 2.0, (3,), 1),
        (channels(0.3, 0.2, 0.5, axis=-3), 1.0, (3, 2, 5), 10),
    ],
    ids=("shift", "one", "left", "left_one", "mean", "rows", "rows_3", "twos", "planes"),
)
@pytest.mark.sampled(1)
def test_requantizer(edge, step, shape, fold, rounding):
    grid = Grid(step, -100, 90, rounding, 1.3 * step) if rounding != "threshold" else None
    grid = grid or Grid(1.0, -1, 1, rounding, 1.7)
    if rounding == "sign":
        grid = replace(grid, low=-1, high=1)
    check(Requantize(edge, grid), with_ties(drawn(edge, *shape)), fold=fold)


@pytest.mark.long
def test_requantizer_of_a_channels_last_stream():
    edge = channels(0.3, 0.2, 0.5, axis=-3)
    positions = torch.arange(30).view(2, 5, 3).permute(2, 0, 1)
    operator = Requantize(edge, Grid(1.0, -100, 90))
    plan = check(operator, drawn(edge, 3, 2, 5, positions=positions), fold=30)
    assert plan.parameters["CHANNEL_BEATS"] == 3
    plan = check(operator, drawn(edge, 3, 2, 5, positions=positions), fold=15)
    assert (plan.parameters["LANES"], plan.parameters["CHANNEL_BEATS"]) == (2, 3)


@pytest.mark.parametrize("rounding", ["nearest_even", "floor"])
@pytest.mark.parametrize("step", [(3.1e-10,), (3.1e-10, 2e-12), (2.0**-30,)])
@pytest.mark.long
def test_requantizer_of_wide_accumulators(step, rounding):
    edge = Edge(
        torch.tensor(step if step[1:] else step[0], dtype=torch.float64), -1, 1 - 2**50, 2**50
    )
    operator = Requantize(edge, Grid(1.0, -(2**15), 2**15 - 1, rounding))
    assert operator.splits == operator.has_multiplier
    check(operator, with_ties(drawn(edge, 20, len(step))), fold=20)


@pytest.mark.parametrize("rounding", ["nearest_even", "floor"])
@pytest.mark.parametrize(
    ("low", "high", "divisor", "step", "shape", "fold"),
    [
        (-9, 9, 3, 0.5, (17, 5), 17),
        (-6272, 6223, 49, 2.0**-3, (17, 12), 51),
        (-(2**17), 2**17, 1023, 1.0, (17, 12), 17),
        (-(2**27), 2**27, 5 * 7 * 11, 2.0, (40,), 20),
        (0, 2**30, 3, 2.0**24, (40,), 40),
        (-3000, -5, 20, 1.0, (40,), 10),
    ],
)
@pytest.mark.sampled(1)
def test_requantizer_that_divides(low, high, divisor, step, shape, fold, rounding):
    edge = Edge.of(1.0, low, high, divisor)
    operator = Requantize(edge, Grid(step, -100, 90, rounding))
    assert operator.divisor > 1
    check(operator, with_ties(drawn(edge, *shape)), fold=fold)


@pytest.mark.parametrize("rounding", ["nearest_even", "floor"])
@pytest.mark.parametrize(("axis", "shape"), [(-1, (7, 3)), (-2, (3, 4))])
@pytest.mark.long
def test_requantizer_that_divides_by_channel(axis, shape, rounding):
    steps = torch.tensor([1.0, 0.5, 4.0], dtype=torch.float64)
    edge = Edge(steps, axis, -700, 650, divisor=7)
    operator = Requantize(edge, Grid(2.0, -100, 90, rounding))
    assert operator.divisor == 7 and operator.multiplier.unique().numel() == 3
    check(operator, with_ties(drawn(edge, *shape)), fold=shape[0])


def test_a_mean_whose_multiplier_is_too_wide_is_refused():
    edge = Edge(torch.tensor([1.0, 2.0**25], dtype=torch.float64), -1, -(2**30), 2**30, divisor=7)
    operator = Requantize(edge, Grid(2.0**20, -100, 90))
    given = drawn(edge, 3, 2).stream
    with pytest.raises(ConfigError, match=r"a mean over 7 codes of 32 bits .* more than 62 bits"):
        COMPONENTS["Requantize"].plan(Site(operator, [given], 6))


@pytest.mark.parametrize("divisor", [3, 5, 7, 9, 49, 65, 1023, 15015])
@pytest.mark.parametrize("shift", [-5, 0, 3])
def test_a_division_by_a_product_rounds_as_the_quotient(divisor, shift):
    draw = random.Random(divisor + shift)
    for bits in (1, 5, 13, 22):
        low, high = -draw.randint(0, 1 << bits), draw.randint(1, 1 << bits)
        division = Division.of(divisor, shift, low, high)
        x = torch.tensor([low, high, *(draw.randint(low, high) for _ in range(200))])
        product = x * division.multiplier + (1 << division.dropped - 1)
        exact = [Fraction(n, divisor) / Fraction(2) ** shift for n in x.tolist()]
        for rounding, expected in (("nearest_even", round), ("floor", math.floor)):
            found = round_shift(product >> division.dropped, division.shift, rounding)
            assert found.tolist() == list(map(expected, exact))


def test_exact_ties_are_among_the_codes():
    driven = with_ties(drawn(Edge.of(1.0, -5000, 4000), 17, 12))
    assert isinstance(driven, Driven)
    assert driven.codes.flatten()[:81].tolist() == list(range(-40, 41))
