"""What other libraries offer for the same formats: fake-quantizers of a float32 matrix.

Values may differ where definitions do: brevitas' MXINT8 clips the top binade, torchao's integers
take their scale from another range. Libraries that are not installed, or whose quantizer does not
run here, are left out with a line that says so. Tried with torchao 0.18 and brevitas 0.13.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from chop.formats import (
    MXFP,
    NVFP4,
    Binary,
    Integer,
    MinifloatIEEE,
    MXInt,
    NumberFormat,
    ScaleInteger,
    Ternary,
)

Way = Callable[[Tensor], Tensor]
Peer = tuple[str, NumberFormat, Way]
"""Its name, the format of ours that it is to be compared with, and what it does."""


def peers(x: Tensor) -> Iterator[Peer]:
    """Every quantizer that runs, made for a matrix `x` and tried on it once."""
    for library in (_torch, _torchao, _brevitas):
        try:
            found = list(library(x))
        except ImportError as error:
            print(f"{library.__name__.strip('_')}: not installed ({error}).")
            continue
        for name, number_format, way in found:
            try:
                assert way(x).shape == x.shape
            except Exception as error:
                print(f"{name}: does not run here ({type(error).__name__}: {error}).")
            else:
                yield name, number_format, way


def _torch(x: Tensor) -> Iterator[Peer]:
    def affine(x: Tensor) -> Tensor:
        return torch.fake_quantize_per_tensor_affine(x, 2.0**-4, 0, -128, 127)

    scales = x.abs().amax(1) / 127
    zeros = torch.zeros(len(x), dtype=torch.int32)

    def per_channel(x: Tensor) -> Tensor:
        return torch.fake_quantize_per_channel_affine(x, scales, zeros, 0, -127, 127)

    def cast(x: Tensor, dtype: torch.dtype) -> Tensor:
        return x.to(dtype).to(x.dtype)

    yield "torch fake_quantize", Integer(8, 4), affine
    yield "torch fake_quantize, scales given", ScaleInteger(8, granularity="channel"), per_channel
    yield "torch float8_e4m3fn cast", MinifloatIEEE(8, 4), partial(cast, dtype=torch.float8_e4m3fn)
    yield "torch float8_e5m2 cast", MinifloatIEEE(8, 5), partial(cast, dtype=torch.float8_e5m2)


def _torchao(x: Tensor) -> Iterator[Peer]:
    from torchao.prototype.mx_formats.mx_tensor import MXTensor
    from torchao.prototype.mx_formats.nvfp4_tensor import NVFP4Tensor
    from torchao.quantization.qat import IntxFakeQuantizeConfig, IntxFakeQuantizer

    def mx(x: Tensor, dtype: Any) -> Tensor:
        return MXTensor.to_mx(x, dtype, 32).dequantize(x.dtype)

    def nvfp4(x: Tensor) -> Tensor:
        scale = x.abs().amax() / (448 * 6)
        return NVFP4Tensor.to_nvfp4(x, per_tensor_scale=scale).dequantize(x.dtype)

    yield "torchao MX e4m3", MXFP(8, 4), partial(mx, dtype=torch.float8_e4m3fn)
    yield "torchao MX e5m2", MXFP(8, 5), partial(mx, dtype=torch.float8_e5m2)
    yield "torchao MX e3m2", MXFP(6, 3), partial(mx, dtype="fp6_e3m2")
    yield "torchao MX e2m1", MXFP(4, 2), partial(mx, dtype=torch.float4_e2m1fn_x2)
    yield "torchao NVFP4", NVFP4(), nvfp4
    int8 = IntxFakeQuantizeConfig(torch.int8, "per_channel", is_symmetric=True)
    int4 = IntxFakeQuantizeConfig(torch.int4, group_size=128, is_symmetric=True)
    yield "torchao int8", ScaleInteger(8, granularity="channel"), IntxFakeQuantizer(int8)
    yield "torchao int4", ScaleInteger(4, granularity="group"), IntxFakeQuantizer(int4)


def _brevitas(x: Tensor) -> Iterator[Peer]:
    import brevitas.nn
    from brevitas import quant
    from brevitas.quant.experimental import float as minifloat
    from brevitas.quant.experimental import mx_quant_ocp as mx

    def of_weight(quantizer: type, **options: float) -> Way:
        rows, columns = x.shape
        layer = brevitas.nn.QuantLinear(columns, rows, False, weight_quant=quantizer, **options)
        layer.weight.data = x.clone()  # some quantizers clamp it
        return lambda _: layer.eval().quant_weight().value

    channel, tensor = ScaleInteger(8, granularity="channel"), ScaleInteger(8)
    yield "brevitas fixed point", Integer(8, 4), of_weight(quant.Int8WeightPerTensorFixedPoint)
    yield "brevitas int8 by tensor", tensor, of_weight(quant.Int8WeightPerTensorFloat)
    yield "brevitas int8 by channel", channel, of_weight(quant.Int8WeightPerChannelFloat)
    yield "brevitas e4m3", MinifloatIEEE(8, 4), of_weight(minifloat.Fp8e4m3Weight)
    yield "brevitas e5m2", MinifloatIEEE(8, 5), of_weight(minifloat.Fp8e5m2Weight)
    yield "brevitas MXINT8", MXInt(8), of_weight(mx.MXInt8Weight)
    yield "brevitas MX e4m3", MXFP(8, 4), of_weight(mx.MXFloat8e4m3Weight)
    binary, ternary = (
        quant.SignedBinaryWeightPerTensorConst,
        quant.SignedTernaryWeightPerTensorConst,
    )
    yield "brevitas binary", Binary(), of_weight(binary, weight_scaling_const=1.0)
    yield "brevitas ternary", Ternary(threshold=0.5), of_weight(ternary, weight_scaling_const=1.0)
