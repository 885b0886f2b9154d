"""Circuit of the product of two streams, against the operator."""

import pytest
import torch

from chop.errors import ConfigError
from chop.nn.integer import Edge, IntegerMatmul
from tests.hardware.bench import PROFILES, check, drawn, needs_tools

pytestmark = needs_tools
BYTES = Edge.of(0.25, -128, 127)
WEIGHTS = Edge.of(2.0**-9, 0, 511)
SOME = ("uniform", "bursts")


def head_by_head(heads, rows, features):
    """Places of a matrix (rows, heads * features) seen as (heads, rows, features)."""
    return torch.arange(rows * heads * features).view(rows, heads, features).transpose(0, 1)


@pytest.mark.parametrize(
    ("heads", "rows", "terms", "columns", "transposed", "edges", "fold", "profiles"),
    [
        (4, 17, 12, 17, True, (BYTES, BYTES), 17 * 4 * 17, ("none", "uniform")),
        (4, 17, 17, 12, False, (WEIGHTS, BYTES), 17 * 4 * 17, ("none", "bursts")),
        (2, 3, 6, 5, True, (BYTES, Edge.of(1.0, -8, 7)), 1, PROFILES),
        (2, 3, 5, 6, False, (BYTES, Edge.of(1.0, -8, 7)), 1, PROFILES),
        (1, 5, 7, 3, True, (BYTES, BYTES), 999, SOME),
        (1, 5, 7, 3, False, (BYTES, BYTES), 999, SOME),
        (3, 1, 4, 2, True, (Edge.of(1.0, -1, 1), Edge.of(1.0, -1, 1)), 1, ("none", *SOME)),
        (1, 4, 1, 1, False, (Edge.of(1.0, -(2**30), 2**30), BYTES), 1, ("none", *SOME)),
    ],
)
@pytest.mark.sampled(1)
def test_matmul(heads, rows, terms, columns, transposed, edges, fold, profiles):
    samples = 3 if rows == 17 else 5
    places = head_by_head(heads, rows, terms)
    a = drawn(edges[0], heads, rows, terms, positions=places, samples=samples)
    places = head_by_head(heads, terms, columns)
    if transposed:
        places = head_by_head(heads, columns, terms).transpose(1, 2)
    b = drawn(edges[1], heads, terms, columns, positions=places, samples=samples, seed=1)
    plan = check(IntegerMatmul(*edges, terms), a, b, fold=fold, profiles=profiles)
    assert plan.parameters["TRANSPOSED"] == (transposed or terms == columns == 1)
    assert torch.equal(plan.out.positions, head_by_head(heads, rows, columns))


def test_matmul_of_two_matrices():
    plan = check(
        IntegerMatmul(BYTES, BYTES, 6), drawn(BYTES, 3, 6), drawn(BYTES, 6, 4), profiles=SOME
    )
    assert plan.out.shape == (3, 4)


@pytest.mark.long
def test_lanes_of_a_product_need_no_converter_that_slows_it():
    a, b = drawn(BYTES, 2, 12), drawn(BYTES, 12, 12, lanes=8)
    plan = check(IntegerMatmul(BYTES, BYTES, 12), a, b, fold=72, profiles=SOME)
    assert plan.lanes == (1, 4) and plan.cycles == 72


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (((2, 3, 5), (2, 5, 4)), "not sent row by row, each row head by head"),
        (((2, 3, 5), (5, 4)), r"a product of \(2, 3, 5\) and \(5, 4\) has no circuit"),
    ],
)
def test_products_without_a_circuit_are_refused(shapes, message):
    a, b = (drawn(BYTES, *shape) for shape in shapes)
    with pytest.raises(ConfigError, match=message):
        check(IntegerMatmul(BYTES, BYTES, 5), a, b)
