"""`nn.GELU` bound to each number format."""

from chop.nn.quantized import QuantGELU
from chop.nn.quantized.derived import bind

bind(QuantGELU, globals())
