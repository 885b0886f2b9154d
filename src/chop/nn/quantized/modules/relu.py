"""`nn.ReLU` bound to each number format."""

from chop.nn.quantized import QuantReLU
from chop.nn.quantized.derived import bind

bind(QuantReLU, globals())
