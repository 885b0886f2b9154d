"""Quantized operators: one small class each, generic over number formats."""

from importlib import import_module
from typing import Any

from chop.base.elsewhere import explain_missing
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
    if name == "modules" or name[:1].isupper():
        modules = import_module(f"{__name__}.modules")
        return modules if name == "modules" else getattr(modules, name)
    raise AttributeError(explain_missing(f"{__name__}.{name}"), name=name)


def __dir__() -> list[str]:
    return sorted({*globals(), *dir(import_module(f"{__name__}.modules"))})
