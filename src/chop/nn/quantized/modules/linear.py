"""`nn.Linear` bound to each number format."""

from chop.nn.quantized import QuantLinear
from chop.nn.quantized.derived import bind

bind(QuantLinear, globals())
