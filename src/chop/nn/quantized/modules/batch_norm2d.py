"""`nn.BatchNorm2d` bound to each number format."""

from chop.nn.quantized import QuantBatchNorm2d
from chop.nn.quantized.derived import bind

bind(QuantBatchNorm2d, globals())
