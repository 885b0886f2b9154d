"""`nn.ConvTranspose2d` bound to each number format."""

from chop.nn.quantized import QuantConvTranspose2d
from chop.nn.quantized.derived import bind

bind(QuantConvTranspose2d, globals())
