"""Plans of what slides over images: convolutions and pools."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from chop.errors import ConfigError
from chop.hardware.design.lanes import converter_cycles, divisors, first_within
from chop.hardware.design.plan import ComponentPlan, Resources, Site
from chop.hardware.design.stream import Stream
from chop.hardware.plans.reduce import SUM_STAGES
from chop.nn.integer import (
    IntegerAdaptiveAvgPool1d,
    IntegerAdaptiveAvgPool2d,
    IntegerAvgPool1d,
    IntegerAvgPool2d,
    IntegerMaxPool1d,
    IntegerMaxPool2d,
)

AveragePool = (
    IntegerAdaptiveAvgPool1d | IntegerAdaptiveAvgPool2d | IntegerAvgPool1d | IntegerAvgPool2d
)

ARRIVAL = 1
"""Cycles from a row's last beat in to the first tap of windows that wait for it."""
LATENCY = 2
"""Cycles from a row's last tap to the load of what replaces it."""
WINDOW_STAGES = 7
"""Cycles of `chop_window` ahead of the first tap, once the last row that it needs is there."""
MAXIMUM_STAGES = 1
IMAGES = 3
"""After so many the interval between two no longer changes."""


@dataclass(frozen=True)
class Axis:
    """Windows along one axis.

    Attributes:
        size: of the image.
        windows: how many.
        kernel: taps of a window.
        stride: from one window to the next.
        padding: ahead of the image.
        dilation: from one tap to the next.
    """

    size: int
    windows: int
    kernel: int
    stride: int = 1
    padding: int = 0
    dilation: int = 1

    @property
    def reach(self) -> int:
        """From the first to the last tap of a window, both included."""
        return (self.kernel - 1) * self.dilation + 1

    def inside(self, window: int) -> tuple[int, int]:
        """Start and end of what a window covers of the image."""
        start = window * self.stride - self.padding
        return max(start, 0), min(start + self.reach, self.size)

    def needed(self, window: int) -> int:
        """How many of the image's first rows a window waits for: one at least."""
        return min(max(window * self.stride - self.padding + self.reach, 1), self.size)

    def finished(self, window: int) -> int:
        """How many of the image's first rows no window after this one needs."""
        if window == self.windows - 1:
            return self.size
        return min(max((window + 1) * self.stride - self.padding, 0), self.size)


@dataclass(frozen=True)
class Window:
    """A `chop_window`. An image of one dimension is a column: its rows are single pixels.

    Attributes:
        y: from row to row.
        x: along a row.
        channels: of a pixel.
        lanes: of them in a beat.
        tap_lanes: taps in a beat that leaves.
    """

    y: Axis
    x: Axis
    channels: int
    lanes: int = 1
    tap_lanes: int = 1

    @property
    def taps(self) -> int:
        """Of one window and channel."""
        return self.y.kernel * self.x.kernel

    @property
    def tap_choices(self) -> list[int]:
        """Taps that may leave together: parts of a row of the kernel, or whole rows of it."""
        along = self.x.kernel
        return divisors(along) + [along * rows for rows in divisors(self.y.kernel)[1:]]

    @property
    def folds(self) -> int:
        """Beats of a pixel."""
        return self.channels // self.lanes

    @property
    def codes(self) -> int:
        """Of a beat that leaves."""
        return self.tap_lanes * self.lanes

    @property
    def beats(self) -> int:
        """Of one window."""
        return self.folds * self.taps // self.tap_lanes

    @property
    def windows(self) -> int:
        """Over one image."""
        return self.y.windows * self.x.windows

    @property
    def ring(self) -> int:
        """Rows that are stored: those under the kernel, and what is needed next."""
        held, stride = min(self.y.reach, self.y.size), min(self.y.stride, self.y.size)
        return held + max(stride, self.y.needed(0))

    @property
    def hold(self) -> float:
        """Share of an image ahead of the first result."""
        return self.y.needed(0) / self.y.size

    @property
    def cycles(self) -> int:
        """Between two images: when the rows of each come, and when their windows leave."""
        load = self.x.size * self.folds
        send = self.x.windows * self.beats
        loaded: list[int] = []
        free, clock, ends = [0] * self.ring, 0, []
        for image in range(IMAGES):
            first = image * self.y.size
            for window in range(self.y.windows):
                needed = first + self.y.needed(window)
                while len(loaded) < needed:
                    start = max(free[len(loaded)], loaded[-1] if loaded else 0)
                    loaded.append(start + load)
                clock = max(clock, loaded[needed - 1] + ARRIVAL) + send
                finished = first + self.y.finished(window) + self.ring
                free += [clock + LATENCY] * (finished - len(free))
            ends.append(clock)
        return ends[-1] - ends[-2]

    def parameters(self, width: int, pad: int) -> dict[str, int]:
        """Of the module.

        Args:
            width: of a code in bits.
            pad: the code outside of the image.
        """
        found = {"LANES": self.lanes, "IN_W": width, "FOLDS": self.folds}
        for name, along in (("HEIGHT", self.y), ("WIDTH", self.x)):
            found |= {f"IN_{name}": along.size, f"OUT_{name}": along.windows}
        for name, along in (("Y", self.y), ("X", self.x)):
            found |= {f"KERNEL_{name}": along.kernel, f"STRIDE_{name}": along.stride}
            found |= {f"PADDING_{name}": along.padding, f"DILATION_{name}": along.dilation}
        found |= {"RING": self.ring, "PAD_CODE": pad}
        return found if self.tap_lanes == 1 else found | {"TAP_LANES": self.tap_lanes}

    def memory_bits(self, width: int) -> int:
        """Of the rings, for codes of a width in bits."""
        return self.tap_lanes * self.ring * self.x.size * self.channels * width


def plan_max_pool(site: Site) -> ComponentPlan:
    """Maximum of each window."""
    operator, (read,) = site.operator, site.inputs
    assert isinstance(operator, IntegerMaxPool1d | IntegerMaxPool2d)
    kernel = operator.kernel_size
    stride = kernel if operator.stride in (None, [], ()) else operator.stride
    settings = (kernel, stride, operator.padding, operator.dilation)
    shape = tuple(operator(torch.zeros(1, *read.shape, dtype=torch.int64)).shape[1:])
    window = with_lanes(sliding(read, shape, *settings), site)
    out = channels_last(shape, read, window.lanes)
    return ComponentPlan(
        parameters=window.parameters(read.width, read.edge.low),
        lanes=(window.lanes,),
        out=out.of(operator.out),
        cycles=window.cycles,
        resources=Resources(memory_bits=window.memory_bits(read.width)),
        holds=(window.hold,),
        buffers=(0,),
        latency=WINDOW_STAGES + window.taps + MAXIMUM_STAGES,
    )


def plan_avg_pool(site: Site) -> ComponentPlan:
    """Sum of each window, where all windows are alike."""
    operator, (read,) = site.operator, site.inputs
    assert isinstance(operator, AveragePool)
    if bool((operator.factor != 1).any()):
        raise ConfigError(f"{type(operator).__name__}: windows are divided by different counts")
    pairs = zip(read.shape[1:], operator.stretches, strict=True)
    axes = [_regular(size, stretches) for size, stretches in pairs]
    _check_channels_last(read)
    window = with_lanes(_window(axes, read.shape[0]), site)
    shape = (read.shape[0], *(axis.windows for axis in axes))
    out = channels_last(shape, read, window.lanes).of(operator.out)
    return ComponentPlan(
        parameters=window.parameters(read.width, 0) | {"OUT_W": out.width},
        lanes=(window.lanes,),
        out=out,
        cycles=window.cycles,
        resources=Resources(memory_bits=window.memory_bits(read.width)),
        holds=(window.hold,),
        buffers=(0,),
        latency=WINDOW_STAGES + window.taps + SUM_STAGES,
    )


def _regular(size: int, stretches: Sequence[tuple[int, int]]) -> Axis:
    """Windows of one size at one distance, whose parts in the image are these stretches.

    Raises:
        ConfigError: there are none.
    """
    for stride in range(1, size + 1):
        for padding in range(size):
            axis = Axis(size, len(stretches), stretches[0][1] + padding, stride, padding)
            if list(stretches) == [axis.inside(window) for window in range(axis.windows)]:
                return axis
    raise ConfigError(f"windows over {stretches} have no one size and distance")


def sliding(
    read: Stream,
    shape: tuple[int, ...],
    kernel: Any,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
) -> Window:
    """Windows over an image, (channels, positions), with one lane.

    Args:
        read: the image's stream.
        shape: of the result: channels and windows.
        kernel: one number or one for each axis, as the other settings.
        stride: of the windows.
        padding: ahead of the image.
        dilation: of the kernel.
    Raises:
        ConfigError: channels do not travel last.
    """
    channels, *sizes = read.shape
    _check_channels_last(read)
    settings = [
        setting if isinstance(setting, list | tuple) else [setting] * len(sizes)
        for setting in (kernel, stride, padding, dilation)
    ]
    axes = [
        Axis(*(int(number) for number in along))
        for along in zip(sizes, shape[1:], *settings, strict=True)
    ]
    return _window(axes, channels)


def _window(axes: Sequence[Axis], channels: int) -> Window:
    return Window(axes[0], axes[1] if len(axes) > 1 else Axis(1, 1, 1), channels)


def _check_channels_last(read: Stream) -> None:
    if not torch.equal(read.positions, channels_last(read.shape, read).positions):
        raise ConfigError("pixels do not travel one after another, each with its channels in order")


def with_lanes(
    window: Window, site: Site, groups: int = 1, tap_choices: Sequence[int] = (1,)
) -> Window:
    """With the fewest lanes that reach a fold, or as fast as it can be.

    A ring is stored for each of the taps that leave together: more of them where all lanes do not
    suffice.

    Args:
        window: with one lane.
        site: where it stands.
        groups: of channels; lanes are of one group.
        tap_choices: how many taps may leave together, ascending.
    """
    (read,) = site.inputs
    choices = [
        replace(window, lanes=lanes, tap_lanes=taps)
        for taps in tap_choices
        for lanes in divisors(window.channels // groups)
    ]

    def cycles(choice: Window) -> int:
        return max(choice.cycles, converter_cycles(read.size, read.lanes, choice.lanes))

    return first_within(choices, site.fold, cycles)


def channels_last(shape: tuple[int, ...], like: Stream, lanes: int = 1) -> Stream:
    """The stream of an image, (channels, positions), pixel after pixel."""
    channels, *sizes = shape
    size = torch.Size(shape).numel()
    places = torch.arange(size).view(*sizes, channels).movedim(-1, 0)
    return Stream(places, like.edge, lanes)
