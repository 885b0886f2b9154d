"""Integer operators in Python's unbounded integers, and formats to draw from."""

import torch
from hypothesis import strategies as st

from chop.formats import Integer, QuantSpec
from chop.nn.integer import Encode, Grid, IntegerOptions

SMALL = IntegerOptions("small")
EXACT = IntegerOptions("exact")


def integers(widest=16):
    """Formats `integer` whose fraction is near their width, signed and unsigned."""
    return st.builds(
        lambda w, f, signed, floor: Integer(w, w - f, is_signed=signed, floor=floor),
        st.integers(2, widest),
        st.integers(-1, 4),
        st.booleans(),
        st.booleans(),
    )


def specs():
    """Formats of input, weight and bias."""
    return st.builds(QuantSpec, integers(), integers(), integers())


def read(number_format):
    """The edge of what is read in a format."""
    return Grid.of(number_format).edge


def get_codes(x, number_format):
    """Codes of a tensor in a format."""
    return Encode(Grid.of(number_format))(x)


def randn(*shape, seed=0, scale=1.0):
    """float32 numbers that are the same every time."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * scale


def in_float64(module, x):
    """What a quantized operator computes in float64, where sums of integers are exact."""
    with torch.no_grad():
        return module.double()(x.double())
