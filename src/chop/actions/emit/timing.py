"""Latency and initiation interval of an emitted circuit, in cycles and in microseconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from chop.hardware.design.design import Design
from chop.report.report import Block, Cell, Heading, Note, Table, Tile

LATENCY = "latency, first beat in to last beat out"
INTERVAL = "interval between two samples"


def circuit_timing(
    design: Design,
    simulations: Sequence[Mapping[str, Any]],
    placement: Mapping[str, Any],
    clock_mhz: float,
) -> dict[str, Any]:
    """Computes latency and interval of a circuit.

    Args:
        design: the circuit.
        simulations: rows of the verification, the first one without stalls.
        placement: placement in the result, empty if the circuit is not placed.
        clock_mhz: clock frequency for microseconds, if the circuit is not placed.
    """
    clock = float(placement["frequency_mhz"]) if placement else clock_mhz
    simulated, *others = simulations
    cycles = {"latency": simulated["latency"], "interval": simulated["interval"]}
    cycles["interval"] = cycles["interval"] or design.interval
    return {
        "clock_mhz": clock,
        "is_placed": bool(placement),
        "latency_cycles": cycles["latency"],
        "planned_latency_cycles": design.connections.schedule.latency(design.netlist),
        "stalled_latency_cycles": {
            row["profile"]: row["latency"]
            for row in others
            if row["simulator"] == simulated["simulator"]
        },
        "interval_cycles": cycles["interval"],
        "planned_interval_cycles": design.interval,
        "latency_us": cycles["latency"] / clock,
        "interval_us": cycles["interval"] / clock,
        "samples_per_second": round(1e6 * clock / cycles["interval"]),
    }


def _clock_text(timing: Mapping[str, Any]) -> str:
    """Formats the clock frequency with its source."""
    source = "after routing" if timing["is_placed"] else "assumed"
    return f"{timing['clock_mhz']:,.6g} MHz ({source})"


def timing_blocks(timing: Mapping[str, Any]) -> list[Block]:
    """Returns the table of latency and interval with its heading.

    Stall profiles that did not delay the first sample have no row.
    """
    rows: list[dict[str, Any]] = [
        {
            "time": name,
            "cycles": Cell.of(timing[f"{key}_cycles"], ",.6g"),
            "planned cycles": Cell.of(timing[f"planned_{key}_cycles"], ","),
            "microseconds": Cell.of(timing[f"{key}_us"], ",.4g"),
        }
        for key, name in (("latency", LATENCY), ("interval", INTERVAL))
    ]
    rows[1:1] = [
        {
            "time": f"latency, stalls: {profile.replace('_', ' ')}",
            "cycles": Cell.of(cycles, ","),
            "planned cycles": None,
            "microseconds": Cell.of(cycles / timing["clock_mhz"], ",.4g"),
        }
        for profile, cycles in timing["stalled_latency_cycles"].items()
        if cycles != timing["latency_cycles"]
    ]
    return [Heading("Timing"), Table(f"Timing at {_clock_text(timing)}", rows), _note(timing)]


def _note(timing: Mapping[str, Any]) -> Note:
    pace = f"{timing['samples_per_second']:,} samples per second at {_clock_text(timing)}."
    if timing["is_placed"]:
        return Note(pace, is_printed=False)
    return Note(
        f"{pace} --clock-mhz sets another clock frequency; --place measures the one that the "
        "circuit reaches on an ECP5 or iCE40.",
        is_printed=False,
    )


def latency_tile(timing: Mapping[str, Any]) -> Tile:
    """Returns the tile with the latency in microseconds, cycles and clock."""
    microseconds = Cell(timing["latency_us"], f"{timing['latency_us']:,.4g} µs")
    return Tile(
        "latency", microseconds, f"{timing['latency_cycles']:,} cycles, {_clock_text(timing)}"
    )
