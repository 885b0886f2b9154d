"""Circuits of batch norms and of their thresholds, against the operators."""

import pytest
import torch

from chop.nn.integer import ChannelMap, Edge, Grid, IntegerBatchNorm, IntegerThresholds
from tests.hardware.bench import check, drawn, needs_tools

pytestmark = needs_tools
SHAPES = [((6,), 6), ((6,), 2), ((4, 6), 24), ((3, 4, 2), 8)]
"""Channels and positions of a sample, and the fold."""


def channel_map(shape, seed=0, scale=1.0):
    """Factors of both signs, one of them zero, and shifts around the middle of the range."""
    generator = torch.Generator().manual_seed(seed)
    sizes = shape[0], *[1] * (len(shape) - 1)
    factors, shifts = torch.randn(2, *sizes, generator=generator, dtype=torch.float64)
    factors[1] = 0.0
    return ChannelMap(factors * scale, shifts)


@pytest.mark.parametrize(("shape", "fold"), SHAPES)
@pytest.mark.parametrize(
    ("low", "high", "scale"), [(-100, 90, 0.01), (-(2**20), 2**21, 1e-6), (0, 1, 3.0)]
)
@pytest.mark.long
def test_batch_norm(shape, fold, low, high, scale):
    edge = Edge.of(1.0, low, high)
    check(IntegerBatchNorm(edge, channel_map(shape, 1, scale)), drawn(edge, *shape), fold=fold)


@pytest.mark.parametrize(("shape", "fold"), SHAPES)
@pytest.mark.parametrize(
    "grid",
    [
        Grid(0.5, -8, 7),
        Grid(0.3, 0, 15),
        Grid(0.5, -2, 1, "floor"),
        Grid(1.0, -1, 1, "sign"),
        Grid(1.0, 0, 1, "sign"),
        Grid(1.0, -1, 1, "threshold", 0.4),
        Grid(1.0, 3, 3),
    ],
    ids=str,
)
@pytest.mark.sampled(1)
def test_thresholds(shape, fold, grid):
    edge = Edge.of(1.0, -100, 90)
    channels = channel_map(shape, 2, 0.03)
    check(IntegerThresholds(edge, channels, grid), drawn(edge, *shape), fold=fold)
