"""`nn.Sigmoid` bound to each number format."""

from chop.nn.quantized import QuantSigmoid
from chop.nn.quantized.derived import bind

bind(QuantSigmoid, globals())
