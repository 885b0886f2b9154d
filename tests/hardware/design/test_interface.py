"""Ports in words: value of a code, and the order in which a sample travels."""

import re

import pytest
import torch

from chop.hardware.design.interface import number_text, order_text, shape_text, step_text
from chop.hardware.design.stream import Stream
from chop.nn.integer import Edge

EDGE = Edge.of(0.5, -8, 7)


def sent_by(shape, order):
    """Places of elements where dimensions travel in that order, the last fastest."""
    sizes = [shape[dim] for dim in order]
    back = [order.index(dim) for dim in range(len(shape))]
    places = torch.arange(torch.Size(shape).numel()).view(sizes)
    return Stream(places.permute(back).contiguous(), EDGE, 1)


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 2, 0), (2, 1, 0), (0, 2, 1), (1, 0, 2)])
def test_an_order_of_dimensions_is_told_fastest_first(order):
    text = order_text(sent_by((3, 4, 5), order), "x")
    told = [int(number) for number in re.findall(r"\d", text)]
    assert tuple(reversed(told)) == order
    assert ("(row-major)" in text) == (order == (0, 1, 2))


def test_dimensions_of_one_are_not_told():
    assert order_text(sent_by((1, 4, 5), (0, 1, 2)), "x").startswith("dimension 2 fastest, then 1")
    assert order_text(sent_by((1, 6, 1), (2, 1, 0)), "x") == "from the first element to the last"
    assert order_text(Stream.in_order((), EDGE), "x") == "from the first element to the last"
    assert (shape_text((1, 6)), shape_text(())) == ("1 x 6", "one number")


@pytest.mark.parametrize(
    "positions", [torch.tensor([2, 0, 1]), torch.arange(6).flip(0).view(2, 3)], ids=["row", "flip"]
)
def test_other_orders_are_in_a_table(positions):
    found = order_text(Stream(positions, EDGE, 1), "x")
    assert found == "by table, codes.x.positions in design.json"


def test_steps_are_exact_where_they_are_powers_of_two():
    for exponent in (-24, -1, 1, 3):
        assert number_text(2.0**exponent) == f"2^{exponent}"
    assert [number_text(step) for step in (1.0, 0.1, 0.75)] == ["1", "0.1", "0.75"]
    assert step_text(Edge.of(0.25, 0, 3, divisor=49), "x") == "2^-2 / 49"
    channels = Edge(torch.tensor([0.5, 0.25, 0.3], dtype=torch.float64), -3, 0, 3)
    told = step_text(channels, "y")
    assert told == "2^-2 to 2^-1, by channel (dimension -3, codes.y.step in design.json)"
    same = Edge(torch.tensor([0.5, 0.5], dtype=torch.float64), -1, 0, 3)
    assert step_text(same, "y") == "2^-1"
