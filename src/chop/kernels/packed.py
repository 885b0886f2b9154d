"""Operators on packed tensors: decoding and matrix multiplication.

They are registered with torch, so that FX, torch.compile and export see one node. Their default
implementations are the readable references. Faster ones are registered by device.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from chop.formats import from_key
from chop.kernels.base import is_bias_followed, is_followed
from chop.kernels.codes import Packed
from chop.kernels.cpu import packed as cpu
from chop.kernels.cpu.build import is_ready
from chop.kernels.triton import register as gpu
from chop.private.torch_api import check_sizes

# `Library` and not `custom_op`, whose calls cost as much as multiplying one row of activations.
OPERATORS = torch.library.Library("chop", "FRAGMENT")
PARTS = "Tensor codes, Tensor? scales, Tensor? tensor_scale, SymInt[] shape, str key"
OPERATORS.define(f"decode({PARTS}, ScalarType dtype) -> Tensor")
OPERATORS.define(f"packed_linear(Tensor x, str x_key, {PARTS}, Tensor? bias, bool exact) -> Tensor")


BIAS = 7
"""Index of `bias` among the arguments of `packed_linear`."""


def known_shape(codes: Tensor, shape: Sequence[int], key: str) -> Sequence[int]:
    """Returns the shape of a packed tensor, replacing a first size of -1 by the number of rows.

    Rows must fill whole bytes, as guaranteed by `NumberFormat.is_row_separable`.
    """
    if not shape or shape[0] != -1:
        return shape
    # Integer arithmetic only, because `codes.numel()` is symbolic while a compiler traces.
    bits = Fraction(from_key(key).code_bits).limit_denominator(64)
    numbers = codes.numel() * 8 * bits.denominator // bits.numerator
    return (numbers // math.prod(shape[1:]), *shape[1:])


def decode(
    codes: Tensor,
    scales: Tensor | None,
    tensor_scale: Tensor | None,
    shape: Sequence[int],
    key: str,
    dtype: torch.dtype,
) -> Tensor:
    """Decodes a packed tensor: the readable reference.

    Args:
        codes: uint8, packed.
        scales: scales of the groups, or None.
        tensor_scale: scale of the whole tensor, or None.
        shape: shape of the decoded tensor; see `known_shape`.
        key: key of the number format.
        dtype: dtype of the result.
    """
    shape = known_shape(codes, shape, key)
    packed = Packed(codes, scales, tensor_scale, shape, key)
    return from_key(key).decode(packed.encoded(dtype)).contiguous()


def packed_linear(
    x: Tensor,
    x_key: str,
    codes: Tensor,
    scales: Tensor | None,
    tensor_scale: Tensor | None,
    shape: Sequence[int],
    key: str,
    bias: Tensor | None,
    exact: bool,
) -> Tensor:
    """Returns `F.linear(x, weight, bias)` for a packed weight: the readable reference.

    Args:
        x: (..., columns), floating.
        x_key: key of the format that `x` is rounded to first.
        codes: uint8, packed codes of the weight.
        scales: scales of the groups, or None.
        tensor_scale: scale of the whole weight, or None.
        shape: (outputs, columns) of the decoded weight; see `known_shape`.
        key: key of the weight's format.
        bias: (outputs,), of any floating dtype, or None.
        exact: True multiplies decoded numbers like the reference. False allows kernels to change
            the order of summation, and to round `x` and results to bfloat16 if torch's float32
            matmul precision allows it; see `chop.kernels.matmul_precision`.
    Returns: (..., outputs), in the dtype of `x`.
    """
    weight = torch.ops.chop.decode(codes, scales, tensor_scale, shape, key, x.dtype)
    return F.linear(from_key(x_key)(x), weight, None if bias is None else bias.to(x.dtype))


def packed_linear_directly(
    x: Tensor,
    x_key: str,
    codes: Tensor,
    scales: Tensor | None,
    tensor_scale: Tensor | None,
    shape: Sequence[int],
    key: str,
    bias: Tensor | None,
) -> Tensor:
    """Calls `packed_linear`, bypassing PyTorch's dispatcher if nothing observes the call.

    The dispatcher takes as long as multiplying one row of activations by a small weight.

    Args:
        x: (..., columns), floating.
        x_key: see `packed_linear`, like all arguments.
        codes: uint8.
        scales: scales of the groups, or None.
        tensor_scale: scale of the whole weight, or None.
        shape: (outputs, columns).
        key: key of the weight's format.
        bias: (outputs,) or None.
    """
    if type(codes) is Tensor and x.is_cpu and codes.is_cpu and not is_followed(x):
        packed = Packed(codes, scales, tensor_scale, shape, key)
        result = None if is_bias_followed(bias) else cpu.linear(x, x_key, packed, bias)
        if result is not None:
            return result
    y: Tensor = torch.ops.chop.packed_linear(
        x, x_key, codes, scales, tensor_scale, shape, key, bias, False
    )
    return y


def takes_prepared(x: Tensor, columns: int) -> bool:
    """Returns True if a prepared product supports `x` and nothing observes the call."""
    if type(x) is not Tensor or x.dtype != torch.float32 or not x.is_cpu or x.numel() == 0:
        return False
    lies_well = x.ndim > 0 and x.size(-1) == columns and x.is_contiguous()
    return lies_well and is_ready() and not is_followed(x)


def workspace_bytes(operator: Any, arguments: Sequence[Any]) -> int:
    """Returns the workspace of an operator of this module in bytes; 0 for other operators.

    The default decodes the weight and rounds `x`. CPU kernels report less.
    """
    if operator is not torch.ops.chop.packed_linear.default:
        return 0
    x, x_key, codes, scales, tensor_scale, shape, key, bias, exact = arguments
    packed = _packed(codes, scales, tensor_scale, shape, key)
    workspace = None
    if x.device.type == "cpu" and not exact:
        workspace = cpu.workspace_bytes(x, x_key, packed, bias)
    if workspace is not None:
        return workspace
    rounded = 0 if from_key(x_key).is_identity else x.nbytes
    return int(x.itemsize * math.prod(packed.shape) + rounded)


def _packed(
    codes: Tensor,
    scales: Tensor | None,
    tensor_scale: Tensor | None,
    shape: Sequence[int],
    key: str,
) -> Packed:
    return Packed(codes, scales, tensor_scale, known_shape(codes, shape, key), key)


def _decoder(find: Callable[..., Tensor | None]) -> Callable[..., Tensor]:
    def implementation(*arguments: Any) -> Tensor:
        result = find(_packed(*arguments[:-1]), arguments[-1])
        return decode(*arguments) if result is None else result

    return implementation


def _linear(find: Callable[..., Tensor | None]) -> Callable[..., Tensor]:
    def implementation(x: Tensor, x_key: str, *others: Any) -> Tensor:
        *packed, bias, exact = others
        result = None if exact else find(x, x_key, _packed(*packed), bias)
        return packed_linear(x, x_key, *others) if result is None else result

    return implementation


# The references run on every device. Kernels of a device come first, and call the reference for
# formats or shapes that they do not support.
OPERATORS.impl("decode", decode, "CompositeExplicitAutograd")
OPERATORS.impl("decode", _decoder(cpu.decode), "CPU")
OPERATORS.impl("decode", _decoder(gpu.decode), "CUDA")
OPERATORS.impl("packed_linear", packed_linear, "CompositeExplicitAutograd")
OPERATORS.impl("packed_linear", _linear(cpu.linear), "CPU")
OPERATORS.impl("packed_linear", _linear(gpu.linear), "CUDA")


def _decoded_shape(
    codes: Tensor,
    scales: Tensor | None,
    tensor_scale: Tensor | None,
    shape: Sequence[int],
    key: str,
    dtype: torch.dtype,
) -> Tensor:
    device = _result_device(codes, scales, tensor_scale)
    return codes.new_empty(known_shape(codes, shape, key), dtype=dtype, device=device)


def _product_shape(x: Tensor, x_key: str, *packed: Any) -> Tensor:
    codes, _, _, given, key, *_ = packed
    shape = known_shape(codes, given, key)
    check_sizes(
        x.ndim > 0 and x.shape[-1] == shape[1],
        lambda: f"expected x (..., {shape[1]}), got {tuple(x.shape)}.",
    )
    return x.new_empty((*x.shape[:-1], shape[0]), device=_result_device(x, *packed))


def _result_device(first: Tensor, *others: Any) -> torch.device:
    """Returns the meta device if one operand is there, so that results without values show it."""
    devices = [x.device for x in (first, *others) if isinstance(x, Tensor)]
    return next((device for device in devices if device.type == "meta"), devices[0])


torch.library.register_fake("chop::decode", _decoded_shape, lib=OPERATORS)
torch.library.register_fake("chop::packed_linear", _product_shape, lib=OPERATORS)


def _keep_packed(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, _, *packed, _, _ = inputs
    ctx.dtype, ctx.shape_and_key = x.dtype, packed[3:]
    ctx.save_for_backward(*packed[:3])


def _to_activations(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    """Computes a straight-through gradient for `x`; packed tensors have no gradient."""
    x_gradient, bias_gradient = None, None
    if ctx.needs_input_grad[0]:
        weight = torch.ops.chop.decode(*ctx.saved_tensors, *ctx.shape_and_key, ctx.dtype)
        x_gradient = grad @ weight
    if ctx.needs_input_grad[BIAS]:
        bias_gradient = grad.reshape(-1, grad.size(-1)).sum(0)
    return x_gradient, None, None, None, None, None, None, bias_gradient, None


torch.library.register_autograd(
    "chop::packed_linear", _to_activations, setup_context=_keep_packed, lib=OPERATORS
)
