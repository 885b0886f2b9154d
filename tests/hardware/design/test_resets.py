"""Resets in every cycle of a sample: the samples that follow are those of a new circuit."""

import pytest
from torch import nn

from chop.nn import integer as i
from chop.nn.integer import Call, Edge, IntegerLayerNorm, IntegerMatmul, IntegerOptions
from chop.testing.components import RESET_CYCLES
from tests.hardware.bench import Case, drawn, needs_tools
from tests.hardware.design.test_block_linear import block_layer
from tests.hardware.design.test_cache import cached, flags
from tests.hardware.design.test_conv import convolution
from tests.hardware.design.test_linear import EDGE, layer
from tests.hardware.design.test_lookup import table
from tests.hardware.design.test_norm import norm
from tests.hardware.design.test_pool import image

pytestmark = needs_tools
BYTES = Edge.of(0.25, -128, 127)


def pool(kind, shape, **settings):
    return kind.from_quantized(None, [BYTES], IntegerOptions(), Call([shape], settings))


def convolved(module, *sizes):
    return convolution(module), [image(BYTES, module.in_channels, *sizes)]


CASES = {
    "window": (*convolved(nn.Conv2d(2, 3, 3), 6, 5), 1),
    "window_of_a_tap": (*convolved(nn.Conv2d(1, 2, 3, padding=1), 6, 4), 10**4),
    "window_of_a_row": (*convolved(nn.Conv2d(1, 4, 3, padding=1), 6, 5), 90),
    "strided": (*convolved(nn.Conv2d(1, 2, (3, 2), (2, 1), (1, 0)), 7, 5), 1),
    "one_window": (*convolved(nn.Conv2d(1, 2, (4, 3)), 4, 3), 14),
    "one_dimension": (*convolved(nn.Conv1d(2, 3, 5, padding="same"), 7), 1),
    "depthwise": (*convolved(nn.Conv2d(4, 4, 3, padding=1, groups=4), 5, 4), 360),
    "groups": (*convolved(nn.Conv2d(4, 6, 3, padding=1, groups=2), 4, 4), 600),
    "max_pool": (
        pool(i.IntegerMaxPool2d, (2, 7, 5), kernel_size=3, stride=1, padding=1),
        [image(BYTES, 2, 7, 5)],
        1,
    ),
    "avg_pool": (
        pool(i.IntegerAvgPool2d, (2, 6, 6), kernel_size=2),
        [image(BYTES, 2, 6, 6)],
        1,
    ),
    "linear": (layer(6, 8), [drawn(EDGE, 3, 8)], 36),
    "linear_of_blocks": (*block_layer(4, 12, size=6, rows=(2,)), 1),
    "matmul": (
        IntegerMatmul(BYTES, BYTES, 5),
        [drawn(BYTES, 2, 5), drawn(BYTES, 5, 4, seed=1)],
        9,
    ),
    "softmax": (
        i.IntegerSoftmax(Edge.of(0.05, -128, 127), 7, -1, IntegerOptions("small")),
        [drawn(Edge.of(0.05, -128, 127), 4, 7)],
        1,
    ),
    "layer_norm": (norm(IntegerLayerNorm, BYTES, (12,)), [drawn(BYTES, 4, 12)], 48),
    "layer_norm_fast": (norm(IntegerLayerNorm, BYTES, (12,)), [drawn(BYTES, 4, 12)], 1),
    "sum": (i.IntegerSum(BYTES, (4, 6), (-1,), False), [drawn(BYTES, 4, 6)], 1),
    "embedding": (table(11, 6), [drawn(Edge.of(1.0, 0, 10), 4)], 1),
    "keys": (*cached(BYTES, BYTES, 3, 1, 2, 4, True), 12),
    "values": (*cached(BYTES, BYTES, 3, 1, 2, 4, False), 12),
    "position": (i.IntegerPosition(5), [flags()], 1),
    "add": (i.IntegerAdd(BYTES, EDGE), [drawn(BYTES, 3, 4), drawn(EDGE, 3, 4, seed=1)], 1),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.long
def test_a_reset_in_every_cycle_of_a_sample(name):
    operator, inputs, fold = CASES[name]
    inputs = inputs if isinstance(inputs, list) else [inputs]
    inputs = [each._replace(codes=each.codes[:2]) for each in inputs]
    case = Case(operator, inputs, fold, ("none",), None, False)
    cycles = range(1, case.plan.cycles + case.plan.latency + 8)
    resets = [(at, length) for at in cycles for length in RESET_CYCLES]
    with case.bench.compiled(case.bench.top_with_reset()) as bench:
        bench.run_with_resets(resets, "none")


def test_a_window_forgets_the_rows_that_it_was_about_to_free():
    """One cycle of reset, also in that in which the last tap of a row of windows is read."""
    operator, inputs = convolved(nn.Conv2d(1, 1, 3), 8, 5)
    case = Case(operator, inputs, 10**4, ("none",), None, False)
    with case.bench.compiled(case.bench.top_with_reset()) as bench:
        bench.run_with_resets([(at, 1) for at in range(36, 76)], "none")
