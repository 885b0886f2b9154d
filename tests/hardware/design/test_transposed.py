"""Transposed convolutions: zeros inserted between codes, and a convolution."""

import pytest
import torch
from torch import nn

from chop.errors import ConfigError
from chop.formats import QuantSpec, parse_format_string
from chop.nn.integer import Call, Edge, IntegerConvTranspose2d, IntegerOptions
from chop.nn.quantized import QuantConvTranspose2d
from tests.hardware.bench import check, needs_tools
from tests.hardware.design.test_pool import image

EIGHTHS = Edge.of(0.125, -128, 127)
OPTIONS = IntegerOptions()
TRANSPOSED = [
    {"kernel_size": 2, "stride": 2},
    {"kernel_size": 3, "stride": 2, "padding": 1, "output_padding": 1},
    {"kernel_size": (3, 2), "stride": (1, 3), "dilation": (2, 1), "output_padding": (0, 2)},
    {"kernel_size": 4, "stride": 3, "padding": (2, 1), "groups": 2},
]


def transposed(settings, channels, outputs, sizes):
    """The integer form of a transposed convolution, its zero insertion, and torch's result."""
    module = QuantConvTranspose2d(channels, outputs, **settings)
    spec = QuantSpec.uniform(parse_format_string("8.3"))
    module = QuantConvTranspose2d.from_float(module, spec)
    call = Call([(5, channels, *sizes)])
    spread = IntegerConvTranspose2d.spread(module, EIGHTHS, call)
    operator = IntegerConvTranspose2d.from_quantized(module, [spread.out], OPTIONS, call)
    given = image(EIGHTHS, channels, *sizes)
    expected = module.double()(EIGHTHS.decode(given.codes))
    return spread, operator, given, expected


@pytest.mark.parametrize("settings", TRANSPOSED)
def test_a_transposed_convolution_is_that_of_torch(settings):
    torch.manual_seed(0)
    spread, operator, given, expected = transposed(settings, 4, 6, (3, 5))
    found = operator.out.decode(operator(spread(given.codes)))
    # A bias without formats of its own is rounded to the step of the products.
    torch.testing.assert_close(found, expected, rtol=0, atol=2.0**-6)


@needs_tools
@pytest.mark.parametrize("settings", TRANSPOSED)
@pytest.mark.sampled(1)
def test_a_transposed_convolution_is_a_circuit(settings):
    torch.manual_seed(0)
    spread, operator, given, _ = transposed(settings, 2, 2, (3, 2))
    codes = spread(given.codes)
    check(operator, image(spread.out, *codes.shape[1:])._replace(codes=codes), fold=1)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"kernel_size": 1, "padding": 1}, "slice the result"),
        ({"kernel_size": 2, "stride": 2}, "output_padding instead of output_size"),
    ],
)
def test_transposed_convolutions_that_crop_ahead_are_refused(settings, reason):
    call = Call([(5, 2, 3, 3)], {"output_size": [7, 7]} if "output" in reason else {})
    with pytest.raises(ConfigError, match=reason):
        IntegerConvTranspose2d.spread(nn.ConvTranspose2d(2, 2, **settings), EIGHTHS, call)
