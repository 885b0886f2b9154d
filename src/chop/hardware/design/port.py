"""Ports: input and output streams of a circuit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from chop.hardware.design.stream import Stream


@dataclass(frozen=True)
class Port:
    """A ready/valid interface of a top module.

    An input has the signals `NAME_i`, `NAME_valid_i` and `NAME_ready_o`; an output has `NAME_o`,
    `NAME_valid_o` and `NAME_ready_i`.

    Attributes:
        name: port name.
        lanes: codes in one beat.
        width: bits of one code.
        beats: beats of one sample.
        is_input: True for an input.
    """

    name: str
    lanes: int
    width: int
    beats: int
    is_input: bool

    @classmethod
    def of(cls, name: str, stream: Stream, is_input: bool) -> Self:
        """Returns the port of a stream."""
        return cls(name, stream.lanes, stream.width, stream.beats, is_input)

    @property
    def bits(self) -> int:
        """Bits of one beat."""
        return self.lanes * self.width

    @property
    def bytes(self) -> int:
        """Whole bytes that hold the bits of a beat."""
        return -(-self.bits // 8)

    @property
    def signals(self) -> tuple[str, str, str]:
        """Names of the data, valid and ready signals."""
        ahead, back = ("i", "o") if self.is_input else ("o", "i")
        return f"{self.name}_{ahead}", f"{self.name}_valid_{ahead}", f"{self.name}_ready_{back}"

    def declaration(self) -> list[str]:
        """Port declarations in the module header."""
        ahead, back = ("input ", "output") if self.is_input else ("output", "input ")
        data, valid, ready = self.signals
        bits = f"[{self.bits - 1}:0] "
        return [f"{ahead} logic {bits}{data}", f"{ahead} logic {valid}", f"{back} logic {ready}"]
