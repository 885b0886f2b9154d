"""The packed twin of each operator with parameters."""

from __future__ import annotations

import torch
from torch import Tensor

from chop.formats import Float, NumberFormat
from chop.formats.transforms import is_transformed
from chop.nn import quantized as q
from chop.nn.packed.base import PackedOperator
from chop.nn.quantized import QuantizedOperator

FLOAT = Float()


class PackedLinear(PackedOperator, q.QuantLinear):
    """`QuantLinear` from codes; input (..., in_features) to (..., out_features).

    Its products come from kernels that need not write the weight out; see
    `chop.kernels.packed.packed_linear`.
    """

    operator = q.QuantLinear

    def forward(self, input: Tensor) -> Tensor:  # noqa: D102
        if self._is_kept("weight"):
            return super().forward(input)
        self._refuse_training("weight")
        unlike = input.dtype != self.packed_dtype or torch.is_autocast_enabled(input.device.type)
        # The operator has a rule for `backward()` only; the way without it has rules for the rest.
        if self.packed_exact or unlike or is_transformed():
            return super().forward(input)
        spec, buffers, x_format = self.spec, self._buffers, self.format_of("data_in")
        # Without a gradient to stop, the kernel rounds the input: to integers if it can.
        has_gradient = torch.is_grad_enabled() and not x_format.is_identity
        if has_gradient or not isinstance(x_format, NumberFormat):
            input, x_format = self.quantize("data_in", input), FLOAT
        y = torch.ops.chop.packed_linear(
            input,
            x_format.key,
            buffers["weight_codes"],
            buffers.get("weight_scales"),
            buffers.get("weight_tensor_scale"),
            self.packed_shapes["weight"],
            spec.number_format("weight").key,
            self.bias,
            False,
        )
        return y if spec.data_out.is_identity else self.quantize("data_out", y)


class PackedConv1d(PackedOperator, q.QuantConv1d):
    """`QuantConv1d` from codes; input (N, C, L)."""

    operator = q.QuantConv1d


class PackedConv2d(PackedOperator, q.QuantConv2d):
    """`QuantConv2d` from codes; input (N, C, H, W)."""

    operator = q.QuantConv2d


class PackedConvTranspose2d(PackedOperator, q.QuantConvTranspose2d):
    """`QuantConvTranspose2d` from codes; input (N, C, H, W)."""

    operator = q.QuantConvTranspose2d


class PackedBatchNorm1d(PackedOperator, q.QuantBatchNorm1d):
    """`QuantBatchNorm1d` from codes; input (N, C) or (N, C, L)."""

    operator = q.QuantBatchNorm1d


class PackedBatchNorm2d(PackedOperator, q.QuantBatchNorm2d):
    """`QuantBatchNorm2d` from codes; input (N, C, H, W)."""

    operator = q.QuantBatchNorm2d


class PackedLayerNorm(PackedOperator, q.QuantLayerNorm):
    """`QuantLayerNorm` from codes; input (..., *normalized_shape)."""

    operator = q.QuantLayerNorm


class PackedRMSNorm(PackedOperator, q.QuantRMSNorm):
    """`QuantRMSNorm` from codes; input (..., *normalized_shape)."""

    operator = q.QuantRMSNorm


class PackedGroupNorm(PackedOperator, q.QuantGroupNorm):
    """`QuantGroupNorm` from codes; input (N, C, ...)."""

    operator = q.QuantGroupNorm


class PackedEmbedding(PackedOperator, q.QuantEmbedding):
    """`QuantEmbedding` from codes; indices of any shape to (..., embedding_dim).

    Where rows have codes of their own, only those that are looked up are decoded.
    """

    operator = q.QuantEmbedding

    def forward(self, input: Tensor) -> Tensor:  # noqa: D102
        by_rows = self.max_norm is None and input.numel() < self.num_embeddings
        by_rows = by_rows and not self._is_kept("weight")
        stored_in = self.spec.number_format("weight")
        if not (by_rows and stored_in.keeps_rows_apart(self.packed_shapes["weight"])):
            return super().forward(input)
        stored = self.encoded("weight").take_rows(input.reshape(-1))
        rows = self.quantize("weight", self._decode("weight", stored))
        return self.quantize("data_out", rows.view(*input.shape, self.embedding_dim))


PACKED: dict[type[QuantizedOperator], type[PackedOperator]] = {
    cls.operator: cls
    for cls in (
        PackedLinear,
        PackedConv1d,
        PackedConv2d,
        PackedConvTranspose2d,
        PackedBatchNorm1d,
        PackedBatchNorm2d,
        PackedLayerNorm,
        PackedRMSNorm,
        PackedGroupNorm,
        PackedEmbedding,
    )
}
"""The packed twin of each operator with parameters."""
