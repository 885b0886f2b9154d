"""The selection of the lowest magnitudes against sorting, with inputs that break selections."""

import math

import pytest
import torch

from chop.kernels import drop_lowest, lowest_magnitudes
from chop.kernels.cpu import build
from chop.kernels.lowest import _by_selection
from tests.subcases import subcases

INPUTS = {
    "normal": lambda: torch.randn(2001),
    "large": lambda: torch.randn(50_001),
    "a few levels": lambda: torch.randint(-2, 3, (3000,)).float(),
    "half zeros": lambda: torch.randn(40, 60).relu(),
    "all equal": lambda: torch.full((700,), -0.25),
    "signed zeros": lambda: torch.tensor([-0.0, 0.0, 1.0, -1.0] * 50),
    "subnormal": lambda: torch.randn(900) * 1e-40,
    "infinite": lambda: torch.tensor([math.inf, 1.0, -math.inf, 0.5] * 40),
    "not numbers": lambda: torch.tensor([math.nan, math.inf, 2.0, -math.nan] * 300),
    "transposed": lambda: torch.randn(30, 50).t(),
    "strided": lambda: torch.randn(90, 40)[::2, 1::3],
    "bfloat16": lambda: torch.randn(3000).bfloat16(),
    "float16": lambda: torch.randn(3000).half(),
    "float64": lambda: torch.randn(3000).double() * (1 + 1e-12),
    "one": lambda: torch.randn(()),
    "none": lambda: torch.randn(0, 4),
}


@pytest.fixture(scope="module")
def compiled():
    return build.library().library


@subcases("name", INPUTS)
def test_selection_equals_sorting(name, compiled):
    x = INPUTS[name]()
    before, n = x.clone(), x.numel()
    for count in sorted({0, 1, n // 7, n // 2, n - 2, n - 1, n} & set(range(n + 1))):
        expected = lowest_magnitudes(x, count)
        assert int(expected.sum()) == count and expected.shape == x.shape
        assert torch.equal(torch.ops.chop.lowest_magnitudes(x, count), expected), count
        assert torch.equal(_by_selection(x, count), expected), count
        left = torch.where(expected, 0, x)
        torch.testing.assert_close(drop_lowest(x, count), left, rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(x, before, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("count", [1, 3])
def test_the_number_of_threads_changes_nothing(count, threads, compiled):
    x = torch.randint(0, 50, (3 * 2**17 + 5,)).float()
    threads(count)
    marks = torch.ops.chop.lowest_magnitudes(x, x.numel() // 3)
    assert torch.equal(marks, lowest_magnitudes(x, x.numel() // 3))


def test_it_is_an_operator_of_good_standing():
    x = torch.randn(6, 7)
    utilities = ("test_schema", "test_faketensor")
    torch.library.opcheck(torch.ops.chop.lowest_magnitudes.default, (x, 20), test_utils=utilities)
    compiled = torch.compile(
        lambda x: torch.ops.chop.lowest_magnitudes(x, x.numel() // 2),
        fullgraph=True,
        dynamic=True,
        backend="aot_eager",
    )
    for rows in (4, 9):
        x = torch.randn(rows, 5)
        assert torch.equal(compiled(x), lowest_magnitudes(x, x.numel() // 2))
