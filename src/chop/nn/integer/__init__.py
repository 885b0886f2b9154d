"""Operators on integers: the readable specification of what a circuit computes, bit for bit."""

from chop.nn.integer.add import IntegerAdd, IntegerSub
from chop.nn.integer.base import Call, IntegerOperator, IntegerOptions
from chop.nn.integer.boundary import Decode, Encode
from chop.nn.integer.convolution import IntegerConv1d, IntegerConv2d
from chop.nn.integer.edge import Edge, Grid
from chop.nn.integer.linear import IntegerLinear
from chop.nn.integer.relu import IntegerReLU
from chop.nn.integer.requantize import Requantize
from chop.nn.integer.rounding import round_shift, saturate, shift_and_saturate

__all__ = [
    "Call",
    "Decode",
    "Edge",
    "Encode",
    "Grid",
    "IntegerAdd",
    "IntegerConv1d",
    "IntegerConv2d",
    "IntegerLinear",
    "IntegerOperator",
    "IntegerOptions",
    "IntegerReLU",
    "IntegerSub",
    "Requantize",
    "round_shift",
    "saturate",
    "shift_and_saturate",
]
