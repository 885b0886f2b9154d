"""`nn.Softmax` bound to each number format."""

from chop.nn.quantized import QuantSoftmax
from chop.nn.quantized.derived import bind

bind(QuantSoftmax, globals())
