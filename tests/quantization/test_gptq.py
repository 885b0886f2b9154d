import itertools

import pytest
import torch
from torch import nn

from chop.formats import Integer, QuantSpec
from chop.nn.quantized import QuantConv2d
from chop.quantization.gptq import Solver, _im2col, rounding_grid


def problem(outputs=6, inputs=20, rows=40, seed=0):
    """A weight, and inputs whose columns depend on one another."""
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(outputs, inputs, generator=generator).double()
    mix = torch.randn(inputs, inputs, generator=generator).double()
    x = torch.randn(rows, inputs, generator=generator).double() @ mix
    return weight, x


def solved(weight, x, number_format, keep=None, damp_percent=0.01, block_size=128):
    grid = rounding_grid(number_format, weight)
    if keep is not None:
        grid = grid._replace(fixed=grid.fixed.masked_fill(~keep, 0))
    return Solver(damp_percent, block_size).solve(weight, x.T @ x, grid)


def surgeon(weight, x, number_format, damp_percent=0.01):
    """Optimal Brain Quantization as it is defined: invert what is left of H in every step."""
    hessian = x.T @ x
    hessian += damp_percent * hessian.diagonal().mean() * torch.eye(len(hessian))
    weight, rounded = weight.clone(), torch.zeros_like(weight)
    for j in range(weight.shape[1]):
        inverse = torch.linalg.inv(hessian[j:, j:])
        rounded[:, j] = number_format.round(weight[:, j])
        error = (weight[:, j] - rounded[:, j]) / inverse[0, 0]
        weight[:, j:] -= error[:, None] * inverse[0]
    return rounded


def output_error(weight, rounded, x):
    return ((rounded - weight) @ x.T).square().sum().item()


@pytest.mark.parametrize("block_size", [1, 3, 7, 20, 128])
def test_every_block_size_gives_what_the_definition_gives(block_size):
    weight, x = problem()
    number_format = Integer(4, 1)
    expected = surgeon(weight, x, number_format)
    assert torch.equal(solved(weight, x, number_format, block_size=block_size), expected)
    assert torch.equal(number_format.round(expected), expected)
    assert (
        output_error(weight, expected, x) < output_error(weight, number_format.round(weight), x) / 2
    )


def test_it_is_near_the_best_of_all_roundings():
    weight, x = problem(outputs=1, inputs=6, rows=30, seed=3)
    number_format = Integer(8, 1)
    low = (weight * 2).floor() / 2
    choices = [low + torch.tensor(c).double() / 2 for c in itertools.product((0, 1), repeat=6)]
    best = min(output_error(weight, choice, x) for choice in choices)
    nearest = output_error(weight, number_format.round(weight), x)
    found = output_error(weight, solved(weight, x, number_format, damp_percent=1e-6), x)
    assert best <= found * (1 + 1e-9)
    assert found - best < (nearest - best) / 3


def test_independent_inputs_leave_nothing_to_correct():
    weight, _ = problem()
    number_format = Integer(4, 1)
    orthogonal = torch.eye(20).double() * 3
    assert torch.equal(solved(weight, orthogonal, number_format), number_format.round(weight))
    nothing = torch.zeros(5, 20).double()
    assert torch.equal(solved(weight, nothing, number_format), number_format.round(weight))


def test_hidden_weights_are_zero_and_made_up_for():
    weight, x = problem()
    keep = torch.rand(weight.shape) > 0.4
    weight, number_format = weight * keep, Integer(5, 2)
    found = solved(weight, x, number_format, keep)
    assert (found[~keep] == 0).all()
    nearest = number_format.round(weight)
    assert output_error(weight, found, x) < output_error(weight, nearest, x)


@pytest.mark.parametrize(
    "groups, mode, stride", [(1, "zeros", 1), (2, "zeros", 2), (1, "reflect", 1)]
)
def test_an_image_without_a_batch_is_a_batch_of_one(groups, mode, stride):
    conv = nn.Conv2d(4, 4, 3, stride, 1, groups=groups, padding_mode=mode)
    layer = QuantConv2d.from_float(conv, QuantSpec.uniform(Integer(width=8, frac_width=4)))
    x = torch.randn(4, 6, 5)
    assert torch.equal(_im2col(layer, x), _im2col(layer, x[None]))
