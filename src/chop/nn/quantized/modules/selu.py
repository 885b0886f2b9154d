"""`nn.SELU` bound to each number format."""

from chop.nn.quantized import QuantSELU
from chop.nn.quantized.derived import bind

bind(QuantSELU, globals())
