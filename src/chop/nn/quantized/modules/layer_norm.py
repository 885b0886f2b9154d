"""`nn.LayerNorm` bound to each number format."""

from chop.nn.quantized import QuantLayerNorm
from chop.nn.quantized.derived import bind

bind(QuantLayerNorm, globals())
