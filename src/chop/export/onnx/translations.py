"""Translations of custom operators to ONNX for torch's exporter."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from chop.export.onnx.decode import DECODE, DOMAIN
from chop.export.onnx.operators import BIPOLAR, LARGEST_CODE, QONNX, QUANT, ZERO_POINT

OPSET = 18
CONTRIBUTED = "com.microsoft"
"""Domain of onnxruntime's contributed operators, which OpenVINO supports too."""
Translations = dict[Any, Callable[..., Any]]
TYPES = [f"tensor({kind})" for kind in ("float", "uint8", "int8", "int32", "int64")]


def translations() -> Translations:
    """Returns the translation table of custom operators for the exporter."""
    weights = {**_translate_weights(), **_translate_qonnx()}
    return {**_translate_roundings(), **weights, **_translate_gelu()}


def _translate_gelu() -> Translations:
    """Returns the translation of GELU, with products in the order that onnxruntime fuses."""
    import onnx_ir
    from onnxscript import opset18

    op: Any = opset18

    def gelu(x: Any, approximate: str = "none") -> Any:
        def number(value: float) -> Any:
            return op.Constant(value=onnx_ir.tensor(value, dtype=x.dtype))

        if approximate == "tanh":
            cube = op.Mul(op.Mul(x, x), x)
            inner = op.Add(x, op.Mul(number(0.044715), cube))
            curve = op.Tanh(op.Mul(number(math.sqrt(2 / math.pi)), inner))
            return op.Mul(op.Mul(number(0.5), x), op.Add(number(1.0), curve))
        curve = op.Erf(op.Div(x, number(math.sqrt(2))))
        return op.Mul(op.Mul(x, op.Add(curve, number(1.0))), number(0.5))

    return {torch.ops.aten.gelu.default: gelu}


def _translate_roundings() -> Translations:
    """Returns the translations to QuantizeLinear and DequantizeLinear."""
    from onnx import TensorProto, helper
    from onnxscript import opset18

    op: Any = opset18

    def rounded(x: Any, scale: Any, low: int, high: int) -> Any:
        zero = ZERO_POINT if low < 0 else 0
        if high + zero < LARGEST_CODE:
            ends = (op.Mul(scale, op.Constant(value_float=float(end))) for end in (low, high))
            x = op.Clip(x, *ends)
        tensor = helper.make_tensor("zero_point", TensorProto.UINT8, [], [zero])
        point = op.Constant(value=tensor)
        return op.DequantizeLinear(op.QuantizeLinear(x, scale, point), scale, point)

    def dequantized(codes: Any, scale: Any, zero_point: Any, axis: int) -> Any:
        return op.DequantizeLinear(codes, scale, zero_point, axis=axis)

    return {
        torch.ops.chop.onnx_round.default: rounded,
        torch.ops.chop.onnx_dequantize.default: dequantized,
    }


def _translate_weights() -> Translations:
    """Returns the translations to MatMulNBits, GatherBlockQuantized and decoding."""
    integers = dict.fromkeys(("bits", "block_size"), "INT")
    sizes, axes = dict.fromkeys("KN", "INT"), dict.fromkeys(("gather_axis", "quantize_axis"), "INT")
    multiply = _operator(CONTRIBUTED, "MatMulNBits", ("A", "B", "scales"), integers | sizes)
    gather = _operator(
        CONTRIBUTED, "GatherBlockQuantized", ("data", "indices", "scales"), integers | axes
    )
    decode = _operator(DOMAIN, DECODE, ("codes", "steps", "offsets"), {"columns": "INT"}, 1)

    def decoded(codes: Any, steps: Any, offsets: Any, columns: int) -> Any:
        return decode(codes, steps, offsets, columns=columns)

    def multiplied(x: Any, codes: Any, scales: Any) -> Any:
        rows, _, half = codes.shape
        given = {"K": int(x.shape[-1]), "N": int(rows), "block_size": 2 * int(half)}
        return multiply(x, codes, scales, bits=4, **given)

    def gathered(codes: Any, rows: Any, scales: Any) -> Any:
        block = 2 * int(codes.shape[1]) // int(scales.shape[1])
        given = {"gather_axis": 0, "quantize_axis": 1, "block_size": block}
        return gather(codes, rows, scales, bits=4, **given)

    return {
        torch.ops.chop.onnx_decode.default: decoded,
        torch.ops.chop.onnx_matmul_4bit.default: multiplied,
        torch.ops.chop.onnx_gather_4bit.default: gathered,
    }


def _translate_qonnx() -> Translations:
    """Returns the translations to Quant and BipolarQuant."""
    from onnxscript import opset18

    op: Any = opset18
    kinds = {"signed": "INT", "narrow": "INT", "rounding_mode": "STRING"}
    quant_op = _operator(QONNX, QUANT, ("x", "scale", "zero_point", "bit_width"), kinds)
    bipolar_op = _operator(QONNX, BIPOLAR, ("x", "scale"), {})

    def quant(x: Any, scale: Any, low: int, high: int, floors: bool) -> Any:
        bits = high.bit_length() + (low < 0)  # as the largest k is one less than a power of two
        zero_point, bit_width = (op.Constant(value_float=float(number)) for number in (0, bits))
        given = {
            "signed": int(low < 0),
            "narrow": int(low == -high),
            "rounding_mode": "FLOOR" if floors else "ROUND",
        }
        return quant_op(x, scale, zero_point, bit_width, **given)

    def bipolar(x: Any, scale: Any) -> Any:
        return bipolar_op(x, scale)

    return {
        torch.ops.chop.qonnx_quant.default: quant,
        torch.ops.chop.qonnx_bipolar.default: bipolar,
    }


def _operator(
    domain: str,
    name: str,
    inputs: Sequence[str],
    attributes: Mapping[str, str],
    optional: int = 0,
) -> Any:
    """Returns an operator of version 1 in a custom domain, with one floating-point result.

    Args:
        domain: its domain.
        name: its name.
        inputs: names of its inputs.
        attributes: type of each attribute: "INT" or "STRING".
        optional: number of trailing inputs that may be missing.
    """
    from onnx.defs import OpSchema
    from onnxscript.values import Op, Opset

    single, maybe = (getattr(OpSchema.FormalParameterOption, x) for x in ("Single", "Optional"))
    options = [single] * (len(inputs) - optional) + [maybe] * optional
    kinds = [f"T{i}" for i in range(len(inputs))]
    schema = OpSchema(
        name,
        domain,
        1,
        inputs=[
            OpSchema.FormalParameter(each, kind, param_option=option)
            for each, kind, option in zip(inputs, kinds, options, strict=True)
        ],
        outputs=[OpSchema.FormalParameter("result", "T")],
        type_constraints=[("T", TYPES[:1], ""), *((kind, TYPES, "") for kind in kinds)],
        attributes=[OpSchema.Attribute(x, OpSchema.AttrType[k]) for x, k in attributes.items()],
    )
    return Op(Opset(domain, 1), name, schema)
