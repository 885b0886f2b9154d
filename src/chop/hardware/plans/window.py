"""Plans of sliding-window operators: convolution windows and pooling."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from chop.errors import ConfigError
from chop.hardware.design.lanes import converter_cycles, divisors, first_within
from chop.hardware.design.plan import ComponentPlan, Resources, Site
from chop.hardware.design.stream import OrderError, Stream
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
"""Cycles from a row's last input beat to the first tap of windows that wait for it."""
LATENCY = 2
"""Cycles from a row's last tap to the load of its replacement."""
WINDOW_STAGES = 7
"""Cycles of `chop_window` ahead of the first tap, after the last row that it needs."""
MAXIMUM_STAGES = 1
PLACES = 10
"""Beats in the FIFO at the end of `chop_window`."""
IMAGES = 3
"""Images after which the interval is constant."""


@dataclass(frozen=True)
class Axis:
    """Windows along one axis.

    Attributes:
        size: image size.
        windows: number of windows.
        kernel: taps of a window.
        stride: distance between windows.
        padding: padding ahead of the image.
        dilation: distance between taps.
    """

    size: int
    windows: int
    kernel: int
    stride: int = 1
    padding: int = 0
    dilation: int = 1

    @property
    def reach(self) -> int:
        """Distance from the first to the last tap of a window, inclusive."""
        return (self.kernel - 1) * self.dilation + 1

    def inside(self, window: int) -> tuple[int, int]:
        """Returns start and end of the image section under a window."""
        start = window * self.stride - self.padding
        return max(start, 0), min(start + self.reach, self.size)

    def needed(self, window: int) -> int:
        """Returns the number of leading image rows that a window waits for, at least one."""
        return min(max(window * self.stride - self.padding + self.reach, 1), self.size)

    def finished(self, window: int) -> int:
        """Returns the number of leading image rows that no later window needs."""
        if window == self.windows - 1:
            return self.size
        return min(max((window + 1) * self.stride - self.padding, 0), self.size)


@dataclass(frozen=True)
class Window:
    """A `chop_window`. A one-dimensional image is a column with rows of one pixel.

    Attributes:
        y: axis across rows.
        x: axis along a row.
        channels: channels of a pixel.
        lanes: channels in a beat.
        tap_lanes: taps in an output beat.
    """

    y: Axis
    x: Axis
    channels: int
    lanes: int = 1
    tap_lanes: int = 1

    @property
    def taps(self) -> int:
        """Taps of one window and channel."""
        return self.y.kernel * self.x.kernel

    @property
    def tap_choices(self) -> list[int]:
        """Allowed numbers of parallel taps: parts of a kernel row, or whole kernel rows."""
        along = self.x.kernel
        return divisors(along) + [along * rows for rows in divisors(self.y.kernel)[1:]]

    @property
    def folds(self) -> int:
        """Beats of a pixel."""
        return self.channels // self.lanes

    @property
    def codes(self) -> int:
        """Codes of an output beat."""
        return self.tap_lanes * self.lanes

    @property
    def beats(self) -> int:
        """Beats of one window."""
        return self.folds * self.taps // self.tap_lanes

    @property
    def reduction(self) -> int:
        """Cycles from the first taps of a window to its sum or maximum: a tree, then beats."""
        return self.taps // self.tap_lanes + (self.tap_lanes - 1).bit_length()

    @property
    def windows(self) -> int:
        """Windows of one image."""
        return self.y.windows * self.x.windows

    @property
    def ring(self) -> int:
        """Rows in the ring buffer: those under the kernel, and those needed next."""
        held, stride = min(self.y.reach, self.y.size), min(self.y.stride, self.y.size)
        return held + max(stride, self.y.needed(0))

    @property
    def hold(self) -> float:
        """Share of an image that is consumed before the first result."""
        return self.y.needed(0) / self.y.size

    @property
    def cycles(self) -> int:
        """Cycles between two images, from the arrival of rows and the output of windows."""
        send = self.x.windows * self.beats
        starts = self._starts([0] * (IMAGES * self.y.size), lambda start: start + send)
        return starts[-1] - starts[-1 - self.y.windows]

    def leaves(
        self, arrival: Tensor, parts: int, beats: int = 1, pace: int = 0, ahead: int = 1
    ) -> Tensor:
        """Returns the cycles in which the results of one image leave, without their latency.

        Args:
            arrival: int64 (input beats,): cycles in which the image arrives.
            parts: parts of a window, such as groups of channels, that have results of their own.
            beats: output beats of a part.
            pace: cycles in which the results of a part are computed; as fast as its taps by
                default.
            ahead: parts that are sent ahead of the one whose results are computed.
        """
        load, results = self.x.size * self.folds, list[int]()
        rows = (arrival.view(-1, load) - torch.arange(load)).amax(1) + load

        def send(start: int) -> int:
            for _ in range(self.x.windows * parts):
                if len(results) >= ahead:  # it waits for a place in the buffers
                    start = max(start, results[-ahead])
                results.append(max(start, results[-1] + pace if results else 0))
                start += self.beats // parts
            return start

        self._starts(rows.tolist(), send)
        inside = torch.arange(beats) * pace // beats
        return (torch.tensor(results)[:, None] + inside).flatten() - 1 - ARRIVAL

    def _starts(self, rows: Sequence[int], send: Callable[[int], int]) -> list[int]:
        """Returns the cycle of the first tap of each row of windows.

        Args:
            rows: for each image row, the first cycle after its arrival. Images follow one another.
            send: returns the cycle after the last tap of a row of windows from that of its first.
        """
        load, clock = self.x.size * self.folds, 0
        loaded: list[int] = []
        free, starts = [0] * self.ring, list[int]()
        for first in range(0, len(rows), self.y.size):
            for window in range(self.y.windows):
                needed = first + self.y.needed(window)
                while len(loaded) < needed:
                    # A row is loaded when a ring slot is free and the previous row is complete.
                    start = max(free[len(loaded)], loaded[-1] if loaded else 0)
                    loaded.append(max(start + load, rows[len(loaded)]))
                starts.append(max(clock, loaded[needed - 1] + ARRIVAL))
                clock = send(starts[-1])
                # Each finished row frees the slot of the row that comes a ring later.
                finished = first + self.y.finished(window) + self.ring
                free += [clock + LATENCY] * (finished - len(free))
        return starts

    def parameters(self, width: int, pad: int) -> dict[str, int]:
        """Returns the module parameters.

        Args:
            width: bits of a code.
            pad: code of the padding.
        """
        settings = {"LANES": self.lanes, "IN_W": width, "FOLDS": self.folds}
        for name, along in (("HEIGHT", self.y), ("WIDTH", self.x)):
            settings |= {f"IN_{name}": along.size, f"OUT_{name}": along.windows}
        for name, along in (("Y", self.y), ("X", self.x)):
            settings |= {f"KERNEL_{name}": along.kernel, f"STRIDE_{name}": along.stride}
            settings |= {f"PADDING_{name}": along.padding, f"DILATION_{name}": along.dilation}
        settings |= {"RING": self.ring, "PAD_CODE": pad}
        return settings if self.tap_lanes == 1 else settings | {"TAP_LANES": self.tap_lanes}

    def memory_bits(self, width: int) -> int:
        """Returns the bits of the ring buffers for codes of `width` bits."""
        return self.tap_lanes * self.ring * self.x.size * self.channels * width


def plan_max_pool(site: Site) -> ComponentPlan:
    """Plans the maximum of each window."""
    operator, (read,) = site.operator, site.inputs
    assert isinstance(operator, IntegerMaxPool1d | IntegerMaxPool2d)
    kernel = operator.kernel_size
    stride = kernel if operator.stride in (None, [], ()) else operator.stride
    settings = (kernel, stride, operator.padding, operator.dilation)
    shape = tuple(operator(torch.zeros(1, *read.shape, dtype=torch.int64)).shape[1:])
    slid = sliding(read, shape, *settings)
    window = with_lanes(slid, site, tap_choices=slid.tap_choices)
    out = channels_last(shape, read, window.lanes)
    return ComponentPlan(
        parameters=window.parameters(read.width, read.edge.low),
        lanes=(window.lanes,),
        out=out.of(operator.out),
        cycles=window.cycles,
        resources=Resources(memory_bits=window.memory_bits(read.width)),
        holds=(window.hold,),
        buffers=(0,),
        latency=WINDOW_STAGES + window.reduction + MAXIMUM_STAGES,
        leaves=partial(window.leaves, parts=window.folds),
    )


def plan_avg_pool(site: Site) -> ComponentPlan:
    """Plans the sum of each window, if all windows are alike."""
    operator, (read,) = site.operator, site.inputs
    assert isinstance(operator, AveragePool)
    if bool((operator.factor != 1).any()):
        raise ConfigError(f"{type(operator).__name__}: windows are divided by different counts")
    pairs = zip(read.shape[1:], operator.stretches, strict=True)
    axes = [_regular(size, stretches) for size, stretches in pairs]
    _check_channels_last(read)
    slid = _window(axes, read.shape[0])
    window = with_lanes(slid, site, tap_choices=slid.tap_choices)
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
        latency=WINDOW_STAGES + window.reduction + SUM_STAGES,
        leaves=partial(window.leaves, parts=window.folds),
    )


def _regular(size: int, stretches: Sequence[tuple[int, int]]) -> Axis:
    """Returns windows of one size at one distance that cover the given image sections.

    Raises:
        ConfigError: if there are none.
    """
    # Several pairs may describe the same sections; any of them gives the same sums.
    for stride in range(1, size + 1):
        for padding in range(size):
            axis = Axis(size, len(stretches), stretches[0][1] + padding, stride, padding)
            if list(stretches) == [axis.inside(window) for window in range(axis.windows)]:
                return axis
    raise ConfigError(f"windows over {stretches} differ in size or distance")


def sliding(
    read: Stream,
    shape: tuple[int, ...],
    kernel: Any,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
) -> Window:
    """Returns windows over an image, (channels, positions), with one lane.

    Args:
        read: image stream.
        shape: result shape: channels and windows.
        kernel: kernel size; like the other settings, one number or one per axis.
        stride: stride of the windows.
        padding: padding ahead of the image.
        dilation: dilation of the kernel.
    Raises:
        ConfigError: if channels are not the fastest dimension.
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
    # A one-dimensional image is a column, so its window slides over rows of one pixel.
    return Window(axes[0], axes[1] if len(axes) > 1 else Axis(1, 1, 1), channels)


def _check_channels_last(read: Stream) -> None:
    wanted = channels_last(read.shape, read).positions
    if not torch.equal(read.positions, wanted):
        raise OrderError("pixels are not sent one by one with channels last", {0: wanted})


def with_lanes(
    window: Window, site: Site, groups: int = 1, *, tap_choices: Sequence[int]
) -> Window:
    """Returns the window with the fewest lanes that reach a fold, or the fastest one.

    Each parallel tap needs its own ring buffer, so taps are parallel only if lanes do not suffice.

    Args:
        window: window with one lane.
        site: site of the operator.
        groups: channel groups; lanes belong to one group.
        tap_choices: allowed numbers of parallel taps, ascending.
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
    """Returns the stream of an image, (channels, positions), pixel by pixel."""
    channels, *sizes = shape
    size = torch.Size(shape).numel()
    places = torch.arange(size).view(*sizes, channels).movedim(-1, 0)
    return Stream(places, like.edge, lanes)
