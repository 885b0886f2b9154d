"""Plan of convolutions: a sliding window and a linear layer."""

from __future__ import annotations

from functools import partial

from torch import Tensor

from chop.hardware.design.lanes import MatrixLanes, divisors
from chop.hardware.design.plan import ComponentPlan, Memory, Resources, Site
from chop.hardware.plans.depthwise import depthwise_plan
from chop.hardware.plans.weighted import (
    parameter_widths,
    product_stages,
    weight_memory,
)
from chop.hardware.plans.window import (
    PLACES,
    WINDOW_STAGES,
    Window,
    channels_last,
    sliding,
    with_lanes,
)
from chop.nn.integer import IntegerConv1d, IntegerConv2d

Convolution = IntegerConv1d | IntegerConv2d

GATHER_STAGES = 3
"""Maximum cycles of a converter and a FIFO between taps and their products."""


def plan_conv(site: Site) -> ComponentPlan:
    """Plans a convolution. Weight columns are stored in the order of the window's taps.

    Groups with one channel and one output use one multiplier per lane and parallel tap.

    Raises:
        ConfigError: if channels are not the fastest dimension.
    """
    operator, (read,) = site.operator, site.inputs
    assert isinstance(operator, Convolution)
    settings = (operator.stride, _padding(operator), operator.dilation)
    shape = tuple(operator(read.positions[None] * 0).shape[1:])
    kernel = tuple(operator.weight.shape[2:])
    slid = sliding(read, shape, kernel, *settings)
    groups = operator.groups
    if 1 < groups == slid.channels == operator.weight.size(0):
        return depthwise_plan(
            operator, site, with_lanes(slid, site, tap_choices=slid.tap_choices), shape
        )
    window = with_lanes(slid, site, groups, tap_choices=slid.tap_choices)
    outputs, inputs = operator.weight.size(0) // groups, window.channels // groups * window.taps
    lanes = _lanes(window, inputs, outputs, groups, site.fold)
    pace = groups * (inputs // lanes.inputs) * (outputs // lanes.outputs)
    # A window's group waits here while the one before is multiplied for all of its outputs.
    depth = 2 * inputs // lanes.inputs if outputs > lanes.outputs else 2
    waiting = PLACES + (depth + 1) * (lanes.inputs // window.codes)
    weight, bias = _as_sent(operator.weight, window), operator.bias.flatten()
    weight_width, bias_width = parameter_widths(operator)
    soft = site.soft(read.width, weight_width)
    out = channels_last(shape, read, lanes.outputs).of(operator.out)
    parameters = window.parameters(read.width, 0) | {
        "DEPTH": depth,
        "GROUPS": groups,
        "IN_LANES": lanes.inputs,
        "OUT_LANES": lanes.outputs,
        "OUT_FEATURES": outputs,
        "WEIGHT_W": weight_width,
        "BIAS_W": bias_width,
        "OUT_W": out.width,
        "SHIFT": operator.shift,
        "SOFT": soft,
    }
    stored = depth * lanes.inputs + (inputs if outputs > lanes.outputs else 0)
    return ComponentPlan(
        parameters,
        lanes=(window.lanes,),
        out=out,
        cycles=max(window.cycles, window.windows * pace),
        memories={
            "WEIGHT_FILE": weight_memory(weight, lanes, weight_width),
            "BIAS_FILE": Memory.of(bias.view(-1, lanes.outputs).tolist(), bias_width),
        },
        resources=Resources(
            {(read.width, weight_width): lanes.inputs * lanes.outputs},
            window.memory_bits(read.width) + stored * read.width,
            is_soft=site.is_soft,
        ),
        holds=(window.hold,),
        buffers=(0,),
        latency=WINDOW_STAGES
        + inputs // window.codes
        + GATHER_STAGES
        + product_stages(lanes, soft),
        leaves=partial(
            window.leaves,
            parts=groups,
            beats=outputs // lanes.outputs,
            pace=pace // groups,
            ahead=max(waiting * groups // window.beats, 1),
        ),
    )


def _padding(operator: Convolution) -> list[int]:
    kernel = operator.weight.shape[2:]
    if operator.padding == "valid":
        return [0] * len(kernel)
    if operator.padding == "same":
        pairs = zip(kernel, operator.dilation, strict=True)
        return [dilation * (taps - 1) // 2 for taps, dilation in pairs]
    return [int(padding) for padding in operator.padding]


def _lanes(window: Window, inputs: int, outputs: int, groups: int, fold: int) -> MatrixLanes:
    """Returns the fewest multipliers that reach a fold or the rate of the windows."""
    # Products faster than the window would wait for its taps.
    limit = max(fold, window.cycles)
    pairs = [
        MatrixLanes(window.codes * beats, together)
        for beats in divisors(inputs // window.codes)
        for together in divisors(outputs)
    ]

    def cost(lanes: MatrixLanes) -> tuple[int, int]:
        return lanes.inputs * lanes.outputs, abs(lanes.inputs - lanes.outputs)

    for lanes in sorted(pairs, key=cost):
        turns = inputs // lanes.inputs * (outputs // lanes.outputs)
        if window.windows * groups * turns <= limit:
            return lanes
    return pairs[-1]


def _as_sent(weight: Tensor, window: Window) -> Tensor:
    """Returns int64 (outputs, inputs), ordered by pixel beat, kernel row, kernel column, lane.

    Args:
        weight: int64 (outputs, channels of a group, kernel).
        window: sliding window.
    """
    outputs = weight.size(0)
    kernel = (window.y.kernel, window.x.kernel)
    beats = weight.reshape(outputs, -1, window.lanes, *kernel)
    return beats.permute(0, 1, 3, 4, 2).reshape(outputs, -1)
