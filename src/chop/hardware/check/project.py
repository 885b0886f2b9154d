"""Project: a design on the disk, as simulators and synthesis take it."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from chop.base.files import make_folder, write_json, write_text, writing
from chop.base.files.documents import read_json
from chop.base.files.library_errors import library_errors
from chop.base.files.reading import read_bytes, read_text
from chop.base.notices import warn_once
from chop.config import parse
from chop.errors import CheckpointError, ConfigError
from chop.hardware.design.design import Design
from chop.hardware.design.netlist import Boundary
from chop.hardware.design.port import Port

DESIGN = "design.json"
NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
"""Of a module, a port or a stream. Names become parts of sources, commands and paths."""
WIDEST, LONGEST = 2**24, 2**40
"""Bits of a beat, and cycles of a sample, beyond which a file is no design."""
_written: set[tuple[str, str]] = set()
"""Files of designs that this process wrote: path in the project, and digest of the content."""


class ForeignCodeWarning(UserWarning):
    """SystemVerilog is compiled and run that this process did not write."""


@dataclass(frozen=True)
class PortCodes:
    """What the codes of a port are.

    Attributes:
        node: of the graph of integers whose codes they are.
        step: of a code, or one for each channel.
        low: proven bound of the codes.
        high: the other one.
        divisor: what they still have to be divided by.
        shape: of one sample.
        positions: place in the stream of each element of a sample, the last dimension fastest.
    """

    node: str
    step: float | tuple[float, ...]
    low: int
    high: int
    divisor: int
    shape: tuple[int, ...]
    positions: tuple[int, ...]


@dataclass(frozen=True)
class Fifo:
    """A FIFO of the top module.

    Attributes:
        name: of the instance, without `u_`.
        source: the inner stream that it takes.
        target: the one that it gives.
        depth: in beats.
    """

    name: str
    source: str
    target: str
    depth: int


@dataclass(frozen=True)
class Project:
    """A design that was written into a folder.

    Attributes:
        top: name of the top module, in `rtl/TOP.sv`.
        ports: streams in and out, inputs first.
        streams: inner streams of the top module: name and bits.
        interval: cycles between two samples when nothing stalls.
        codes: what the codes of each port are, by its name.
        fifos: those of the top module.
    """

    top: str
    ports: tuple[Port, ...]
    streams: tuple[tuple[str, int], ...]
    interval: int
    codes: Mapping[str, PortCodes]
    fifos: tuple[Fifo, ...] = ()


def describe_project(design: Design) -> Project:
    """What `DESIGN` says of a design."""
    boundaries = [*design.netlist.inputs, *design.netlist.outputs]
    codes = {port.name: _codes(port) for port in boundaries}
    fifos = tuple(
        Fifo(link.name, link.source, link.targets[0], link.parameters["DEPTH"])
        for link in design.fifos
    )
    return Project(design.top, design.ports, design.streams, design.interval, codes, fifos)


def _codes(port: Boundary) -> PortCodes:
    stream = port.wire.stream
    edge = stream.edge
    step = tuple(edge.steps) if edge.step.dim() else edge.scalar_step
    positions = tuple(stream.positions.flatten().tolist())
    return PortCodes(port.node, step, edge.low, edge.high, edge.divisor, stream.shape, positions)


def write_design(design: Design, folder: Path, paths: Iterable[str] | None = None) -> None:
    """Writes the files of a design, and `DESIGN`.

    Args:
        design: the design.
        folder: of the project; made if missing.
        paths: which of its files; default, all.
    Raises:
        WriteError: the disk is full or read-only.
    """
    for path in design.files if paths is None else paths:
        make_folder((folder / path).parent)
        write_text(folder / path, design.files[path])
        # Of the text and not of the file, which another process may have changed by now.
        _written.add(_mark(path, design.files[path].replace("\n", os.linesep).encode()))
    write_json(folder / DESIGN, asdict(describe_project(design)))


def link_sources(folder: Path) -> None:
    """Makes `hardware/rtl` of a project a link to its `rtl`: where MASE has the sources.

    What is there already stays, with a warning if it is no such link.

    Raises:
        WriteError: the folder cannot be written to, or takes no links.
    """
    link, target = folder / "hardware" / "rtl", Path("..", "rtl")
    make_folder(link.parent)
    if link.is_symlink() or link.exists():
        if not link.is_symlink() or link.readlink() != target:
            warn_once(f"'{link}' is not of this project, whose sources are in '{folder / 'rtl'}'.")
        return
    with writing(link):
        link.symlink_to(target)


def read_project(folder: Path) -> Project:
    """The project in a folder.

    Raises:
        CheckpointError: there is none, or it is broken: a name is none of SystemVerilog.
    """
    path = folder / DESIGN
    try:
        project: Project = parse(Project, read_json(path, "design"))
        _check_project(project)
    except FileNotFoundError:
        raise CheckpointError(
            f"'{folder}' holds no {DESIGN}: expected a folder of chop emit."
        ) from None
    except (OSError, ValueError, ConfigError) as error:
        raise CheckpointError(f"'{path}' cannot be read: {error}") from None
    return project


def _check_project(project: Project) -> None:
    """Raises ConfigError where a name is none of SystemVerilog, or a number is no size."""
    names = [project.top, *(port.name for port in project.ports), *dict(project.streams)]
    names += [name for fifo in project.fifos for name in (fifo.name, fifo.source, fifo.target)]
    for name in names:
        if not NAME.fullmatch(name):
            raise ConfigError(f"{name!r} is no name of SystemVerilog.")
    widths = [*dict(project.streams).values(), *(port.bits for port in project.ports)]
    times = [project.interval, *(port.beats for port in project.ports)]
    sizes = [size for port in project.ports for size in (port.lanes, port.width)]
    sizes += [fifo.depth for fifo in project.fifos]
    for numbers, most in ((widths, WIDEST), (sizes, WIDEST), (times, LONGEST)):
        wrong = next((number for number in numbers if not 0 < number <= most), None)
        if wrong is not None:
            raise ConfigError(f"got {wrong}, of a stream or the interval: expected 1 to {most}.")
    if not project.ports or {port.name for port in project.ports} - project.codes.keys():
        raise ConfigError("there have to be ports, and codes of each.")


def _mark(path: str, content: bytes) -> tuple[str, str]:
    return path, hashlib.sha256(content).hexdigest()


def _is_foreign(source: Path) -> bool:
    return _mark(f"rtl/{source.name}", read_bytes(source, "source")) not in _written


def list_sources(folder: Path) -> list[Path]:
    """The files of a project that are compiled, sorted: all of `rtl/*.sv`, whoever wrote them."""
    return sorted((folder / "rtl").glob("*.sv"))


def source_text(path: Path) -> str:
    """The text of a file of a project.

    Raises:
        CheckpointError: it cannot be read.
    """
    with library_errors(path):
        return read_text(path, "vectors")


def warn_if_foreign(folder: Path) -> None:
    """Warns once where a source of a project is simulated that this process did not write.

    SystemVerilog is code: `$system` and C++ in it run any command. A file is known by its content:
    a project may be moved, and others may write into the same folder.

    Raises:
        CheckpointError: a source cannot be read.
    """
    try:
        foreign = [source for source in list_sources(folder) if _is_foreign(source)]
    except (OSError, ConfigError) as error:
        raise CheckpointError(f"a source of '{folder}' cannot be read: {error}") from None
    if foreign:
        more = f" (and {len(foreign) - 1} more)" if len(foreign) > 1 else ""
        warn_once(
            f"'{foreign[0].absolute()}'{more}: SystemVerilog, which this process did not write, is "
            "compiled and run with your permissions. chop emit --check-only compares a folder of "
            "chop emit first.",
            ForeignCodeWarning,
        )
