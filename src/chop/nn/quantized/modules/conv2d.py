"""`nn.Conv2d` bound to each number format."""

from chop.nn.quantized import QuantConv2d
from chop.nn.quantized.derived import bind

bind(QuantConv2d, globals())
