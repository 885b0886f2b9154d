"""Stall profiles: when a testbench offers and takes beats on ready/valid interfaces."""

from __future__ import annotations

from dataclasses import dataclass

ALWAYS = 256


@dataclass(frozen=True)
class Profile:
    """How often the two ends of a design's streams stall, each port on its own.

    Once an input port offers a beat it keeps it until it is taken, whatever the profile.

    Attributes:
        name: of the profile.
        valid: share of cycles, of 256, in which an input port with nothing on offer offers a beat.
        ready: share of cycles, of 256, in which an output port is ready.
        pause_every: in one of so many cycles, drawn at random, a port that does not pause begins
            to; 0 for never.
        pause_cycles: length of a pause, in which a port offers and takes nothing.
    """

    name: str
    valid: int = ALWAYS
    ready: int = ALWAYS
    pause_every: int = 0
    pause_cycles: int = 0


PROFILES = (
    Profile("none"),
    Profile("uniform", valid=128, ready=128),
    Profile("slow_reader", ready=32),
    # Longer than a row, so that every buffer behind the port runs full or empty.
    Profile("bursts", pause_every=128, pause_cycles=256),
)
"""The bursts are what finds units that lose a beat only when they are full for long."""
