"""`nn.RMSNorm` bound to each number format."""

from chop.nn.quantized import QuantRMSNorm
from chop.nn.quantized.derived import bind

bind(QuantRMSNorm, globals())
