"""Circuits of tables, against the operator."""

import pytest
import torch

from chop.hardware.design.plan import Memory
from chop.nn.integer import Edge, IntegerEmbedding
from tests.hardware.bench import PROFILES, check, check_graph, drawn, needs_tools
from tests.integer.test_operators import NUMBERS, WithNumber, lowered, quantized

pytestmark = needs_tools


def table(rows, columns, bits=8):
    generator = torch.Generator().manual_seed(rows)
    half = 1 << bits - 1
    return IntegerEmbedding(torch.randint(-half, half, (rows, columns), generator=generator), 0.5)


@pytest.mark.parametrize(
    ("rows", "columns", "shape", "bits", "fold", "profiles"),
    [
        (37, 12, (7,), 8, 28, PROFILES),
        (37, 12, (7,), 8, 1, ("none", "bursts")),
        (2, 5, (4, 3), 3, 60, ("none", "uniform")),
        (1, 4, (3,), 8, 6, ("uniform", "bursts")),
        (300, 1, (9,), 33, 9, ("none", "bursts")),
    ],
)
@pytest.mark.sampled(1)
def test_embedding(rows, columns, shape, bits, fold, profiles):
    operator = table(rows, columns, bits)
    plan = check(operator, drawn(Edge.of(1.0, 0, rows - 1), *shape), fold=fold, profiles=profiles)
    assert plan.out.shape == (*shape, columns)
    assert plan.memories["TABLE_FILE"].bits == rows * columns * plan.out.width


@pytest.mark.parametrize(("lanes", "width"), [(1, 8), (3, 20), (3, 21), (7, 9), (1, 62), (2, 1)])
def test_words_of_large_memories_are_those_of_small_ones(lanes, width):
    half = 1 << width - 1
    codes = torch.randint(-half, half, (50, lanes))
    assert Memory.from_codes(codes, width) == Memory.of(codes.tolist(), width)


@pytest.mark.parametrize("name", ["several", "zero"])
@pytest.mark.long
def test_sums_and_products_with_numbers_have_a_circuit(name, tmp_path):
    torch.manual_seed(0)
    x = torch.randn(4, 4)
    mg = quantized(WithNumber(NUMBERS[name]), x)
    integer, _ = lowered(mg, x)
    check_graph(integer, {"x": x}, 4, tmp_path)
