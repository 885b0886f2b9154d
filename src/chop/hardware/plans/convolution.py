"""Plan of convolutions: a sliding window and a linear layer."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from torch import Tensor

from chop.hardware.design.lanes import MatrixLanes, divisors
from chop.hardware.design.plan import ComponentPlan, Resources, Site
from chop.hardware.plans.depthwise import depthwise_plan
from chop.hardware.plans.weighted import parameter_memories, parameter_widths, product_stages
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


class _Products(NamedTuple):
    """Products of a window with the weights, one group of channels after another.

    Attributes:
        groups: groups of channels.
        inputs: codes of a group in a window.
        outputs: outputs of a group.
        lanes: codes and outputs of a cycle.
    """

    groups: int
    inputs: int
    outputs: int
    lanes: MatrixLanes

    @property
    def beats(self) -> int:
        """Beats of the results of a group."""
        return self.outputs // self.lanes.outputs

    @property
    def pace(self) -> int:
        """Cycles of a group in a window."""
        return self.inputs // self.lanes.inputs * self.beats

    @property
    def depth(self) -> int:
        """Beats of the FIFO ahead of the products.

        A window's group waits there while the one before is multiplied for all of its outputs.
        """
        return 2 * self.inputs // self.lanes.inputs if self.beats > 1 else 2

    @property
    def stored(self) -> int:
        """Codes in that FIFO, and those of a group that are read again for other outputs."""
        return self.depth * self.lanes.inputs + (self.inputs if self.beats > 1 else 0)

    @property
    def parameters(self) -> dict[str, int]:
        """Module parameters with the sizes."""
        return {
            "DEPTH": self.depth,
            "GROUPS": self.groups,
            "IN_LANES": self.lanes.inputs,
            "OUT_LANES": self.lanes.outputs,
            "OUT_FEATURES": self.outputs,
        }


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
    slid = sliding(read, shape, tuple(operator.weight.shape[2:]), *settings)
    groups, outputs = operator.groups, operator.weight.size(0)
    if 1 < groups == slid.channels == outputs:
        window = with_lanes(slid, site, tap_choices=slid.tap_choices)
        return depthwise_plan(operator, site, window, shape)
    window = with_lanes(slid, site, groups, tap_choices=slid.tap_choices)
    products = _products(window, outputs // groups, groups, site.fold)
    lanes, (weight_width, bias_width) = products.lanes, parameter_widths(operator)
    soft = site.soft(read.width, weight_width)
    out = channels_last(shape, read, lanes.outputs).of(operator.out)
    return ComponentPlan(
        parameters=window.parameters(read.width, 0)
        | products.parameters
        | {"WEIGHT_W": weight_width, "BIAS_W": bias_width}
        | {"OUT_W": out.width, "SHIFT": operator.shift, "SOFT": soft},
        lanes=(window.lanes,),
        out=out,
        cycles=max(window.cycles, window.windows * groups * products.pace),
        memories=parameter_memories(operator, _as_sent(operator.weight, window), lanes),
        resources=Resources(
            {(read.width, weight_width): lanes.inputs * lanes.outputs},
            window.memory_bits(read.width) + products.stored * read.width,
            is_soft=site.is_soft,
        ),
        holds=(window.hold,),
        buffers=(0,),
        latency=WINDOW_STAGES
        + products.inputs // window.codes
        + GATHER_STAGES
        + product_stages(lanes, soft),
        leaves=_leaves(window, products),
    )


def _padding(operator: Convolution) -> list[int]:
    kernel = operator.weight.shape[2:]
    if operator.padding == "valid":
        return [0] * len(kernel)
    if operator.padding == "same":
        pairs = zip(kernel, operator.dilation, strict=True)
        return [dilation * (taps - 1) // 2 for taps, dilation in pairs]
    return [int(padding) for padding in operator.padding]


def _products(window: Window, outputs: int, groups: int, fold: int) -> _Products:
    """Returns the fewest products of a cycle that reach a fold or the rate of the windows."""
    # Products faster than the window would wait for its taps.
    limit = max(fold, window.cycles)
    inputs = window.channels // groups * window.taps
    choices = [
        _Products(groups, inputs, outputs, MatrixLanes(window.codes * beats, together))
        for beats in divisors(inputs // window.codes)
        for together in divisors(outputs)
    ]

    def cost(products: _Products) -> tuple[int, int]:
        lanes = products.lanes
        return lanes.inputs * lanes.outputs, abs(lanes.inputs - lanes.outputs)

    for products in sorted(choices, key=cost):
        if window.windows * groups * products.pace <= limit:
            return products
    return choices[-1]


def _leaves(window: Window, products: _Products) -> Callable[[Tensor], Tensor]:
    """Returns the cycles in which results leave, as a function of those in which codes arrive."""
    waiting = PLACES + (products.depth + 1) * (products.lanes.inputs // window.codes)
    return partial(
        window.leaves,
        parts=products.groups,
        beats=products.beats,
        pace=products.pace,
        ahead=max(waiting * products.groups // window.beats, 1),
    )


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
