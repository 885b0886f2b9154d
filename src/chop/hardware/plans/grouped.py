"""Plans of convolutions whose channels are in groups; of one channel each, depthwise."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from chop.hardware.lanes import MatrixLanes, converter_cycles, divisors, first_within
from chop.hardware.plan import ComponentPlan, Memory, Resources, Site
from chop.hardware.plans.weighted import product_stages, weight_memory, width_of
from chop.hardware.plans.window import WINDOW_STAGES, Window, channels_last, with_lanes
from chop.nn.integer import IntegerConv1d, IntegerConv2d

Convolution = IntegerConv1d | IntegerConv2d

GATHER_STAGES = 3
"""Cycles of a converter and of a FIFO between taps and their products, at most."""
TAP_STAGES = 6
"""Cycles of `chop_depthwise_conv` behind its window: products, sums and biases."""


def plan_grouped(
    operator: Convolution, site: Site, window: Window, shape: tuple[int, ...]
) -> ComponentPlan:
    """Convolution of groups; those of one channel and one output have a multiplier in each lane.

    Args:
        operator: with more than one group.
        site: where it stands.
        window: what slides, with one lane.
        shape: of the result: channels and windows.
    """
    if operator.groups == window.channels == operator.weight.size(0):
        return _depthwise(operator, site, with_lanes(window, site), shape)
    return _in_groups(operator, site, window, shape)


def _depthwise(
    operator: Convolution, site: Site, window: Window, shape: tuple[int, ...]
) -> ComponentPlan:
    (read,), lanes = site.inputs, window.lanes
    taps = operator.weight.reshape(window.folds, lanes, -1).transpose(1, 2)
    bias, width = operator.bias.flatten(), width_of(operator.weight)
    out = channels_last(shape, read, lanes).of(operator.out)
    return ComponentPlan(
        window.parameters(read.width, 0)
        | {
            "WEIGHT_W": width,
            "BIAS_W": width_of(bias),
            "OUT_W": out.width,
            "SHIFT": operator.shift,
        },
        lanes=(lanes,),
        out=out,
        cycles=window.cycles,
        memories={
            "WEIGHT_FILE": Memory.of(taps.reshape(-1, lanes).tolist(), width),
            "BIAS_FILE": Memory.of(bias.view(-1, lanes).tolist(), width_of(bias)),
        },
        resources=Resources({(read.width, width): lanes}, window.memory_bits(read.width)),
        holds=(window.hold,),
        buffers=(0,),
        latency=WINDOW_STAGES + window.taps + TAP_STAGES,
        module="chop_depthwise_conv",
    )


def _in_groups(
    operator: Convolution, site: Site, window: Window, shape: tuple[int, ...]
) -> ComponentPlan:
    (read,), groups = site.inputs, operator.groups
    channels, outputs = window.channels // groups, operator.weight.size(0) // groups
    window = _of_group(window, site, channels)
    features = channels * window.taps
    lanes = _lanes(window, features, outputs, groups, site.fold)
    beats, turns = features // lanes.inputs, outputs // lanes.outputs
    # A group waits here while the one before is multiplied for all of its outputs.
    depth = 2 * beats if turns > 1 else 2
    weight, bias = _as_sent(operator.weight, window, channels), operator.bias.flatten()
    out = channels_last(shape, read, lanes.outputs).of(operator.out)
    stored = depth * lanes.inputs + (features if turns > 1 else 0)
    return ComponentPlan(
        window.parameters(read.width, 0)
        | {
            "DEPTH": depth,
            "GROUPS": groups,
            "IN_FEATURES": features,
            "IN_LANES": lanes.inputs,
            "OUT_LANES": lanes.outputs,
            "OUT_FEATURES": outputs,
            "WEIGHT_W": width_of(weight),
            "BIAS_W": width_of(bias),
            "OUT_W": out.width,
            "SHIFT": operator.shift,
        },
        lanes=(window.lanes,),
        out=out,
        cycles=max(window.cycles, window.windows * groups * beats * turns),
        memories={
            "WEIGHT_FILE": weight_memory(weight, lanes),
            "BIAS_FILE": Memory.of(bias.view(-1, lanes.outputs).tolist(), width_of(bias)),
        },
        resources=Resources(
            {(read.width, width_of(weight)): lanes.inputs * lanes.outputs},
            window.memory_bits(read.width) + stored * read.width,
        ),
        holds=(window.hold,),
        buffers=(0,),
        latency=WINDOW_STAGES + features // window.lanes + GATHER_STAGES + product_stages(lanes),
        module="chop_group_conv",
    )


def _of_group(window: Window, site: Site, channels: int) -> Window:
    """With the fewest lanes, all of one group, that reach a fold, or as fast as it can be."""
    (read,) = site.inputs

    def cycles(lanes: int) -> int:
        own = replace(window, lanes=lanes).cycles
        return max(own, converter_cycles(read.size, read.lanes, lanes))

    return replace(window, lanes=first_within(divisors(channels), site.fold, cycles))


def _lanes(window: Window, features: int, outputs: int, groups: int, fold: int) -> MatrixLanes:
    """The fewest multipliers that reach a fold, or do not slow the windows."""
    limit = max(fold, window.cycles)
    pairs = [
        MatrixLanes(window.lanes * beats, together)
        for beats in divisors(features // window.lanes)
        for together in divisors(outputs)
    ]

    def cost(lanes: MatrixLanes) -> tuple[bool, int, int]:
        turns = features // lanes.inputs * (outputs // lanes.outputs)
        is_slow = window.windows * groups * turns > limit
        products = lanes.inputs * lanes.outputs
        return is_slow, -products if is_slow else products, abs(lanes.inputs - lanes.outputs)

    return min(pairs, key=cost)


def _as_sent(weight: Tensor, window: Window, channels: int) -> Tensor:
    """int64 (outputs, features of a group): beat of a pixel, kernel row, kernel column, lane."""
    kernel = (window.y.kernel, window.x.kernel)
    beats = weight.reshape(len(weight), channels // window.lanes, window.lanes, *kernel)
    return beats.permute(0, 1, 3, 4, 2).reshape(len(weight), -1)
