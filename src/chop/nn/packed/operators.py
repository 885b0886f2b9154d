"""Packed operators, with kernels on codes or with decoded parameters."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from chop.captured.layers.expert_linear import apply_by_expert, is_traced
from chop.errors import ConfigError
from chop.formats import Encoded, Float, NumberFormat, from_key
from chop.kernels import packed_linear_directly
from chop.kernels.base import is_bias_followed, is_followed
from chop.kernels.codes import Packed
from chop.kernels.cpu.int8 import Product, prepared_product, takes_as_codes
from chop.kernels.cpu.packed import few_rows
from chop.kernels.packed import takes_prepared
from chop.nn import quantized as q
from chop.nn.packed.base import SMALL, PackedOperator, packed_twin
from chop.nn.packed.recomputed import recomputed_linear
from chop.nn.packed.state import BUFFER_NAMES
from chop.nn.weight_cache import forget, prepared_once
from chop.private.torch_api import is_dispatch_observed, is_transformed

FLOAT = Float()


class PackedLinear(PackedOperator, q.QuantLinear):  # type: ignore[misc, override]
    """`QuantLinear` from codes; input (..., in_features) to (..., out_features).

    Its kernels multiply without a full decoded weight; see `chop.kernels.packed.packed_linear`.
    """

    operator = q.QuantLinear

    def forward(self, input: Tensor) -> Tensor:  # noqa: D102
        is_small = self._is_cached("weight")
        y = None if is_small else self._by_rows(input)
        if y is not None:
            return y
        prepared = self._prepared_result(input, is_small)
        if prepared is not None or is_small:
            return super().forward(input) if prepared is None else prepared
        self._refuse_training("weight")
        unlike = input.dtype != self.packed_dtype or torch.is_autocast_enabled(input.device.type)
        # The operator has a rule for `backward()` only; the way without it has rules for the rest.
        if self.packed_exact or unlike or is_transformed() or not self._has_packed_or_float_bias():
            return self._by_decoded_weight(input)
        spec, buffers, x_format = self.spec, self._buffers, self.operand_format("data_in")
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

    def _by_rows(self, input: Tensor) -> Tensor | None:
        """Multiplies few float rows, as for each generated token, with as few checks as possible.

        Returns: None if the general method is required.
        """
        spec, buffers = self.spec, self._buffers
        if is_followed(input) or not (spec.data_in.is_identity and spec.data_out.is_identity):
            return None
        if self.packed_exact or self.packed_dtype != input.dtype or "bias" in self.packed_shapes:
            return None
        bias, codes = self._parameters.get("bias"), buffers["weight_codes"]
        if is_bias_followed(bias) or not (bias is None or spec.bias.is_identity):
            return None
        if (self.training and torch.is_grad_enabled()) or torch.is_autocast_enabled("cpu"):
            return None
        if type(codes) is not Tensor or not (codes.is_cpu and input.is_cpu):
            return None
        scales, tensor_scale = buffers.get("weight_scales"), buffers.get("weight_tensor_scale")
        key = spec.number_format("weight").key
        packed = Packed(codes, scales, tensor_scale, self.packed_shapes["weight"], key)
        return few_rows(input, packed, bias)

    def _by_decoded_weight(self, input: Tensor) -> Tensor:
        """Returns the result of the decoded weight, which autograd does not keep if it can."""
        is_learned = torch.is_grad_enabled() and input.requires_grad
        is_plain = type(self._buffers["weight_codes"]) is Tensor
        if not (is_learned and is_plain) or torch.compiler.is_compiling() or is_transformed():
            return super().forward(input)
        y = recomputed_linear(
            self.quantize("data_in", input),
            self.quantize("bias", self._operand("bias")),
            self.encoded("weight"),
            self.passed_shape("weight"),
            self.spec.number_format("weight").key,
        )
        result: Tensor = self.quantize("data_out", y)
        return result

    def _prepared_result(self, input: Tensor, is_small: bool) -> Tensor | None:
        """Returns the result from prepared operands, to avoid overhead for small products.

        Returns: None if the general method is required, as for large float weights.
        """
        x_format, is_trained = (
            self.operand_format("data_in"),
            self.training and torch.is_grad_enabled(),
        )
        if is_trained or not isinstance(x_format, NumberFormat):
            return None
        if not is_small and torch.compiler.is_compiling():
            return None
        if is_transformed() or is_dispatch_observed() or not self._has_packed_or_float_bias():
            return None
        # Reads tables of the format, which are computed at the first call and have to be real.
        if not is_small and not self._is_for_integers(x_format):
            return None
        multiply = self._by_numbers if x_format.is_identity else self._by_integers
        y = multiply(input, x_format)
        return y if y is None or self.spec.data_out.is_identity else self.quantize("data_out", y)

    def _is_for_integers(self, x_format: NumberFormat) -> bool:
        """Returns whether large codes and rounded inputs are multiplied as 8-bit integers."""
        weight_key = self.spec.number_format("weight").key
        return _are_integers(x_format.key, weight_key, tuple(self.packed_shapes["weight"]))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        forget(self)  # or what is prepared would hold the codes that are moved away
        return super()._apply(fn, recurse)

    def _by_numbers(self, input: Tensor, x_format: NumberFormat) -> Tensor | None:
        """Computes the result from cached decoded operands."""
        operands = self._once("numbers", x_format, self._numbers)
        return None if operands is None else F.linear(input, *operands)

    def _by_integers(self, input: Tensor, x_format: NumberFormat) -> Tensor | None:
        """Computes rounding, integer product, scales and bias in one call."""
        bias = self._parameters.get("bias")
        learns = bias is not None and bias.requires_grad and torch.is_grad_enabled()
        if learns or self.packed_exact or torch.is_autocast_enabled("cpu"):
            return None
        if not takes_prepared(input, self.packed_shapes["weight"][1]):
            return None
        product = self._once("product", x_format, lambda: self._prepared(x_format))
        return None if product is None else product(input)

    def _once(self, name: str, x_format: NumberFormat, make: Callable[[], Any]) -> Any:
        """Returns the result of `make`, cached for the same codes and formats."""
        buffers, bias = self._buffers, self._parameters.get("bias")
        sources = [x for each in BUFFERS_OF_BOTH if (x := buffers.get(each)) is not None]
        if bias is not None:
            sources.append(bias)
        rule = x_format.key, self.spec.number_format("weight").key, self.packed_dtype
        return prepared_once(self, name, sources, rule, make)

    def _has_packed_or_float_bias(self) -> bool:
        """Returns false for a bias with stochastic rounding, which has no codes."""
        return "bias" in self.packed_shapes or self.spec.bias.is_identity

    def _numbers(self) -> tuple[Tensor, Tensor | None]:
        return self._operand("weight"), self._operand("bias")

    def _prepared(self, x_format: NumberFormat) -> Product | None:
        stored, bias = self.encoded("weight"), self._operand("bias")
        shape, key = self.packed_shapes["weight"], self.spec.number_format("weight").key
        bias = None if bias is None else bias.detach()
        is_known = bias is None or (_is_plain(bias, torch.float32) and bias.shape == shape[:1])
        is_known &= stored.scales is None or _is_plain(stored.scales, torch.float32)
        is_known &= stored.tensor_scale is None and _is_plain(stored.codes, torch.uint8)
        if not is_known or self.packed_dtype != torch.float32:
            return None
        packed = Packed(stored.codes, stored.scales, stored.tensor_scale, shape, key)
        return prepared_product(x_format, packed, bias, widens=self._is_cached("weight"))


@lru_cache(maxsize=4096)
def _are_integers(x_key: str, weight_key: str, shape: tuple[int, ...]) -> bool:
    return takes_as_codes(from_key(x_key), from_key(weight_key), shape)


def _is_plain(x: Tensor, dtype: torch.dtype) -> bool:
    """Returns whether CPU kernels support the memory layout of a tensor."""
    is_known = type(x) is Tensor and x.is_cpu and x.dtype == dtype
    return is_known and x.is_contiguous() and not x.is_neg()


BUFFERS_OF_BOTH = (*BUFFER_NAMES["weight"], *BUFFER_NAMES["bias"])


class PackedEmbedding(PackedOperator, q.QuantEmbedding):  # type: ignore[override]
    """`QuantEmbedding` from codes; indices of any shape to (..., embedding_dim).

    If rows have separate codes, only the requested ones are decoded.
    """

    operator = q.QuantEmbedding
    takes_rows = True

    @property
    def num_embeddings(self) -> int:
        """The number of rows; `weight.data = rows` changes it.

        Raises:
            ConfigError: if another number is assigned.
        """
        return self.packed_shapes["weight"][0]

    @num_embeddings.setter
    def num_embeddings(self, count: int) -> None:
        if count == self.num_embeddings:
            return
        raise ConfigError(
            f"cannot change the number of rows of a {type(self).__name__} from "
            f"{self.num_embeddings} to {count}: assign the rows, layer.weight.data = rows."
        )

    def forward(self, input: Tensor) -> Tensor:  # noqa: D102
        by_rows = self.max_norm is None and input.numel() < self.num_embeddings
        by_rows = by_rows and not self._is_cached("weight")
        stored_in = self.spec.number_format("weight")
        if not (by_rows and stored_in.is_row_separable(self.packed_shapes["weight"])):
            return super().forward(input)
        stored = self.encoded("weight").take_rows(input.reshape(-1))
        rows = self.quantize("weight", self._decode("weight", stored))
        y: Tensor = self.quantize("data_out", rows.view(*input.shape, self.embedding_dim))
        return y


class PackedExpertLinear(PackedOperator, q.QuantExpertLinear):  # type: ignore[misc]
    """`QuantExpertLinear` from codes; input (S, in_features) to (S, out_features).

    If rows of the weight have separate codes, only those of experts with inputs are read.
    """

    operator = q.QuantExpertLinear

    def forward(self, input: Tensor, expert: Tensor) -> Tensor:  # noqa: D102
        shape, stored = self.packed_shapes["weight"], self.encoded("weight")
        if type(stored.codes) is not Tensor or not self._weight_format.is_row_separable(shape):
            return super().forward(input, expert)
        self._refuse_training("weight")
        x = self.round_inputs(input, expert)
        bias = self.quantize("bias", self._operand("bias"))
        if is_traced(input):
            y = self._by_row(x, expert, bias)
        else:
            multiply = self._multiply_by_numbers if self._decodes(x) else self._multiply_by_codes
            y = apply_by_expert(
                x,
                expert,
                (self.num_experts, self.out_features),
                lambda rows, number: multiply(rows, number, None if bias is None else bias[number]),
            )
        result: Tensor = self.quantize("data_out", y)
        return result

    @property
    def _weight_format(self) -> NumberFormat:
        return self.spec.number_format("weight")

    def _decodes(self, x: Tensor) -> bool:
        """Returns whether an expert's matrix has to be decoded for lack of a kernel."""
        unlike = x.dtype != self.packed_dtype or torch.is_autocast_enabled(x.device.type)
        is_small = self.in_features * self.out_features <= SMALL
        return bool(self.packed_exact or unlike or is_small or is_transformed())

    def _get_codes(self, number: int) -> Encoded:
        rows = self.out_features
        return self.encoded("weight").slice_rows(number * rows, (number + 1) * rows)

    def _multiply_by_numbers(self, rows: Tensor, number: int, bias: Tensor | None) -> Tensor:
        stored = self._get_codes(number)
        if torch.is_grad_enabled() and rows.requires_grad and not is_transformed():
            return recomputed_linear(
                rows, bias, stored, list(stored.shape), self._weight_format.key
            )
        return F.linear(rows, self._decode("weight", stored), bias)

    def _multiply_by_codes(self, rows: Tensor, number: int, bias: Tensor | None) -> Tensor:
        stored = self._get_codes(number)
        return packed_linear_directly(
            rows,
            FLOAT.key,
            stored.codes,
            stored.scales,
            stored.tensor_scale,
            list(stored.shape),
            self._weight_format.key,
            bias,
        )

    def _by_row(self, x: Tensor, expert: Tensor, bias: Tensor | None) -> Tensor:
        """Multiplies each row by the decoded matrix of its expert, for tensors without values."""
        outputs = torch.arange(self.out_features, device=expert.device)
        index = (expert[:, None] * self.out_features + outputs).flatten()
        weight = self._decode("weight", self.encoded("weight").take_rows(index))
        weight = weight.view(expert.shape[0], self.out_features, self.in_features)
        y = torch.bmm(weight, x.unsqueeze(-1)).squeeze(-1)
        return y if bias is None else y + bias[expert]


PackedConv1d = packed_twin(q.QuantConv1d, __name__)
PackedConv2d = packed_twin(q.QuantConv2d, __name__)
PackedConvTranspose2d = packed_twin(q.QuantConvTranspose2d, __name__)
PackedBatchNorm1d = packed_twin(q.QuantBatchNorm1d, __name__)
PackedBatchNorm2d = packed_twin(q.QuantBatchNorm2d, __name__)
PackedLayerNorm = packed_twin(q.QuantLayerNorm, __name__)
PackedRMSNorm = packed_twin(q.QuantRMSNorm, __name__)
PackedGroupNorm = packed_twin(q.QuantGroupNorm, __name__)
