"""`nn.AdaptiveAvgPool1d`, `nn.AvgPool1d`, `nn.MaxPool1d` bound to each number format."""

from chop.nn.quantized import QuantAdaptiveAvgPool1d, QuantAvgPool1d, QuantMaxPool1d
from chop.nn.quantized.derived import bind

bind(QuantAdaptiveAvgPool1d, globals())
bind(QuantAvgPool1d, globals())
bind(QuantMaxPool1d, globals())
