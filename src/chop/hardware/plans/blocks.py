"""Plan of linear layers with shared block exponents (MXINT)."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from chop.hardware.design.lanes import MatrixLanes, divisors
from chop.hardware.design.plan import ComponentPlan, Memory, Resources
from chop.hardware.design.stream import Rows, Stream
from chop.nn.integer.blocks import floor_log2
from chop.nn.integer.linear import SharedBlocks

SPLIT_STAGES = 6
"""Cycles of `chop_split_block`, of the FIFO behind it and of the shift of sums."""


class _Split(NamedTuple):
    """Numbers with a shared power of two: p 2^f.

    Attributes:
        codes: p, int64 (..., n).
        shift: f, int64 (..., 1).
    """

    codes: Tensor
    shift: Tensor

    @classmethod
    def of(cls, numbers: Tensor, width: int) -> _Split:
        """Returns the split with the smallest f such that all p of a row fit `width` bits."""
        # ~x is -x - 1: the code -2^k needs no more bits than 2^k - 1.
        magnitudes = torch.where(numbers < 0, ~numbers, numbers).amax(-1, keepdim=True)
        used = torch.where(magnitudes > 0, floor_log2(magnitudes) + 1, 0)
        shift = (used - (width - 1)).clamp(min=0)
        return cls(numbers >> shift, shift)


def input_lanes(rows: Rows, blocks: SharedBlocks) -> list[int]:
    """Returns the lanes with which each beat belongs to one block."""
    block_indices = rows.order.argsort() // blocks.size
    return [
        lanes
        for lanes in divisors(rows.features)
        if lanes <= blocks.size
        and bool((beats := block_indices.view(-1, lanes)).eq(beats[:, :1]).all())
    ]


def block_plan(
    plan: ComponentPlan,
    read: Stream,
    weight: Tensor,
    lanes: MatrixLanes,
    blocks: SharedBlocks,
) -> ComponentPlan:
    """Returns the plan of `chop_block_linear`, from that of `chop_linear` with the same lanes.

    Args:
        plan: plan with cycles, order and biases.
        read: its input stream.
        weight: its weights, with inputs in stream order.
        lanes: lanes of the plan.
        blocks: blocks of inputs and weights.
    """
    outputs, features = weight.shape
    groups, beats = outputs // lanes.outputs, features // lanes.inputs
    words = weight.view(groups, lanes.outputs, beats, -1).transpose(1, 2)
    split = _Split.of(words, blocks.weight_width)
    if not torch.equal(split.codes << split.shift, words):
        return plan  # weights that were rounded once more, for a bias
    code_width = min(blocks.data_in_width, read.width)
    shift_width = max(read.width - code_width, 1).bit_length()
    weight_shift_width = max(int(split.shift.max()).bit_length(), 1)
    unknown = ("WEIGHT_W", "SOFT")
    parameters = {name: plan.parameters[name] for name in plan.parameters if name not in unknown}
    stored = lanes.inputs * code_width + shift_width
    return replace(
        plan,
        parameters={
            **parameters,
            "CODE_W": code_width,
            "SHIFT_W": shift_width,
            "WEIGHT_W": blocks.weight_width,
            "WEIGHT_SHIFT_W": weight_shift_width,
        },
        memories={
            **plan.memories,
            "WEIGHT_FILE": _words(split, blocks.weight_width, weight_shift_width),
        },
        resources=Resources(
            {(code_width, blocks.weight_width): lanes.inputs * lanes.outputs},
            beats * stored if groups > 1 else 0,
        ),
        latency=plan.latency + SPLIT_STAGES,
        module="chop_block_linear",
    )


def _words(split: _Split, width: int, shift_width: int) -> Memory:
    """Returns, for each group and beat, the numbers of all outputs with their shifts above them."""
    codes = Memory.of(split.codes.reshape(-1, split.codes.shape[2:].numel()).tolist(), width)
    shifts = Memory.of(split.shift.reshape(-1, split.shift.size(2)).tolist(), shift_width)
    words = (
        code + (shift << codes.width) for code, shift in zip(codes.words, shifts.words, strict=True)
    )
    return Memory(tuple(words), codes.width + shifts.width)
