"""Operators on packed tensors: decoding them, and multiplying by them.

They are registered, so that FX, torch.compile and export see one node. Their default
implementations are the readable references; faster ones are chosen by device.
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
from chop.kernels.base import is_followed
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
"""Its place among the arguments of `packed_linear`."""


def known_shape(codes: Tensor, shape: Sequence[int], key: str) -> Sequence[int]:
    """The shape of a packed tensor; a first size of -1 is as many rows as there are codes of.

    Rows have to fill whole bytes, as those of `NumberFormat.is_row_separable` do.
    """
    if not shape or shape[0] != -1:
        return shape
    layout = from_key(key).layout()
    assert layout is not None
    # Integers alone: a count that a compiler does not know yet stays what it is.
    bits = Fraction(layout.element.bits).limit_denominator(64)
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
    """The tensor that codes stand for: the readable reference.

    Args:
        codes: uint8, packed.
        scales: of its groups, or None.
        tensor_scale: of the whole tensor, or None.
        shape: of the tensor; see `known_shape`.
        key: its format.
        dtype: of the result.
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
    """`F.linear(x, weight, bias)` of a packed weight: the readable reference.

    Args:
        x: (..., columns), floating.
        x_key: the format that `x` is first rounded to.
        codes: uint8, of the weight, packed.
        scales: of its groups, or None.
        tensor_scale: of the whole weight, or None.
        shape: (outputs, columns), of the decoded weight; see `known_shape`.
        key: the format of the weight.
        bias: (outputs,), of any floating dtype, or None.
        exact: the products of decoded numbers, as the reference has them; else kernels may add in
            another order, and round `x` and results to bfloat16 where torch's switch for products
            of float32 allows it, see `chop.kernels.matmul_precision`.
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
    """The operator `packed_linear`, past PyTorch's dispatcher where nobody would notice.

    Going through it takes as long as multiplying one row of activations by a small weight.

    Args:
        x: (..., columns), floating.
        x_key: see `packed_linear`, as all others.
        codes: uint8.
        scales: of its groups, or None.
        tensor_scale: of the whole weight, or None.
        shape: (outputs, columns).
        key: the format of the weight.
        bias: (outputs,) or None.
    """
    if type(codes) is Tensor and x.is_cpu and codes.is_cpu and not is_followed(x):
        is_learned = bias is not None and bias.requires_grad and torch.is_grad_enabled()
        packed = Packed(codes, scales, tensor_scale, shape, key)
        found = None if is_learned else cpu.linear(x, x_key, packed, bias)
        if found is not None:
            return found
    y: Tensor = torch.ops.chop.packed_linear(
        x, x_key, codes, scales, tensor_scale, shape, key, bias, False
    )
    return y


def takes_prepared(x: Tensor, columns: int) -> bool:
    """Whether a prepared product of so many columns takes `x`, and nobody has to see the call."""
    if type(x) is not Tensor or x.dtype != torch.float32 or not x.is_cpu or x.numel() == 0:
        return False
    lies_well = x.ndim > 0 and x.size(-1) == columns and x.is_contiguous()
    return lies_well and is_ready() and not is_followed(x)


def workspace_bytes(operator: Any, arguments: Sequence[Any]) -> int:
    """Bytes that an operator of this file needs beside its inputs and its result; 0 of others.

    A product decodes its weight and rounds `x`, unless a kernel of CPUs knows better.

    Args:
        operator: the overload.
        arguments: of its call, without keywords.
    """
    if operator is not torch.ops.chop.packed_linear.default:
        return 0
    x, x_key, codes, scales, tensor_scale, shape, key, bias, exact = arguments
    packed = _packed(codes, scales, tensor_scale, shape, key)
    found = None
    if x.device.type == "cpu" and not exact:
        found = cpu.workspace_bytes(x, x_key, packed, bias)
    if found is not None:
        return found
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
        found = find(_packed(*arguments[:-1]), arguments[-1])
        return decode(*arguments) if found is None else found

    return implementation


def _linear(find: Callable[..., Tensor | None]) -> Callable[..., Tensor]:
    def implementation(x: Tensor, x_key: str, *others: Any) -> Tensor:
        *packed, bias, exact = others
        found = None if exact else find(x, x_key, _packed(*packed), bias)
        return packed_linear(x, x_key, *others) if found is None else found

    return implementation


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
    return codes.new_empty(known_shape(codes, shape, key), dtype=dtype)


def _product_shape(x: Tensor, x_key: str, *packed: Any) -> Tensor:
    codes, _, _, given, key, *_ = packed
    shape = known_shape(codes, given, key)
    check_sizes(
        x.ndim > 0 and x.shape[-1] == shape[1],
        lambda: f"expected x (..., {shape[1]}), got {tuple(x.shape)}.",
    )
    return x.new_empty((*x.shape[:-1], shape[0]))


torch.library.register_fake("chop::decode", _decoded_shape, lib=OPERATORS)
torch.library.register_fake("chop::packed_linear", _product_shape, lib=OPERATORS)


def _keep_packed(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, _, *packed, _, _ = inputs
    ctx.dtype, ctx.shape_and_key = x.dtype, packed[3:]
    ctx.save_for_backward(*packed[:3])


def _to_activations(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    """Straight through the rounding of `x`; what is packed has no gradient."""
    of_x, of_bias = None, None
    if ctx.needs_input_grad[0]:
        weight = torch.ops.chop.decode(*ctx.saved_tensors, *ctx.shape_and_key, ctx.dtype)
        of_x = grad @ weight
    if ctx.needs_input_grad[BIAS]:
        of_bias = grad.reshape(-1, grad.size(-1)).sum(0)
    return of_x, None, None, None, None, None, None, of_bias, None


torch.library.register_autograd(
    "chop::packed_linear", _to_activations, setup_context=_keep_packed, lib=OPERATORS
)
