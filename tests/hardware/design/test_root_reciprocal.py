"""Circuits of the square root and the reciprocal, against whole numbers."""

import math
import random

import pytest
import torch

from chop.hardware.design.port import Port
from tests.hardware.bench import PROFILES, check_module, needs_tools

pytestmark = needs_tools


def compare(module, parameters, width, numbers, out_width, expected, profiles=PROFILES):
    """Asserts that a circuit of unsigned numbers turns each into the expected one."""
    ports = Port("data_in_0", 1, width, 1, True), Port("data_out_0", 1, out_width, 1, False)
    sent = [torch.tensor(codes).view(-1, 1) for codes in (numbers, expected)]
    check_module(module, parameters, dict(zip(ports, sent, strict=True)), profiles=profiles)


@pytest.mark.parametrize(
    ("power", "width", "out_width"),
    [(0, 1, 1), (1, 1, 2), (6, 4, 7), (8, 8, 6), (7, 5, 8), (9, 9, 4)],
)
@pytest.mark.sampled(1)
def test_reciprocals_of_all_narrow_numbers(power, width, out_width):
    divisors = [x for x in range(1, 2**width) if 2**power // x < 2**out_width]
    quotients = [2**power // x for x in divisors]
    parameters = {"POWER": power, "IN_W": width, "OUT_W": out_width}
    compare("chop_reciprocal", parameters, width, divisors, out_width, quotients, ["uniform"])


@pytest.mark.parametrize(("power", "width", "out_width"), [(35, 21, 20), (60, 33, 33)])
@pytest.mark.sampled(1)
def test_reciprocals_of_wide_numbers(power, width, out_width):
    draw = random.Random(power)
    least = 2 ** (power - out_width) + 1
    divisors = [least, 2**width - 1, *(draw.randrange(least, 2**width) for _ in range(100))]
    quotients = [2**power // x for x in divisors]
    parameters = {"POWER": power, "IN_W": width, "OUT_W": out_width}
    compare("chop_reciprocal", parameters, width, divisors, out_width, quotients)


@pytest.mark.parametrize("width", [1, 2, 3, 5, 8, 9])
@pytest.mark.sampled(2)
def test_roots_of_all_narrow_numbers(width):
    numbers = random.Random(width).sample(range(2**width), 2**width)
    roots = [math.isqrt(x) for x in numbers]
    compare("chop_isqrt", {"IN_W": width}, width, numbers, (width + 1) // 2, roots, ["uniform"])


@pytest.mark.parametrize("width", [40, 61])
@pytest.mark.long
def test_roots_of_wide_numbers(width):
    draw = random.Random(width)
    squares = [draw.randrange(1, 2 ** (width // 2)) ** 2 for _ in range(30)]
    numbers = [2**width - 1, 0, *squares, *(square - 1 for square in squares)]
    numbers += [draw.getrandbits(draw.randint(1, width)) for _ in range(30)]
    roots = [math.isqrt(x) for x in numbers]
    compare("chop_isqrt", {"IN_W": width}, width, numbers, (width + 1) // 2, roots)
