"""Quantized operators: one small class each, generic over number formats."""

from importlib import import_module
from typing import Any

from chop.nn.quantized.attention import QuantScaledDotProductAttention
from chop.nn.quantized.base import QuantizedOperator, leaf_operators
from chop.nn.quantized.call import QuantCall, QuantContext, QuantInPlaceCall, QuantScores
from chop.nn.quantized.experts import QuantExpertLinear
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
    QuantLogSoftmax,
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

__all__ = [
    "QuantAdaptiveAvgPool1d",
    "QuantAdaptiveAvgPool2d",
    "QuantAvgPool1d",
    "QuantAvgPool2d",
    "QuantBatchNorm1d",
    "QuantBatchNorm2d",
    "QuantCall",
    "QuantContext",
    "QuantConv1d",
    "QuantConv2d",
    "QuantConvTranspose2d",
    "QuantEmbedding",
    "QuantExpertLinear",
    "QuantGELU",
    "QuantGroupNorm",
    "QuantInPlaceCall",
    "QuantLayerNorm",
    "QuantLinear",
    "QuantLogSoftmax",
    "QuantMaxPool1d",
    "QuantMaxPool2d",
    "QuantRMSNorm",
    "QuantReLU",
    "QuantSELU",
    "QuantScaledDotProductAttention",
    "QuantScores",
    "QuantSiLU",
    "QuantSigmoid",
    "QuantSoftmax",
    "QuantSoftplus",
    "QuantSoftsign",
    "QuantTanh",
    "QuantizedOperator",
    "leaf_operators",
]


def __getattr__(name: str) -> Any:
    """Returns an operator bound to a format, such as `LinearInteger`, made on its first use."""
    is_bound = name[:1].isupper() and not name.startswith("Quant")  # `Quant...` have any format
    if name == "modules" or is_bound:
        modules = import_module(f"{__name__}.modules")
        return getattr(modules, name) if is_bound else modules
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'", name=name)
