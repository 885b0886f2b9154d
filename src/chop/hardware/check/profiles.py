"""Stall profiles: when a testbench offers and takes beats on ready/valid interfaces."""

from __future__ import annotations

from dataclasses import dataclass

from chop.hardware.design.port import Port

ALWAYS = 1 << 16
"""Share of all cycles."""
PAUSED_SAMPLES = 4
"""Intervals that a pause lasts."""


@dataclass(frozen=True)
class Profile:
    """How often the two ends of a design's streams stall, each port on its own.

    A design moves a port's beats at a pace of its own, beats of a sample over the interval of the
    design. Stalls are as slow as that, or a design that is slower than they are would never see
    them. Once an input port offers a beat it keeps it until it is taken, whatever the profile.

    Attributes:
        name: of the profile.
        valid: most cycles, as a share, in which an input port with nothing on offer offers a beat.
        ready: most cycles, as a share, in which an output port is ready.
        valid_pace: how often an input port may offer one, as a multiple of its pace; 0: no bound.
        ready_pace: how often an output port may be ready, likewise.
        pauses: least length in cycles of pauses, in which a port offers and takes nothing; they
            last four intervals, more than a design stores, and it is twice as long to the next
            one; 0 for none.
        is_even: input ports offer beats evenly, those of a sample over the interval, and catch up
            when they had to wait; of Verilator alone.
    """

    name: str
    valid: float = 1.0
    ready: float = 1.0
    valid_pace: float = 0.0
    ready_pace: float = 0.0
    pauses: int = 0
    is_even: bool = False

    def share(self, port: Port, interval: int) -> int:
        """Share of cycles, of `ALWAYS`, in which a port that does not pause may move.

        Args:
            port: of the design.
            interval: of the design: cycles between two samples.
        """
        most, pace = (
            (self.valid, self.valid_pace) if port.is_input else (self.ready, self.ready_pace)
        )
        bound = pace * port.beats / interval if pace else 1.0
        return max(round(ALWAYS * min(most, bound)), 1)

    def pace(self, port: Port, interval: int) -> tuple[int, int]:
        """Beats that an input port may offer, evenly, in so many cycles; 0 cycles: no bound.

        Args:
            port: of the design.
            interval: of the design: cycles between two samples.
        """
        return (port.beats, interval) if self.is_even and port.is_input else (1, 0)

    def pause_cycles(self, interval: int) -> int:
        """Length of a pause; 0 for none."""
        return max(self.pauses, PAUSED_SAMPLES * interval) if self.pauses else 0

    def pause_every(self, interval: int) -> int:
        """In one of so many cycles, drawn at random, a port begins to pause; 0 for never."""
        return 2 * self.pause_cycles(interval)


PROFILES = (
    Profile("none"),
    Profile("uniform", valid=0.5, ready=0.5, valid_pace=1.0, ready_pace=1.0),
    Profile("slow_reader", ready=0.125, ready_pace=0.5),
    # Longer than a row at least, so that every buffer behind the port runs full or empty.
    Profile("bursts", pauses=256),
)
"""The bursts are what finds units that lose a beat only when they are full for long."""
EVEN_INPUT = Profile("even_input", is_even=True)
"""No stalls, and no sample ahead of its time: FIFOs store what full speed needs, and no more."""
