"""Streams behind instances that only move codes, and their codes in another order."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from chop.hardware.design.plan import ComponentPlan
from chop.hardware.design.stream import Stream
from chop.hardware.design.values import Wire
from chop.hardware.plans.reorder import reorder_plan
from chop.nn.integer.resample import ZERO


@dataclass(frozen=True, eq=False)
class Origin:
    """The stream that an instance without arithmetic reads.

    Attributes:
        wire: the stream.
        places: int64 (result size,): position in it of each position of the result, or `ZERO`.
    """

    wire: Wire
    places: Tensor


class Origins:
    """Origins of the signals of instances that only move codes."""

    def __init__(self) -> None:
        self._origins: dict[str, Origin] = {}

    def __contains__(self, signal: str) -> bool:
        return signal in self._origins

    def add(self, signal: str, wire: Wire, places: Tensor, out: Stream) -> None:
        """Notes an instance.

        Args:
            signal: its result.
            wire: stream that it reads.
            places: int64, result shape: position in that stream of each element, or `ZERO`.
            out: stream of its result.
        """
        order = torch.empty(out.size, dtype=torch.int64)
        order[out.positions.flatten()] = places.flatten()
        self._origins[signal] = Origin(wire, order)

    def source(self, wire: Wire) -> tuple[Wire, Tensor]:
        """Returns the stream ahead of all moves, and the position in it of each element."""
        places = wire.stream.positions
        while wire.signal in self._origins:
            origin = self._origins[wire.signal]
            places = torch.where(places == ZERO, ZERO, origin.places[places])
            wire = origin.wire
        return wire, places

    def reordered(
        self, signal: str, wire: Wire, wanted: Tensor, fold: int
    ) -> tuple[ComponentPlan, Wire]:
        """Returns the plan of a stream in another order, and the stream that it reads.

        Args:
            signal: result of the instance.
            wire: the stream; it is read ahead of other moves.
            wanted: int64 positions, in a shape to which that of the stream broadcasts.
            fold: maximum cycles per sample.
        """
        source, places = self.source(wire)
        if source.stream.width != wire.stream.width:
            # A move added zeros, for which codes ahead of it have no room.
            source, places = wire, wire.stream.positions
        places = places.expand(wanted.shape)
        plan = reorder_plan(source.stream.of(wire.stream.edge), places, wanted, fold)
        self.add(signal, source, places, plan.out)
        return plan, source
