"""`nn.BatchNorm1d` bound to each number format."""

from chop.nn.quantized import QuantBatchNorm1d
from chop.nn.quantized.derived import bind

bind(QuantBatchNorm1d, globals())
