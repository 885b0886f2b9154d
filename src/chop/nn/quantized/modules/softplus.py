"""`nn.Softplus` bound to each number format."""

from chop.nn.quantized import QuantSoftplus
from chop.nn.quantized.derived import bind

bind(QuantSoftplus, globals())
