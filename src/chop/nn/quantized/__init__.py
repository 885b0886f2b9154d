"""Quantised operators: one small class each, generic over number formats."""

from chop.nn.quantized.attention import QuantScaledDotProductAttention
from chop.nn.quantized.base import QuantizedOperator, leaf_operators
from chop.nn.quantized.call import QuantCall
from chop.nn.quantized.ops import (
    QuantAdaptiveAvgPool1d,
    QuantAdaptiveAvgPool2d,
    QuantAvgPool1d,
    QuantAvgPool2d,
    QuantBatchNorm1d,
    QuantBatchNorm2d,
    QuantConv1d,
    QuantConv2d,
    QuantConvTranspose2d,
    QuantEmbedding,
    QuantGELU,
    QuantGroupNorm,
    QuantLayerNorm,
    QuantLinear,
    QuantMaxPool1d,
    QuantMaxPool2d,
    QuantReLU,
    QuantRMSNorm,
    QuantSELU,
    QuantSigmoid,
    QuantSiLU,
    QuantSoftmax,
    QuantSoftplus,
    QuantSoftsign,
    QuantTanh,
)
