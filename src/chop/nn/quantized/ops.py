"""Quantized operators: one class per `torch.nn` operator, its operands quantized.

Each class has its own forward, since a shared one would make `torch.compile` recompile for each
operator until it gives up.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chop.nn.quantized.base import QuantizedOperator
from chop.nn.quantized.scores import masked_scores
from chop.private.torch_api import BatchNorm

WITH_PARAMETERS = ("data_in", "weight", "bias")


class QuantLinear(QuantizedOperator, nn.Linear):
    """`nn.Linear`; input (..., in_features) to (..., out_features)."""

    operands = WITH_PARAMETERS

    def forward(self, input: Tensor) -> Tensor:  # noqa: D102
        Q = self.quantize
        weight, bias = Q("weight", self._operand("weight")), Q("bias", self._operand("bias"))
        return Q("data_out", F.linear(Q("data_in", input), weight, bias))


class QuantConv1d(QuantizedOperator, nn.Conv1d):
    """`nn.Conv1d`; input (N, C, L)."""

    operands = WITH_PARAMETERS

    def forward(self, input: Tensor) -> Tensor:  # noqa: D102
        Q = self.quantize
        weight, bias = Q("weight", self._operand("weight")), Q("bias", self._operand("bias"))
        y: Tensor = self._conv_forward(Q("data_in", input), weight, bias)
        return Q("data_out", y)


class QuantConv2d(QuantizedOperator, nn.Conv2d):
    """`nn.Conv2d`; input (N, C, H, W)."""

    operands = WITH_PARAMETERS

    def forward(self, input: Tensor) -> Tensor:  # noqa: D102
        Q = self.quantize
        weight, bias = Q("weight", self._operand("weight")), Q("bias", self._operand("bias"))
        y: Tensor = self._conv_forward(Q("data_in", input), weight, bias)
        return Q("data_out", y)


class QuantConvTranspose2d(QuantizedOperator, nn.ConvTranspose2d):
    """`nn.ConvTranspose2d`; input (N, C, H, W)."""

    operands = WITH_PARAMETERS

    def forward(self, input: Tensor, output_size: list[int] | None = None) -> Tensor:  # noqa: D102
        Q = self.quantize
        assert isinstance(self.padding, tuple)
        stride, before, dilation = list(self.stride), list(self.padding), list(self.dilation)
        padding = self._output_padding(
            input, output_size, stride, before, list(self.kernel_size), 2, dilation
        )
        y = F.conv_transpose2d(
            Q("data_in", input),
            Q("weight", self._operand("weight")),
            Q("bias", self._operand("bias")),
            self.stride,
            self.padding,
            padding,
            self.groups,
            self.dilation,
        )
        return Q("data_out", y)


class _QuantBatchNorm(QuantizedOperator, BatchNorm):
    """Batch normalization with statistics of the quantized input, and quantized scale and shift."""

    operands = WITH_PARAMETERS

    def forward(self, input: Tensor) -> Tensor:
        Q = self.quantize
        self._check_input_dim(input)  # type: ignore[no-untyped-call]
        keeps_statistics = self.training and self.track_running_stats
        if keeps_statistics and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
        momentum = self.momentum
        if momentum is None:  # torch's cumulative average
            batches = self.num_batches_tracked if keeps_statistics else None
            momentum = 0.0 if batches is None else 1.0 / float(batches)
        from_batch = self.training or self.running_mean is None
        stored = not self.training or self.track_running_stats
        y = F.batch_norm(
            Q("data_in", input),
            self.running_mean if stored else None,
            self.running_var if stored else None,
            Q("weight", self._operand("weight")),
            Q("bias", self._operand("bias")),
            from_batch,
            momentum,
            self.eps,
        )
        return Q("data_out", y)


class QuantBatchNorm1d(_QuantBatchNorm, nn.BatchNorm1d):
    """`nn.BatchNorm1d`; input (N, C) or (N, C, L)."""


class QuantBatchNorm2d(_QuantBatchNorm, nn.BatchNorm2d):
    """`nn.BatchNorm2d`; input (N, C, H, W)."""


class QuantLayerNorm(QuantizedOperator, nn.LayerNorm):
    """`nn.LayerNorm`; input (..., *normalized_shape)."""

    operands = WITH_PARAMETERS

    def forward(self, input: Tensor) -> Tensor:  # noqa: D102
        Q = self.quantize
        weight, bias = Q("weight", self._operand("weight")), Q("bias", self._operand("bias"))
        y = F.layer_norm(Q("data_in", input), self.normalized_shape, weight, bias, self.eps)
        return Q("data_out", y)


class QuantRMSNorm(QuantizedOperator, nn.RMSNorm):
    """`nn.RMSNorm`; input (..., *normalized_shape)."""

    operands = ("data_in", "weight")

    def forward(self, input: Tensor) -> Tensor:  # noqa: D102
        Q = self.quantize
        weight = Q("weight", self._operand("weight"))
        y = F.rms_norm(Q("data_in", input), self.normalized_shape, weight, self.eps)
        return Q("data_out", y)


class QuantGroupNorm(QuantizedOperator, nn.GroupNorm):
    """`nn.GroupNorm`; input (N, C, ...)."""

    operands = WITH_PARAMETERS

    def forward(self, input: Tensor) -> Tensor:  # noqa: D102
        Q = self.quantize
        weight, bias = Q("weight", self._operand("weight")), Q("bias", self._operand("bias"))
        return Q(
            "data_out", F.group_norm(Q("data_in", input), self.num_groups, weight, bias, self.eps)
        )


class QuantEmbedding(QuantizedOperator, nn.Embedding):
    """`nn.Embedding`; indices of any shape to (..., embedding_dim). Quantizes the table only."""

    operands = ("weight",)

    def forward(self, input: Tensor) -> Tensor:  # noqa: D102
        Q = self.quantize
        if self.max_norm is not None:  # rows that are looked up are shortened in the table itself
            table, rows = self.weight.detach(), input.contiguous()
            torch.embedding_renorm_(table, rows, self.max_norm, self.norm_type)
        y = F.embedding(
            input,
            Q("weight", self._operand("weight")),
            self.padding_idx,
            scale_grad_by_freq=self.scale_grad_by_freq,
            sparse=self.sparse,
        )
        return Q("data_out", y)


class QuantReLU(QuantizedOperator, nn.ReLU):
    """`nn.ReLU`, elementwise, any shape."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: D102
        Q = self.quantize
        if self.inplace:  # autograd may need what was there before
            return input.copy_(Q("data_out", F.relu(Q("data_in", input.clone()))))
        return Q("data_out", F.relu(Q("data_in", input)))


class QuantGELU(QuantizedOperator, nn.GELU):
    """`nn.GELU`, elementwise, any shape."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: D102
        Q = self.quantize
        return Q("data_out", F.gelu(Q("data_in", input), approximate=self.approximate))


class QuantSiLU(QuantizedOperator, nn.SiLU):
    """`nn.SiLU`, elementwise, any shape."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: D102
        Q = self.quantize
        if self.inplace:  # autograd may need what was there before
            return input.copy_(Q("data_out", F.silu(Q("data_in", input.clone()))))
        return Q("data_out", F.silu(Q("data_in", input)))


class QuantTanh(QuantizedOperator, nn.Tanh):
    """`nn.Tanh`, elementwise, any shape."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: D102
        Q = self.quantize
        return Q("data_out", F.tanh(Q("data_in", input)))


class QuantSoftplus(QuantizedOperator, nn.Softplus):
    """`nn.Softplus`, elementwise, any shape."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: D102
        Q = self.quantize
        return Q("data_out", F.softplus(Q("data_in", input), self.beta, self.threshold))


class QuantSoftsign(QuantizedOperator, nn.Softsign):
    """`nn.Softsign`, elementwise, any shape."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: D102
        Q = self.quantize
        return Q("data_out", F.softsign(Q("data_in", input)))


class QuantSELU(QuantizedOperator, nn.SELU):
    """`nn.SELU`, elementwise, any shape."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: D102
        Q = self.quantize
        if self.inplace:  # autograd may need what was there before
            return input.copy_(Q("data_out", F.selu(Q("data_in", input.clone()))))
        return Q("data_out", F.selu(Q("data_in", input)))


class QuantSigmoid(QuantizedOperator, nn.Sigmoid):
    """`nn.Sigmoid`, elementwise, any shape; masked scores are not rounded."""

    meets_masks = True

    def forward(self, input: Tensor) -> Tensor:  # noqa: D102
        Q = self.quantize
        hidden = masked_scores(input) if self.meets_masks and not self.spec.is_float else None
        return Q("data_out", F.sigmoid(Q("data_in", input, hidden)), hidden)


class QuantSoftmax(QuantizedOperator, nn.Softmax):
    """`nn.Softmax`, along `dim`, any shape; masked scores are not rounded."""

    meets_masks = True

    def forward(self, input: Tensor) -> Tensor:  # noqa: D102
        Q = self.quantize
        hidden = masked_scores(input) if self.meets_masks and not self.spec.is_float else None
        return Q("data_out", F.softmax(Q("data_in", input, hidden), self.dim), hidden)


class QuantLogSoftmax(QuantizedOperator, nn.LogSoftmax):
    """`nn.LogSoftmax`, along `dim`, any shape; masked scores are not rounded."""

    meets_masks = True

    def forward(self, input: Tensor) -> Tensor:  # noqa: D102
        Q = self.quantize
        hidden = masked_scores(input) if self.meets_masks and not self.spec.is_float else None
        return Q("data_out", F.log_softmax(Q("data_in", input, hidden), self.dim), hidden)


class QuantMaxPool1d(QuantizedOperator, nn.MaxPool1d):
    """`nn.MaxPool1d`; input (N, C, L)."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: D102
        y: Tensor = super().forward(self.quantize("data_in", input))
        return self.quantize("data_out", y)


class QuantAvgPool1d(QuantizedOperator, nn.AvgPool1d):
    """`nn.AvgPool1d`; input (N, C, L)."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: D102
        return self.quantize("data_out", super().forward(self.quantize("data_in", input)))


class QuantAdaptiveAvgPool1d(QuantizedOperator, nn.AdaptiveAvgPool1d):
    """`nn.AdaptiveAvgPool1d`; input (N, C, L)."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: D102
        return self.quantize("data_out", super().forward(self.quantize("data_in", input)))


class QuantMaxPool2d(QuantizedOperator, nn.MaxPool2d):
    """`nn.MaxPool2d`; input (N, C, H, W)."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: D102
        y: Tensor = super().forward(self.quantize("data_in", input))
        return self.quantize("data_out", y)


class QuantAvgPool2d(QuantizedOperator, nn.AvgPool2d):
    """`nn.AvgPool2d`; input (N, C, H, W)."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: D102
        return self.quantize("data_out", super().forward(self.quantize("data_in", input)))


class QuantAdaptiveAvgPool2d(QuantizedOperator, nn.AdaptiveAvgPool2d):
    """`nn.AdaptiveAvgPool2d`; input (N, C, H, W)."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: D102
        return self.quantize("data_out", super().forward(self.quantize("data_in", input)))
