"""Integer operators: readable, bit-exact specification of the computations of a circuit."""

from chop.nn.integer.absolute import IntegerAbs
from chop.nn.integer.add import IntegerAdd, IntegerSub
from chop.nn.integer.affine import ChannelMap, IntegerBatchNorm, IntegerThresholds
from chop.nn.integer.avg_pool import (
    IntegerAdaptiveAvgPool1d,
    IntegerAdaptiveAvgPool2d,
    IntegerAvgPool1d,
    IntegerAvgPool2d,
)
from chop.nn.integer.base import Call, IntegerOperator, IntegerOptions
from chop.nn.integer.blocks import BlockGrid, EncodeBlocks, RequantizeBlocks, block_exponents
from chop.nn.integer.boundary import Decode, Encode
from chop.nn.integer.cache import IntegerCachedMatmul, IntegerPosition
from chop.nn.integer.constant import Constant, IntegerEmbedding
from chop.nn.integer.convolution import IntegerConv1d, IntegerConv2d, IntegerConvTranspose2d
from chop.nn.integer.edge import Edge, Grid
from chop.nn.integer.linear import IntegerLinear
from chop.nn.integer.matmul import IntegerMatmul
from chop.nn.integer.max_pool import IntegerMaxPool1d, IntegerMaxPool2d
from chop.nn.integer.mul import IntegerMul, IntegerScale, IntegerSquare
from chop.nn.integer.negate import IntegerNegate
from chop.nn.integer.norm import IntegerGroupNorm, IntegerLayerNorm, IntegerRMSNorm
from chop.nn.integer.prelu import IntegerPReLU
from chop.nn.integer.reduce import IntegerAMax, IntegerMean, IntegerSum
from chop.nn.integer.relu import IntegerReLU
from chop.nn.integer.requantize import Requantize
from chop.nn.integer.resample import IntegerInterpolate, IntegerPad, IntegerResample
from chop.nn.integer.rounding import round_shift, saturate, shift_and_saturate
from chop.nn.integer.softmax import IntegerSoftmax
from chop.nn.integer.table import Table

__all__ = [
    "BlockGrid",
    "Call",
    "ChannelMap",
    "Constant",
    "Decode",
    "Edge",
    "Encode",
    "EncodeBlocks",
    "Grid",
    "IntegerAMax",
    "IntegerAbs",
    "IntegerAdaptiveAvgPool1d",
    "IntegerAdaptiveAvgPool2d",
    "IntegerAdd",
    "IntegerAvgPool1d",
    "IntegerAvgPool2d",
    "IntegerBatchNorm",
    "IntegerCachedMatmul",
    "IntegerConv1d",
    "IntegerConv2d",
    "IntegerConvTranspose2d",
    "IntegerEmbedding",
    "IntegerGroupNorm",
    "IntegerInterpolate",
    "IntegerLayerNorm",
    "IntegerLinear",
    "IntegerMatmul",
    "IntegerMaxPool1d",
    "IntegerMaxPool2d",
    "IntegerMean",
    "IntegerMul",
    "IntegerNegate",
    "IntegerOperator",
    "IntegerOptions",
    "IntegerPReLU",
    "IntegerPad",
    "IntegerPosition",
    "IntegerRMSNorm",
    "IntegerReLU",
    "IntegerResample",
    "IntegerScale",
    "IntegerSoftmax",
    "IntegerSquare",
    "IntegerSub",
    "IntegerSum",
    "IntegerThresholds",
    "Requantize",
    "RequantizeBlocks",
    "Table",
    "block_exponents",
    "round_shift",
    "saturate",
    "shift_and_saturate",
]
