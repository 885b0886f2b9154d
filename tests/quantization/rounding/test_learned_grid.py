"""Scales from which learning starts, beside a search that is written out."""

import math

import pytest
import torch

from chop.formats import parse_format_string
from chop.formats.scaling import SharedExponent
from chop.quantization.rounding.learned_grid import LearnedGrid, searched
from chop.quantization.rounding.learned_weights import LearnedWeight
from tests.subcases import subcases

ROUNDED = ("mxint:width=4", "mxint:width=3:block_size=7", "mxfp:width=4", "mxfp:width=6", "nvfp4")


def drawn(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def started(text, weight, energies=None):
    """What learning starts from, and that as it is kept: a fixed point of the format."""
    number_format = parse_format_string(text)
    found = LearnedWeight(number_format, weight, None, None, energies)
    return found.values(), found.rounded(number_format.round(weight)), number_format


def best_of_group(values, energy, number_format):
    """The least error with the format's exponent, the one below and the one above."""
    layout, least = number_format.layout(), math.inf
    scaling, (amax, place) = layout.scaling, values.abs().max(0)
    own = 2.0 ** int(scaling.exponent(amax.double().view(1)))
    for scale in (own, own / 2, own * 2):
        codes = layout.element.round(values.double() / scale)
        if codes[place].abs() < scaling.least_largest:  # the scale would not be found again
            codes[place] = scaling.least_largest * values[place].sign()
        least = min(least, ((codes * scale - values).square() * energy).sum().item())
    return least


@subcases("text", ROUNDED[:4])
def test_searched_exponents_are_the_best_of_three(text):
    weight, energy = drawn(6, 70, seed=3) / 20, drawn(70, seed=4).square()
    values, kept, number_format = started(text, weight, energy[None])
    torch.testing.assert_close(values, kept, rtol=0, atol=0)
    assert torch.equal(number_format.round(kept), kept)
    size, nearest = int(number_format.layout().groups.nominal_size), number_format.round(weight)
    gains = 0
    for row in range(6):
        for start in range(0, 70, size):
            own = slice(start, start + size)
            error = (values[row, own] - weight[row, own]).double().square() * energy[own]
            best = best_of_group(weight[row, own], energy[own].double(), number_format)
            assert error.sum().item() == pytest.approx(best, rel=1e-6)
            before = (nearest[row, own] - weight[row, own]).double().square() * energy[own]
            gains += error.sum().item() < 0.99 * before.sum().item()
    assert gains > 1


@subcases("text", ROUNDED)
@subcases("dtype", [torch.float32, torch.bfloat16])
def test_edges(text, dtype):
    weight = drawn(5, 40, seed=1) / 10
    weight[1] = 0
    weight[2, 3:] = 0
    weight[3] = weight[3].abs().max()
    weight[4] *= 1e-30
    for part in (weight, weight[:1], weight[:, :1], weight[:0]):
        values, kept, number_format = started(text, part.to(dtype))
        assert values.shape == part.shape and values.dtype == dtype and values.isfinite().all()
        torch.testing.assert_close(number_format.round(kept), kept, rtol=1e-6, atol=0)
        nearest = number_format.round(part.to(dtype))
        errors = [(x.double() - part.to(dtype).double()).square().sum() for x in (values, nearest)]
        assert errors[0] <= errors[1] * (1 + 1e-6)
    assert (started(text, weight)[0][1] == 0).all()


def test_fixed_groups_keep_their_exponents():
    number_format, weight = parse_format_string("mxint:width=4"), drawn(32, 64) / 20
    fixed = torch.zeros(32, 64, dtype=torch.bool)
    fixed[:16] = True
    found = LearnedWeight(number_format, weight, None, fixed).values()
    nearest = number_format.round(weight)
    assert torch.equal(found[:16], nearest[:16]) and not torch.equal(found, nearest)


@subcases("text", ["mxint:width=4", "mxfp:width=4:scale_mode=ceil", "mxfp:width=4:scale_mode=even"])
def test_the_least_largest_element_is_the_least_that_tells_its_exponent(text):
    layout = parse_format_string(text).layout()
    scaling = layout.scaling
    assert isinstance(scaling, SharedExponent)
    least = torch.tensor([scaling.least_largest], dtype=torch.float64)
    assert int(scaling.exponent(least)) == 0 and int(scaling.exponent(least * (1 - 2**-40))) == -1


def test_a_scale_that_follows_the_tensor_keeps_its_largest_group():
    layout, weight = parse_format_string("nvfp4").layout(), drawn(8, 32)
    weight[3, 5] = 9
    grid = LearnedGrid.measured(layout, weight, None, None)
    found = searched(grid, weight, torch.ones(()))
    assert torch.equal(found.scale.view(8, 2)[3, 0], grid.scale.view(8, 2)[3, 0])
    assert not torch.equal(found.scale, grid.scale)
