"""WHAT A NUMBER IS: one file per number format; everything else is derived from it."""

from chop.formats.base import (
    REGISTRY,
    Encoded,
    Gradient,
    NumberFormat,
    even_sample,
    formats,
    from_key,
    get_format,
    parse_format,
)
from chop.formats.float import Float
from chop.formats.integer import Integer
from chop.formats.spec import OPERANDS, QuantSpec
