"""Linear layers of several experts, quantized."""

from __future__ import annotations

from torch import Tensor

from chop.captured.expert_linear import ExpertLinear, expert_linear
from chop.nn.quantized.base import QuantizedOperator


class QuantExpertLinear(QuantizedOperator, ExpertLinear):
    """`ExpertLinear`; input (S, in_features) and expert (S,) to (S, out_features)."""

    operands = ("data_in", "weight", "bias")

    def forward(self, input: Tensor, expert: Tensor) -> Tensor:  # noqa: D102
        Q = self.quantize
        weight, bias = Q("weight", self._operand("weight")), Q("bias", self._operand("bias"))
        return Q(
            "data_out",
            expert_linear(Q("data_in", input), expert, weight, bias, self.num_experts),
        )
