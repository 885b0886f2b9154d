"""`nn.Tanh` bound to each number format."""

from chop.nn.quantized import QuantTanh
from chop.nn.quantized.derived import bind

bind(QuantTanh, globals())
