"""Hadamard matrices and their fast transform."""

import math

import pytest
import torch

from chop.errors import ConfigError
from chop.kernels.hadamard import (
    hadamard_factors,
    hadamard_matrix,
    hadamard_reference,
    hadamard_transform,
    largest_block,
)
from tests.subcases import subcases

# Sylvester's, Paley's of both kinds, of fields of a prime, its square and its cube, and products.
ORDERS = [1, 2, 8, 64, 12, 20, 24, 28, 36, 52, 100, 148, 192, 344]


@subcases("order", ORDERS)
def test_rows_are_orthogonal(order):
    matrix = hadamard_matrix(order)
    assert set(matrix.unique().tolist()) <= {1.0, -1.0}
    assert torch.equal(matrix @ matrix.T, order * torch.eye(order, dtype=torch.float64))


@subcases("order", ORDERS)
def test_the_transform_is_the_product_with_the_matrix(order):
    x = torch.randn(3, 2, 2 * order, dtype=torch.float64, generator=torch.manual_seed(order))
    found = hadamard_transform(x, order)
    torch.testing.assert_close(found, hadamard_reference(x, order))
    torch.testing.assert_close(found.square().sum(-1), x.square().sum(-1))
    assert math.prod(hadamard_factors(order)) == order


def test_sizes_of_language_models_have_one_block():
    sizes = [896, 1536, 4864, 5632, 8960, 11008, 13824, 14336, 18944, 24576, 28672, 29568]
    assert [largest_block(size) for size in sizes] == sizes
    assert all(sum(hadamard_factors(size)) < size / 10 for size in sizes)  # fewer products
    assert [largest_block(n) for n in (7, 18, 90, 172)] == [1, 2, 2, 4]
    assert [largest_block(576, most) for most in (16, 31, 1000)] == [16, 24, 576]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_half_precision_is_rounded_once(dtype):
    x = torch.randn(4, 96, generator=torch.manual_seed(0)).to(dtype)
    found = hadamard_transform(x, 96)
    assert found.dtype == dtype
    expected = hadamard_reference(x.double(), 96)
    torch.testing.assert_close(found, expected.to(dtype))


def test_gradients_empty_batches_and_what_is_refused():
    x = torch.randn(2, 24, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: hadamard_transform(x, 12), (x,))
    with torch.inference_mode():
        hadamard_transform(torch.ones(1, 40), 40)
    y = torch.ones(1, 40, requires_grad=True)
    hadamard_transform(y, 40).sum().backward()  # not by a matrix cached in inference mode
    assert y.grad is not None and y.grad.norm().item() == pytest.approx(math.sqrt(40), rel=1e-5)
    assert hadamard_transform(torch.ones(0, 24), 12).shape == (0, 24)
    assert hadamard_transform(torch.ones(3, 24, device="meta"), 12).is_meta
    with pytest.raises(ConfigError, match="no matrix of order 18"):
        hadamard_transform(torch.ones(18), 18)
    with pytest.raises(ConfigError, match="size 4 does not divide 6"):
        hadamard_transform(torch.ones(6), 4)


def test_nan_stays_in_its_block():
    x = torch.ones(2, 8)
    x[0, 1] = float("nan")
    assert hadamard_transform(x, 4).isnan().tolist() == [[True] * 4 + [False] * 4, [False] * 8]
