"""`nn.Conv1d` bound to each number format."""

from chop.nn.quantized import QuantConv1d
from chop.nn.quantized.derived import bind

bind(QuantConv1d, globals())
