"""`nn.GroupNorm` bound to each number format."""

from chop.nn.quantized import QuantGroupNorm
from chop.nn.quantized.derived import bind

bind(QuantGroupNorm, globals())
