"""Quantized linear layers of experts."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

from chop.captured.layers.expert_linear import ExpertLinear, expert_linear
from chop.errors import ConfigError
from chop.formats import LearnableFormat, Quantizer, lsq_fake_quantize
from chop.formats.groups import CHANNELS
from chop.nn.quantized.base import QuantizedOperator
from chop.nn.quantized.state import SCALE_NAMES


class QuantExpertLinear(QuantizedOperator, ExpertLinear):
    """`ExpertLinear`; input (S, in_features) and expert (S,) to (S, out_features).

    Static scales of inputs may be per expert: `data_in` then has the granularity `channel`, and
    `scales` in the order of the experts.
    """

    operands = ("data_in", "weight", "bias")

    def forward(self, input: Tensor, expert: Tensor) -> Tensor:  # noqa: D102
        Q = self.quantize
        weight, bias = Q("weight", self._operand("weight")), Q("bias", self._operand("bias"))
        x = self.round_inputs(input, expert)
        return Q("data_out", expert_linear(x, expert, weight, bias, self.num_experts))

    def round_inputs(self, input: Tensor, expert: Tensor) -> Tensor:
        """Rounds each row to the format of inputs, with the static scale of its expert if it has
        one.

        Args:
            input: (S, in_features).
            expert: (S,), int64.

        Raises:
            ConfigError: if the number of scales differs from the number of experts.
        """
        given, kind = self._scales_of_inputs(), self.spec.data_in
        if given is None:
            return self.quantize("data_in", input)
        assert isinstance(kind, LearnableFormat)
        learned = self._parameters.get(SCALE_NAMES["data_in"])
        scales = _beside(expert, given) if learned is None else learned
        if self.spec.gradient != "identity" or not torch.is_grad_enabled():
            return lsq_fake_quantize(input, scales[expert], kind, is_batch=True)
        rounded = lsq_fake_quantize(input.detach(), scales[expert], kind, is_batch=True)
        # A gradient of one, by zeros that are added; inf - inf is NaN, not zero.
        return rounded + (input - input.detach()).nan_to_num(nan=0.0)

    def input_format(self, expert: int) -> Quantizer:
        """Returns the format of the inputs of one expert.

        Args:
            expert: its number.

        Raises:
            ConfigError: see `round_inputs`.
        """
        given, kind = self._scales_of_inputs(), self.operand_format("data_in")
        if given is None:
            return kind
        return dataclasses.replace(kind, scales=(given[expert],))  # type: ignore[type-var]

    def _scales_of_inputs(self) -> tuple[float, ...] | None:
        """Returns static scales by expert; None if all experts share the format of inputs."""
        kind: Any = self.spec.data_in
        given = kind.scales if isinstance(kind, LearnableFormat) else None
        if given is None or len(given) == 1 or kind.layout().groups != CHANNELS:
            return None
        if len(given) != self.num_experts:
            raise ConfigError(
                f"data_in: expected one static scale or {self.num_experts}, one per expert, got "
                f"{len(given)}."
            )
        return given


def _beside(expert: Tensor, scales: tuple[float, ...]) -> Tensor:
    """Returns float32 (E,), replicated if the rows are distributed over processes."""
    table = torch.tensor(scales, dtype=torch.float32, device=expert.device)
    if type(expert) is Tensor:
        return table
    from torch.distributed.tensor import DTensor, Replicate

    if not isinstance(expert, DTensor):
        return table
    places = [Replicate()] * expert.device_mesh.ndim
    return DTensor.from_local(table, expert.device_mesh, places, run_check=False)
