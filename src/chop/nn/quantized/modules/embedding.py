"""`nn.Embedding` bound to each number format."""

from chop.nn.quantized import QuantEmbedding
from chop.nn.quantized.derived import bind

bind(QuantEmbedding, globals())
