"""Neural network layers, quantized, packed or pruned; generic over the number format."""

import chop.kernels
from chop.nn.weight_cache import cached_weights

__all__ = [
    "cached_weights",
]
