"""`nn.AdaptiveAvgPool1d`, `nn.AvgPool1d`, `nn.MaxPool1d` bound to each number format."""

from chop.nn.quantized import QuantAdaptiveAvgPool1d, QuantAvgPool1d, QuantMaxPool1d
from chop.nn.quantized.derived import bind

for _operator in (QuantAdaptiveAvgPool1d, QuantAvgPool1d, QuantMaxPool1d):
    bind(_operator, globals())
