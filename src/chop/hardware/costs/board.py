"""Files for a board: pin constraints, clock constraints, synthesis scripts, and a C header."""

from __future__ import annotations

import re
from pathlib import Path

from chop.base.files import make_folder, write_text
from chop.base.files.library_errors import library_errors
from chop.base.files.reading import read_text
from chop.errors import ConfigError
from chop.hardware.check.project import BOARD, Project, list_sources
from chop.hardware.costs.devices import DEVICES, LARGE_CELLS, Router
from chop.hardware.design.axis import has_control
from chop.hardware.design.interface import shape_text
from chop.hardware.design.load import REGISTERS
from chop.hardware.templates import render

SCRIPTS = ("Makefile", "vivado.tcl", "quartus.tcl")
HEADER = "chop_circuit.h"
"""C header with the sizes of the ports and the addresses of registers, for a driver."""
CLOCKS = ("xdc", "sdc", "lpf")
"""Suffixes of the clock constraints, `TOP.SUFFIX`."""
_LOCATED = {
    "lpf": re.compile(r'\bLOCATE\s+COMP\s+"?([^"\s]+)"?\s+SITE\s+"?(?!SITE\b)(\w+)', re.IGNORECASE),
    "pcf": re.compile(
        r"\bset_io(?:\s+-nowarn|\s+--warn-no-port|\s+-pullup\w*\s+\S+)*"
        r"\s+([^-\s]\S*)[ \t]+(?!SITE\b)(\w+)"
    ),
}
"""Pins with a site, by the suffix of the file. `SITE` itself is the placeholder of examples."""
_COMMENT = re.compile(r"(?:#|//).*")


def routers() -> dict[str, Router]:
    """Returns the place-and-route tools by device."""
    return {device.name: device.router for device in DEVICES.values() if device.router}


def pin_names(project: Project) -> list[str]:
    """Returns the pins of the outermost module, one per bit, as nextpnr names them."""
    return [
        f"{name}[{bit}]" if bits > 1 else name
        for name, bits in project.signals
        for bit in range(bits)
    ]


def check_pins_file(path: Path, device: str) -> None:
    """Checks that a file with pin constraints fits the device family.

    Raises:
        ConfigError: if the file is missing, or its suffix is that of another family.
    """
    target = DEVICES.get(device)
    if target is None or target.router is None:
        return  # reported by `check_device`
    if path.suffix != f".{target.router.pins}":
        raise ConfigError(
            f"pins: '{path}' is not a .{target.router.pins} file, which {device} "
            f"({target.family.title}) needs."
        )
    if not path.is_file():
        raise ConfigError(f"pins: '{path}' does not exist.")


def check_pins(path: Path, project: Project) -> None:
    """Checks that a file with pin constraints has a site for each pin of a project.

    Raises:
        ConfigError: if a pin has no site of its own, or the file cannot be read.
    """
    text = _COMMENT.sub("", _read_pins(path))
    located = dict(_LOCATED[path.suffix[1:]].findall(text))
    pins = pin_names(project)
    missing = [name for name in pins if name not in located]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise ConfigError(
            f"pins: '{path}' has no site for '{missing[0]}'{more} of the {len(pins)} pins of "
            f"{project.outermost}: without pins, chop emit writes an example with all of them, "
            f"{BOARD}/pins{path.suffix}.example."
        )
    pin_by_site: dict[str, str] = {}
    for pin in pins:
        other = pin_by_site.setdefault(located[pin], pin)
        if other != pin:
            raise ConfigError(
                f"pins: '{path}' gives the site {located[pin]} to '{other}' and to '{pin}'; each "
                "pin needs its own."
            )


def write_board(
    folder: Path,
    project: Project,
    clock_mhz: float,
    device: str,
    has_multipliers: bool = True,
    pins: Path | None = None,
) -> None:
    """Writes the folder `BOARD` of a project.

    It has clock constraints, scripts for Vivado, Quartus, and Yosys with nextpnr, an example of pin
    constraints for each family that nextpnr supports, and a C header for drivers.

    Args:
        folder: project folder with its sources and memories.
        project: its content.
        clock_mhz: clock frequency in MHz.
        device: default device of the Makefile, if nextpnr supports it; else `ecp5-85`.
        has_multipliers: False if products are built from lookup tables.
        pins: pin constraints to copy.
    Raises:
        WriteError: if the disk is full or read-only.
    """
    board, top = folder / BOARD, project.outermost
    make_folder(board)
    memories = sorted(path.relative_to(folder).as_posix() for path in folder.glob("memory/*.hex"))
    values = {
        "top": top,
        "clock": project.clock,
        "mhz": f"{clock_mhz:g}",
        "period": f"{1000 / clock_mhz:.4f}",
        "sources": [path.relative_to(folder).as_posix() for path in list_sources(folder)],
        "memories": memories,
        "has_multipliers": has_multipliers,
        "signals": [
            f"{name}[*]" if bits > 1 else name
            for name, bits in project.signals
            if name != project.clock
        ],
        "routers": routers(),
        "large": f"{LARGE_CELLS:,}",
        "device": device if device in routers() else "ecp5-85",
    }
    for name in SCRIPTS:
        write_text(board / name, render(name, **values))
    for suffix in CLOCKS:
        write_text(board / f"{top}.{suffix}", render(f"clock.{suffix}", **values))
    for suffix in _LOCATED:
        names = [name for name, router in routers().items() if router.pins == suffix]
        text = render(
            f"pins.{suffix}.example", top=top, devices=", ".join(names), pins=pin_names(project)
        )
        write_text(board / f"pins.{suffix}.example", text)
    write_text(board / HEADER, _describe_ports(project))
    if pins is not None:
        write_text(board / f"pins{pins.suffix}", _read_pins(pins))


def _describe_ports(project: Project) -> str:
    """Returns the C header of a project's ports, and of its registers if it has some."""
    ports = []
    for port in project.ports:
        codes = project.codes[port.name]
        order = sorted(range(len(codes.positions)), key=codes.positions.__getitem__)
        ports.append((port, codes, [] if order == sorted(order) else order))
    registers = REGISTERS if has_control(project.wrapper) else ()
    values = {"top": project.outermost, "ports": ports, "registers": registers}
    return render(HEADER, **values, shape_text=shape_text)


def _read_pins(path: Path) -> str:
    with library_errors(path, error=ConfigError):
        return read_text(path, "settings")
