"""Plan of depthwise convolutions, with one multiplier per lane and parallel tap."""

from __future__ import annotations

from functools import partial

from chop.hardware.design.plan import ComponentPlan, Memory, Resources, Site
from chop.hardware.plans.weighted import parameter_widths
from chop.hardware.plans.window import WINDOW_STAGES, Window, channels_last
from chop.nn.integer import IntegerConv1d, IntegerConv2d

TAP_STAGES = 6
"""Cycles of `chop_depthwise_conv` after its window: products, sums and biases."""


def depthwise_plan(
    operator: IntegerConv1d | IntegerConv2d, site: Site, window: Window, shape: tuple[int, ...]
) -> ComponentPlan:
    """Returns the plan of `chop_depthwise_conv`.

    Args:
        operator: convolution whose groups have one channel and one output each.
        site: its site.
        window: sliding window.
        shape: result shape: channels and windows.
    """
    (read,), lanes = site.inputs, window.lanes
    taps = operator.weight.reshape(window.folds, lanes, -1).transpose(1, 2)
    bias, (width, bias_width) = operator.bias.flatten(), parameter_widths(operator)
    out = channels_last(shape, read, lanes).of(operator.out)
    return ComponentPlan(
        window.parameters(read.width, 0)
        | {
            "WEIGHT_W": width,
            "BIAS_W": bias_width,
            "OUT_W": out.width,
            "SHIFT": operator.shift,
        },
        lanes=(lanes,),
        out=out,
        cycles=window.cycles,
        memories={
            "WEIGHT_FILE": Memory.of(taps.reshape(-1, window.codes).tolist(), width),
            "BIAS_FILE": Memory.of(bias.view(-1, lanes).tolist(), bias_width),
        },
        resources=Resources({(read.width, width): window.codes}, window.memory_bits(read.width)),
        holds=(window.hold,),
        buffers=(0,),
        latency=WINDOW_STAGES + window.reduction + TAP_STAGES,
        leaves=partial(window.leaves, parts=window.folds),
        module="chop_depthwise_conv",
    )
