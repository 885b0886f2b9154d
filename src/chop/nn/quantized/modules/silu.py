"""`nn.SiLU` bound to each number format."""

from chop.nn.quantized import QuantSiLU
from chop.nn.quantized.derived import bind

bind(QuantSiLU, globals())
