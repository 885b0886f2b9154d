"""Plans of layers with weights."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from chop.hardware.design.lanes import MatrixLanes, matrix_lanes
from chop.hardware.design.plan import ComponentPlan, Memory, Resources, Site
from chop.hardware.design.stream import Rows, Stream
from chop.hardware.plans.blocks import block_plan, input_lanes
from chop.hardware.plans.constant_linear import constant_plan
from chop.nn.integer import IntegerLinear
from chop.nn.integer.edge import bit_width
from chop.nn.integer.linear import SharedBlocks
from chop.nn.integer.weighted import ParameterOperator

PRODUCT_STAGES = 7
"""Cycles of `chop_matvec` and of the FIFO behind it, with a one-cycle product and without the adder
tree.
"""
BIAS_STAGES = 1
FACTOR_STAGES = 1
"""Cycles saved by `chop_ternary_linear`, which has no stage for factors."""


def plan_linear(site: Site) -> ComponentPlan:
    """Plans a linear layer. Weight columns are stored in feature order of the stream.

    Raises:
        ConfigError: if rows are interleaved.
    """
    operator, read = site.operator, site.inputs[0]
    assert isinstance(operator, IntegerLinear)
    rows, outputs = read.rows(), operator.weight.size(0)
    blocks = None if operator.blocks is None else SharedBlocks(*operator.blocks)
    choices = None if blocks is None else input_lanes(rows, blocks)
    lanes = matrix_lanes(rows.count, rows.features, outputs, site.fold, read.lanes, choices)
    # Each weight is used in every cycle. Loadable weights stay in a memory of one word.
    if blocks is None and operator.ranges is None and lanes == (rows.features, outputs):
        constants = constant_plan(operator, read, rows)
        if constants is not None:
            return constants
    # Weights of -1, 0 and 1 select or negate a code, which takes no multiplier.
    is_ternary = has_weights_within_one(operator)
    weight_width, _ = parameter_widths(operator)
    soft = 0 if is_ternary or blocks else site.soft(read.width, weight_width)
    weight = operator.weight[:, rows.order.argsort()]
    plan = _product_plan(operator, read, rows, lanes, soft)
    if is_ternary:
        return _ternary_plan(plan, operator, weight, lanes)
    return plan if blocks is None else block_plan(plan, read, weight, lanes, blocks)


def _product_plan(
    operator: IntegerLinear, read: Stream, rows: Rows, lanes: MatrixLanes, soft: int
) -> ComponentPlan:
    """Returns the plan of `chop_linear`.

    Args:
        operator: the layer.
        read: its input stream.
        rows: rows of that stream.
        lanes: inputs and outputs of a cycle.
        soft: SOFT of `chop_multiplier`.
    """
    weight, outputs = operator.weight[:, rows.order.argsort()], operator.weight.size(0)
    weight_width, bias_width = parameter_widths(operator)
    positions = rows.places[..., None] * outputs + torch.arange(outputs)
    out = Stream(positions, operator.out, lanes.outputs)
    beats, groups = rows.features // lanes.inputs, outputs // lanes.outputs
    return ComponentPlan(
        parameters={
            "IN_LANES": lanes.inputs,
            "OUT_LANES": lanes.outputs,
            "IN_FEATURES": rows.features,
            "OUT_FEATURES": outputs,
            "IN_W": read.width,
            "WEIGHT_W": weight_width,
            "BIAS_W": bias_width,
            "OUT_W": out.width,
            "SHIFT": operator.shift,
            "SOFT": soft,
        },
        lanes=(lanes.inputs,),
        out=out,
        cycles=rows.count * beats * groups,
        memories=parameter_memories(operator, weight, lanes),
        resources=Resources(
            {(read.width, weight_width): lanes.inputs * lanes.outputs},
            rows.features * read.width if groups > 1 else 0,
            is_soft=soft > 0,
        ),
        holds=(1 / rows.count,),
        # A row waits here while the one before is multiplied by all groups of outputs.
        buffers=(2 * beats if groups > 1 else 0,),
        latency=product_stages(lanes, soft),
    )


def _ternary_plan(
    plan: ComponentPlan, operator: IntegerLinear, weight: Tensor, lanes: MatrixLanes
) -> ComponentPlan:
    """Derives the plan of `chop_ternary_linear`, which has no multipliers, from `chop_linear`."""
    is_binary = operator.has_signs and bool(weight.all())
    is_binary &= operator.has_sign_weights or not operator.is_loadable
    shift, bias, offset = operator.shift, operator.bias, 0
    if is_binary:  # the sum is twice the popcount, less the number of features
        offset = weight.size(1) << shift
        shift, bias = shift + 1, bias - offset
        weight = (weight < 0).long()
    _, width = parameter_widths(operator, offset)
    unknown = ("WEIGHT_W", "SOFT")
    parameters = {name: plan.parameters[name] for name in plan.parameters if name not in unknown}
    return replace(
        plan,
        parameters={**parameters, "BINARY": int(is_binary), "BIAS_W": width, "SHIFT": shift},
        memories={
            "WEIGHT_FILE": weight_memory(weight, lanes, 1 if is_binary else 2),
            "BIAS_FILE": Memory.of(bias.view(-1, lanes.outputs).tolist(), width),
        },
        resources=Resources(memory_bits=plan.resources.memory_bits),
        latency=plan.latency - FACTOR_STAGES,
        module="chop_ternary_linear",
    )


def product_stages(lanes: MatrixLanes, soft: int) -> int:
    """Returns the cycles of `chop_linear` from the last beat of a row to its result."""
    return PRODUCT_STAGES + BIAS_STAGES + max(soft - 1, 0) + (lanes.inputs - 1).bit_length()


def parameter_widths(operator: ParameterOperator, offset: int = 0) -> tuple[int, int]:
    """Returns the bits of a weight and of a bias, those of all codes of loadable ones.

    Args:
        operator: layer with weights.
        offset: number that is subtracted from the biases.
    """
    if (ranges := operator.ranges) is None:
        return count_width(operator.weight), count_width(operator.bias - offset)
    biases = ranges.bias_low - offset, ranges.bias_high - offset
    return bit_width(ranges.weight_low, ranges.weight_high), bit_width(*biases)


def has_weights_within_one(operator: ParameterOperator) -> bool:
    """Returns whether all weights are -1, 0 or 1."""
    if operator.ranges is None:
        return bool((operator.weight.abs() <= 1).all())
    return operator.ranges.weight_low >= -1 and operator.ranges.weight_high <= 1


def parameter_memories(
    operator: ParameterOperator, weight: Tensor, lanes: MatrixLanes
) -> dict[str, Memory]:
    """Returns the memories of `chop_linear`.

    Args:
        operator: layer with biases.
        weight: its weights, int64 (outputs, inputs), with inputs in stream order.
        lanes: weights of a word.
    """
    weight_width, bias_width = parameter_widths(operator)
    bias = operator.bias.flatten().view(-1, lanes.outputs)
    return {
        "WEIGHT_FILE": weight_memory(weight, lanes, weight_width),
        "BIAS_FILE": Memory.of(bias.tolist(), bias_width),
    }


def weight_memory(weight: Tensor, lanes: MatrixLanes, width: int) -> Memory:
    """Returns the words of `chop_linear`, for each group of outputs and each beat of a row.

    Args:
        weight: int64 (outputs, inputs), with inputs in stream order.
        lanes: weights of a word.
        width: bits of a weight.
    """
    outputs, inputs = weight.shape
    groups, beats = outputs // lanes.outputs, inputs // lanes.inputs
    words = weight.view(groups, lanes.outputs, beats, lanes.inputs).transpose(1, 2)
    return Memory.of(words.reshape(groups * beats, -1).tolist(), width)


def count_width(codes: Tensor) -> int:
    """Returns the bits of the widest code in two's complement."""
    return bit_width(int(codes.min()), int(codes.max()))
