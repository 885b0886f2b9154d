"""Grouped weights: low-bit integers with a step per group of a row, multiplied by float inputs.

Runtimes multiply 4-bit codes directly: onnxruntime by MatMulNBits, which OpenVINO supports as well.
For 8 bits onnxruntime has no fast product with floats. Such weights are decoded once, because it
evaluates constants when it opens a file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chop.captured.overrides import has_hooks
from chop.errors import ConfigError
from chop.export.coded import CodedWeight, coded_weight
from chop.export.onnx.operators import (
    MIDDLE,
    onnx_decode,
    onnx_gather_4bit,
    onnx_matmul_4bit,
)
from chop.formats import Gradient, StandIn
from chop.formats.elements import Fixed
from chop.nn.packed import PackedOperator, pack
from chop.nn.quantized import QuantEmbedding, QuantizedOperator, QuantLinear

FEW = 4
"""Bits of codes that are multiplied directly."""
BLOCKS = (128, 64, 32, 16)
"""Block sizes, in columns, that the product supports."""
SHORT = 32
"""Block size for rows that no size divides; such rows have one scale."""


@dataclass(eq=False)
class Grouped(StandIn):
    """Weight matrix of integers times the step of their group, plus its offset.

    Attributes:
        integers: int8 (rows, columns).
        steps: float32 (rows, groups), or (1, 1).
        offsets: shape of `steps`, or None.
        group: columns of a group; the last group of a row may be shorter.
        width: bits of the integers.
    """

    integers: Tensor
    steps: Tensor
    offsets: Tensor | None
    group: int
    width: int

    def __post_init__(self) -> None:
        # Made before the graph is traced: the file has what they are, not how they are made.
        self._filled = self.in_groups(self.integers, self.group).contiguous()
        offsets = self.offsets
        self._steps = self.steps.unsqueeze(-1)
        self._offsets = None if offsets is None else offsets.unsqueeze(-1)

    @property
    def columns(self) -> int:
        """Columns of the matrix."""
        return self.integers.size(1)

    @property
    def block(self) -> int | None:
        """Block size of a direct product with codes; None if that is not supported."""
        if self.width > FEW:
            return None
        block = next((size for size in BLOCKS if self.group % size == 0), None)
        return SHORT if block is None and self.steps.size(1) == 1 else block

    def in_groups(self, x: Tensor, group: int) -> Tensor:
        """Reshapes (rows, columns) to (rows, groups, group), padding the last group with 0."""
        rest = -x.size(-1) % group
        filled: Tensor = F.pad(x, (0, rest)).unflatten(-1, (-1, group))
        return filled

    def per_block(self, group_values: Tensor, block: int) -> Tensor:
        """Repeats values of groups for each block: (rows, blocks)."""
        repeated = group_values.repeat_interleave(max(self.group // block, 1), 1)
        blocks = -(-self.columns // block)
        if group_values.size(1) == 1:
            repeated = group_values.expand(-1, blocks)
        return repeated[:, :blocks].expand(len(self.integers), -1).contiguous()

    def bytes(self, block: int) -> Tensor:
        """Packs two codes per byte, the first in the low bits: uint8 (rows, blocks, block/2)."""
        codes = (self.in_groups(self.integers, block) + MIDDLE).to(torch.uint8)
        return codes[..., 0::2] | codes[..., 1::2] << 4

    def __call__(self, x: Tensor, gradient: Gradient = "identity") -> Tensor:
        """Returns the decoded matrix."""
        values: Tensor = onnx_decode(self._filled, self._steps, self._offsets, self.columns)
        return values


def grouped(original: nn.Module, step: QuantizedOperator) -> Grouped | None:
    """Returns the weight of a layer as grouped integers, or None for other weights."""
    try:
        layer = original if isinstance(original, PackedOperator) else pack(step)
    except ConfigError:  # it cannot be packed
        return None
    weight = coded_weight(layer, zero_points=True)
    return None if isinstance(weight, str) else _grouped(weight)


def _grouped(weight: CodedWeight) -> Grouped | None:
    element = weight.element
    if not isinstance(element, Fixed):
        return None
    offsets = None
    if element.code == "unsigned":
        middle = 2 ** (element.width - 1)
        integers = (weight.codes.to(torch.int16) - middle).to(torch.int8)
        zeros = 0.0 if weight.zero_points is None else weight.zero_points
        offsets = (middle * 2.0**-element.frac_width - zeros) * weight.scales
    else:
        integers = weight.integers
    numbers = [x for x in (weight.steps, offsets) if x is not None]
    # Shared exponents may stand for NaN, and float64 scales for no number of float32.
    if not all(torch.equal(x.float().double(), x) and x.isfinite().all() for x in numbers):
        return None
    offsets = None if offsets is None else offsets.float().cpu()
    steps = weight.steps.float().cpu()
    group = min(weight.group, weight.columns)
    return Grouped(integers.cpu(), steps, offsets, group, element.width)


def has_float_inputs(layer: nn.Module) -> bool:
    """Returns True for a linear layer with float inputs."""
    return isinstance(layer, QuantLinear) and layer.spec.data_in.is_identity


def twin(layer: Any) -> nn.Module | None:
    """Returns a module that computes a layer from its codes; None if the weight must be decoded.

    Args:
        layer: layer with `Grouped` as the weight of its spec.
    """
    weight: Grouped = layer.spec.weight
    if has_hooks(layer):  # one may change the weight, and runs on the layer as it is
        return None
    if type(layer).forward is QuantLinear.forward and weight.block is not None:
        return _BlockLinear(layer, weight.block)
    if type(layer).forward is QuantEmbedding.forward and layer.max_norm is None:
        return CodedEmbedding(layer)
    return None


class _BlockLinear(nn.Module):
    """Linear layer with a weight of 4-bit codes.

    Args:
        layer: original layer.
        block: columns with one scale.
    """

    def __init__(self, layer: QuantLinear, block: int) -> None:
        super().__init__()
        weight: Any = layer.spec.weight
        self.block, self.rest = block, -weight.columns % block
        self.round, self.round_out = layer.spec.data_in, layer.spec.data_out
        self.codes = weight.bytes(block)
        self.scales = weight.per_block(weight.steps, block)
        self.offsets_io = None
        if weight.offsets is not None:
            self.offsets_io = weight.per_block(weight.offsets, block).T.contiguous()
        self.bias = None if layer.bias is None else layer.quantize("bias", layer.bias).detach()

    def forward(self, input: Tensor) -> Tensor:
        x = self.round(input)
        y: Tensor = onnx_matmul_4bit(x, self.codes, self.scales)
        if self.offsets_io is not None:
            filled = F.pad(x, (0, self.rest)) if self.rest else x
            sums = filled.unflatten(-1, (-1, self.block)).sum(-1)
            y = y + sums @ self.offsets_io
        return self.round_out(y if self.bias is None else y + self.bias)


class CodedEmbedding(nn.Module):
    """Embedding that decodes the rows that it looks up.

    Args:
        layer: original layer.
    """

    def __init__(self, layer: QuantEmbedding) -> None:
        super().__init__()
        weight: Any = layer.spec.weight
        self.round_out, self.columns = layer.spec.data_out, weight.columns
        block = weight.block if weight.offsets is None else None
        self.is_packed = block is not None and self.columns % block == 0
        if self.is_packed:
            self.codes = weight.bytes(block).flatten(1)
            self.steps = weight.per_block(weight.steps, block)
            return
        filled = weight.in_groups(weight.integers, weight.group)
        self.codes, self.groups = filled.flatten(1).contiguous(), tuple(filled.shape[1:])
        rows = (len(self.codes), self.groups[0])
        self.steps = weight.steps.expand(rows).contiguous()
        self.offsets = None if weight.offsets is None else weight.offsets.expand(rows).contiguous()

    def forward(self, input: Tensor) -> Tensor:  # noqa: D102
        if self.is_packed:
            looked_up: Tensor = onnx_gather_4bit(self.codes, input, self.steps)
            return self.round_out(looked_up)
        integers = F.embedding(input, self.codes).float().unflatten(-1, self.groups)
        values = integers * F.embedding(input, self.steps).unsqueeze(-1)
        if self.offsets is not None:
            values = values + F.embedding(input, self.offsets).unsqueeze(-1)
        return self.round_out(values.flatten(-2)[..., : self.columns])
