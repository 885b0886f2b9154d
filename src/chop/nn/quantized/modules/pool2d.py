"""`nn.AdaptiveAvgPool2d`, `nn.AvgPool2d`, `nn.MaxPool2d` bound to each number format."""

from chop.nn.quantized import QuantAdaptiveAvgPool2d, QuantAvgPool2d, QuantMaxPool2d
from chop.nn.quantized.derived import bind

bind(QuantAdaptiveAvgPool2d, globals())
bind(QuantAvgPool2d, globals())
bind(QuantMaxPool2d, globals())
