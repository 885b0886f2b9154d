"""Blocks with shared exponents: the format itself within the window, saturation beyond."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from chop.errors import ConfigError
from chop.formats import BlockFP, Integer, MXInt, ScaleInteger
from chop.nn.integer import BlockGrid, Edge, EncodeBlocks, RequantizeBlocks, block_exponents
from tests.nn.integer import oracles as o

formats = st.builds(
    MXInt,
    st.integers(2, 12),
    block_size=st.sampled_from([1, 3, 4, 32, (2, 3)]),
    block_dim=st.sampled_from([-1, 1, 0]),
)


@settings(deadline=None)
@given(formats, st.integers(-20, 10), st.integers(0, 99))
def test_requantized_blocks_are_what_the_format_rounds_to(number_format, exponent, seed):
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randint(-(2**20), 2**20, (3, 5, 7), generator=generator)
    codes >>= torch.randint(0, 22, (3, 5, 7), generator=generator)
    edge = Edge.of(2.0**exponent, -(2**20), 2**20)
    operator = RequantizeBlocks(edge, BlockGrid.of(number_format, exponent, exponent + 20))
    expected = number_format.round(edge.decode(codes))
    assert torch.equal(operator.out.decode(operator(codes)), expected + 0.0)


@settings(deadline=None)
@given(formats, st.integers(0, 99))
def test_encoded_blocks_are_what_the_format_rounds_to(number_format, seed):
    x = o.randn(4, 6, 5, seed=seed)
    operator = EncodeBlocks(BlockGrid.of(number_format, -30, 8))
    assert torch.equal(operator.out.decode(operator(x)).float(), number_format.round(x) + 0.0)


def test_the_window_of_a_tensor():
    x = torch.tensor([[0.0, 0.0, 0.3, -0.1], [5.0, 1.0, 0.0, -0.75]])
    assert block_exponents(MXInt(8, block_size=2), x) == (-2, 2)
    assert block_exponents(MXInt(8, block_size=4), x) == (-2, 2)
    assert block_exponents(MXInt(8), torch.zeros(3)) is None


def test_values_beyond_the_window_saturate_and_small_blocks_are_coarser():
    grid = BlockGrid.of(MXInt(4, block_size=2), -2, 1)
    edge = Edge.of(2.0**-10, -(2**40), 2**40)
    x = torch.tensor([[100.0, -0.5], [-(2.0**20), 1.5], [0.11, -0.02], [0.0, 0.0]])
    found = RequantizeBlocks(edge, grid)((x * 2**10).long())
    assert torch.equal(found, EncodeBlocks(grid)(x))
    assert grid.edge.decode(found).tolist() == [[3.5, -0.5], [-3.5, 1.5], [0.125, 0.0], [0.0, 0.0]]
    assert (found.min(), found.max()) == (grid.edge.low, grid.edge.high)


@pytest.mark.parametrize("number_format", [Integer(8, 4), ScaleInteger(8), BlockFP(8, 8)], ids=str)
def test_other_formats_have_no_blocks(number_format):
    assert BlockGrid.of(number_format, -4, 4) is None


def test_steps_that_are_no_powers_of_two_are_refused():
    grid = BlockGrid.of(MXInt(8), -4, 4)
    for edge in (Edge.of(0.3, -8, 7), Edge.of(1.0, -8, 7, 3)):
        with pytest.raises(ConfigError, match="no multiplier"):
            RequantizeBlocks(edge, grid)
    assert RequantizeBlocks(Edge.of(1.0, -8, 7, 4), grid).exponent == -2
