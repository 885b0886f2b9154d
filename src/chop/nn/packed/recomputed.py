"""Products with decoded weights that are decoded again in the backward pass.

Autograd keeps the operands of `F.linear` until the backward pass. With a decoded weight, a step of
training adapters would keep a float copy of every packed layer.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from chop.formats import Encoded


class _Recomputed(torch.autograd.Function):
    """`F.linear(x, weight, bias)`, which keeps the codes of the weight only."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, bias: Tensor | None, stored: Encoded, shape: list[int], key: str
    ) -> Tensor:
        parts = stored.codes, stored.scales, stored.tensor_scale
        ctx.save_for_backward(*parts)
        ctx.rule = shape, key, stored.dtype
        ctx.dtypes = x.dtype, None if bias is None else bias.dtype
        weight = torch.ops.chop.decode(*parts, *ctx.rule)
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x_grad, bias_grad = None, None
        x_dtype, bias_dtype = ctx.dtypes
        if ctx.needs_input_grad[0]:
            weight = torch.ops.chop.decode(*ctx.saved_tensors, *ctx.rule)
            x_grad = (grad @ weight.to(grad.dtype)).to(x_dtype)
        if ctx.needs_input_grad[1]:
            bias_grad = grad.reshape(-1, grad.size(-1)).sum(0).to(bias_dtype)
        return x_grad, bias_grad, None, None, None


def recomputed_linear(
    x: Tensor, bias: Tensor | None, stored: Encoded, shape: list[int], key: str
) -> Tensor:
    """Returns `F.linear` of a packed weight, bit-identical to that of the decoded weight.

    Args:
        x: (..., columns), floating; autocast applies.
        bias: (outputs,) or None.
        stored: codes of the weight, and the dtype that it is decoded to.
        shape: (outputs, columns).
        key: key of the weight's format.
    """
    y: Tensor = _Recomputed.apply(x, bias, stored, shape, key)  # type: ignore[no-untyped-call]
    return y
