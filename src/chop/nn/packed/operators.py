"""Packed operators: those that compute with codes, and those that decode them first."""

from __future__ import annotations

import torch
from torch import Tensor

from chop.errors import ConfigError
from chop.formats import Float, NumberFormat
from chop.kernels import packed_linear_directly
from chop.nn import quantized as q
from chop.nn.packed.base import PackedOperator, packed_twin
from chop.private.torch_api import is_transformed

FLOAT = Float()


class PackedLinear(PackedOperator, q.QuantLinear):  # type: ignore[misc, override]
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
        codes = buffers["weight_codes"]
        assert codes is not None
        y = packed_linear_directly(
            input,
            x_format.key,
            codes,
            buffers.get("weight_scales"),
            buffers.get("weight_tensor_scale"),
            self.passed_shape("weight"),
            spec.number_format("weight").key,
            self._operand("bias"),
        )
        return y if spec.data_out.is_identity else self.quantize("data_out", y)


class PackedEmbedding(PackedOperator, q.QuantEmbedding):  # type: ignore[override]
    """`QuantEmbedding` from codes; indices of any shape to (..., embedding_dim).

    Where rows have codes of their own, only those that are looked up are decoded.
    """

    operator = q.QuantEmbedding
    takes_rows = True

    @property
    def num_embeddings(self) -> int:
        """How many rows there are; `weight.data = rows` changes it.

        Raises:
            ConfigError: another number is assigned.
        """
        return self.packed_shapes["weight"][0]

    @num_embeddings.setter
    def num_embeddings(self, count: int) -> None:
        if count == self.num_embeddings:
            return
        raise ConfigError(
            f"a {type(self).__name__} of {self.num_embeddings} rows cannot have {count}: they are "
            "stored as codes. Assign other rows first: layer.weight.data = rows."
        )

    def forward(self, input: Tensor) -> Tensor:  # noqa: D102
        by_rows = self.max_norm is None and input.numel() < self.num_embeddings
        by_rows = by_rows and not self._is_kept("weight")
        stored_in = self.spec.number_format("weight")
        if not (by_rows and stored_in.is_row_separable(self.packed_shapes["weight"])):
            return super().forward(input)
        stored = self.encoded("weight").take_rows(input.reshape(-1))
        rows = self.quantize("weight", self._decode("weight", stored))
        y: Tensor = self.quantize("data_out", rows.view(*input.shape, self.embedding_dim))
        return y


PackedConv1d = packed_twin(q.QuantConv1d, __name__)
PackedConv2d = packed_twin(q.QuantConv2d, __name__)
PackedConvTranspose2d = packed_twin(q.QuantConvTranspose2d, __name__)
PackedBatchNorm1d = packed_twin(q.QuantBatchNorm1d, __name__)
PackedBatchNorm2d = packed_twin(q.QuantBatchNorm2d, __name__)
PackedLayerNorm = packed_twin(q.QuantLayerNorm, __name__)
PackedRMSNorm = packed_twin(q.QuantRMSNorm, __name__)
PackedGroupNorm = packed_twin(q.QuantGroupNorm, __name__)
