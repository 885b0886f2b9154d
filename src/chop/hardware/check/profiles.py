"""Stall profiles (back-pressure): cycles in which a testbench offers and accepts beats."""

from __future__ import annotations

from dataclasses import dataclass

from chop.hardware.design.port import Port

ALWAYS = 1 << 16
"""Integer that represents a share of 100 % of the cycles."""
PAUSED_SAMPLES = 4
"""Duration of a pause, in intervals."""


@dataclass(frozen=True)
class Profile:
    """Stall frequency at both ends of a design's streams, independent for each port.

    Each port has a pace: the beats of a sample divided by the design's interval. Stalls scale with
    this pace, since a design slower than the stalls would never be affected by them. An input port
    holds a beat that it offers until the design accepts it, under every profile.

    Attributes:
        name: name of the profile.
        valid: largest share of cycles in which an idle input port offers a new beat.
        ready: largest share of cycles in which an output port is ready.
        valid_pace: rate of offers on an input port, as a multiple of its pace; 0 means no limit.
        ready_pace: rate of ready cycles on an output port, as a multiple of its pace; 0 means no
            limit.
        pauses: minimum length of pauses in cycles, during which a port neither offers nor accepts
            beats. A pause lasts four intervals, more than a design stores, and the next one follows
            after twice that time. 0 means no pauses.
        is_even: input ports spread the beats of a sample evenly over the interval, and catch up
            after a wait. Verilator only.
    """

    name: str
    valid: float = 1.0
    ready: float = 1.0
    valid_pace: float = 0.0
    ready_pace: float = 0.0
    pauses: int = 0
    is_even: bool = False

    def share(self, port: Port, interval: int) -> int:
        """Returns the share of cycles, relative to `ALWAYS`, in which a port may transfer.

        Args:
            port: port of the design.
            interval: cycles between two samples of the design.
        """
        most, pace = (
            (self.valid, self.valid_pace) if port.is_input else (self.ready, self.ready_pace)
        )
        bound = pace * port.beats / interval if pace else 1.0
        return max(round(ALWAYS * min(most, bound)), 1)

    def pace(self, port: Port, interval: int) -> tuple[int, int]:
        """Returns the beats that an input port may offer evenly in a number of cycles.

        Args:
            port: port of the design.
            interval: cycles between two samples of the design.
        Returns: beats and cycles; 0 cycles mean no limit.
        """
        return (port.beats, interval) if self.is_even and port.is_input else (1, 0)

    def pause_cycles(self, interval: int) -> int:
        """Returns the length of a pause in cycles; 0 means no pauses."""
        return max(self.pauses, PAUSED_SAMPLES * interval) if self.pauses else 0

    def pause_every(self, interval: int) -> int:
        """Returns the mean number of cycles from one pause to the next; 0 means no pauses."""
        return 2 * self.pause_cycles(interval)


PROFILES = (
    Profile("none"),
    Profile("uniform", valid=0.5, ready=0.5, valid_pace=1.0, ready_pace=1.0),
    Profile("slow_reader", ready=0.125, ready_pace=0.5),
    # Longer than a row at least, so that every buffer behind the port runs full or empty.
    Profile("bursts", pauses=256),
)
"""Standard stall profiles. Bursts detect units that lose a beat after being full for long."""
EVEN_INPUT = Profile("even_input", is_even=True)
"""Profile without stalls or early samples: FIFOs store only what full throughput needs."""
