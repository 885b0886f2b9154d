"""Project folder of a design, as simulators and synthesis read it."""

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
from chop.config import parse, with_checked_arguments
from chop.errors import CheckpointError, ConfigError
from chop.hardware.design.axis import FRAME_ERROR, outer_signals
from chop.hardware.design.design import Design
from chop.hardware.design.instances import Boundary
from chop.hardware.design.load import WEIGHTS, WORDS_FILE, Load, load_port
from chop.hardware.design.port import Port

DESIGN = "design.json"
BOARD = "board"
"""Folder of constraints and scripts of synthesis tools."""
BUILD = f"{BOARD}/build"
"""Folder with the results of these tools, which are no part of the circuit."""
NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
"""Pattern of names of modules, ports and streams, which become parts of sources and paths."""
WIDEST, LONGEST = 2**24, 2**40
"""Limits of a valid design file: bits of a beat, and cycles of a sample."""
_written: set[tuple[str, str]] = set()
"""Design files written by this process: path in the project and digest of the content."""


class ForeignCodeWarning(UserWarning):
    """Warning before SystemVerilog that this process did not write is compiled and run."""


@dataclass(frozen=True)
class PortCodes:
    """Meaning of the codes of a port.

    Attributes:
        node: node of the integer graph whose codes are transferred.
        step: real value of one code step, or one per channel.
        low: proven lower bound of the codes.
        high: proven upper bound of the codes.
        divisor: number by which the codes still have to be divided.
        shape: shape of one sample.
        positions: stream position of each element of a sample, the last dimension fastest.
        batch_dim: dimension of the samples in the node's tensor.
    """

    node: str
    step: float | tuple[float, ...]
    low: int
    high: int
    divisor: int
    shape: tuple[int, ...]
    positions: tuple[int, ...]
    batch_dim: int = 0


@dataclass(frozen=True)
class Fifo:
    """A FIFO in the top module.

    Attributes:
        name: instance name, without `u_`.
        source: inner stream at its input.
        target: inner stream at its output.
        depth: depth in beats.
    """

    name: str
    source: str
    target: str
    depth: int


@dataclass(frozen=True)
class Project:
    """A design that was written to a folder.

    Attributes:
        top: name of the top module, in `rtl/TOP.sv`.
        ports: input and output streams, inputs first.
        streams: name and bits of the inner streams of the top module.
        interval: cycles between two samples without stalls.
        codes: meaning of the codes of each port, by port name.
        fifos: FIFOs of the top module.
        wrapper: name of the module around the top module, with AXI ports; empty for none.
        loaded_words: words of 32 bits on the port `weights` after each reset; 0 for fixed weights.
    """

    top: str
    ports: tuple[Port, ...]
    streams: tuple[tuple[str, int], ...]
    interval: int
    codes: Mapping[str, PortCodes]
    fifos: tuple[Fifo, ...] = ()
    wrapper: str = ""
    loaded_words: int = 0

    @property
    def load(self) -> Port | None:
        """Port that takes the words of weights; None if all weights are fixed."""
        return load_port(self.loaded_words) if self.loaded_words else None

    @property
    def ends(self) -> tuple[Port, ...]:
        """All streams of the top module: its ports, and the words of weights behind them."""
        return self.ports if self.load is None else (*self.ports, self.load)

    @property
    def outermost(self) -> str:
        """Name of the module that a board instantiates: the wrapper, if there is one."""
        return self.wrapper or self.top

    @property
    def clock(self) -> str:
        """Clock of the outermost module."""
        return "aclk" if self.wrapper else "clk_i"

    @property
    def signals(self) -> list[tuple[str, int]]:
        """Name and bits of each signal of the outermost module."""
        if self.wrapper:
            outer = outer_signals(self.ends, self.wrapper)
            return [(self.clock, 1), ("aresetn", 1), *outer, (FRAME_ERROR, 1)]
        streams = [
            pair for port in self.ends for pair in zip(port.signals, (port.bits, 1, 1), strict=True)
        ]
        return [(self.clock, 1), ("rst_ni", 1), *streams]


def describe_project(design: Design) -> Project:
    """Returns the content of `DESIGN` for a design."""
    boundaries = [*design.netlist.inputs, *design.netlist.outputs]
    codes = {port.name: _codes(port) for port in boundaries}
    fifos = tuple(
        Fifo(link.name, link.source, link.targets[0], link.parameters["DEPTH"])
        for link in design.fifos
    )
    return Project(
        design.top,
        design.ports,
        design.streams,
        design.interval,
        codes,
        fifos,
        design.wrapper,
        0 if design.load is None else design.load.port.beats,
    )


def _codes(port: Boundary) -> PortCodes:
    stream = port.wire.stream
    edge = stream.edge
    step = tuple(edge.steps) if edge.step.dim() else edge.scalar_step
    positions = tuple(stream.positions.flatten().tolist())
    return PortCodes(
        port.node,
        step,
        edge.low,
        edge.high,
        edge.divisor,
        stream.shape,
        positions,
        port.wire.batch_dim,
    )


def write_design(design: Design, folder: Path, paths: Iterable[str] | None = None) -> None:
    """Writes the files of a design, and `DESIGN`.

    Args:
        design: the design.
        folder: project folder, created if missing.
        paths: files to write; default: all.
    Raises:
        WriteError: if the disk is full or read-only.
    """
    for path in design.files if paths is None else paths:
        make_folder((folder / path).parent)
        write_text(folder / path, design.files[path])
        # Digest of the text, since another process may have changed the file by now.
        _written.add(_mark(path, design.files[path].replace("\n", os.linesep).encode()))
    if design.load is not None:
        write_load(design.load, folder)
    write_json(folder / DESIGN, asdict(describe_project(design)))


def write_load(load: Load, folder: Path) -> None:
    """Writes the words of weights and their address map into the folder `WEIGHTS` of a project.

    Raises:
        WriteError: if the disk is full or read-only.
    """
    make_folder(folder / WEIGHTS)
    write_text(folder / WORDS_FILE, load.hex())
    write_text(folder / WEIGHTS / "weights.h", load.header())
    with writing(folder / WEIGHTS / "weights.bin"):
        (folder / WEIGHTS / "weights.bin").write_bytes(load.binary())


def link_sources(folder: Path) -> None:
    """Makes `hardware/rtl` of a project, MASE's source folder, a link to its `rtl`.

    An existing file or folder of that name is kept, with a warning.

    Raises:
        WriteError: if the folder is not writable or does not support links.
    """
    link, target = folder / "hardware" / "rtl", Path("..", "rtl")
    make_folder(link.parent)
    if link.is_symlink() or link.exists():
        if not link.is_symlink() or link.readlink() != target:
            warn_once(
                f"'{link}' was kept and does not link to the project's sources, '{folder / 'rtl'}'."
            )
        return
    with writing(link):
        link.symlink_to(target)


@with_checked_arguments
def read_project(folder: Path) -> Project:
    """Reads the project in a folder.

    Raises:
        CheckpointError: if there is no project, or it is damaged or has invalid names.
    """
    path = folder / DESIGN
    try:
        project: Project = parse(Project, read_json(path, "design"))
        _check_project(project)
    except FileNotFoundError:
        raise CheckpointError(
            f"'{folder}' has no {DESIGN}: expected an output folder of chop emit."
        ) from None
    except (OSError, ValueError, ConfigError) as error:
        raise CheckpointError(f"'{path}' cannot be read: {error}") from None
    return project


def _check_project(project: Project) -> None:
    """Raises ConfigError if a name is not valid in SystemVerilog, or a number is out of range."""
    names = [
        project.top,
        project.outermost,
        *(port.name for port in project.ports),
        *dict(project.streams),
    ]
    names += [name for fifo in project.fifos for name in (fifo.name, fifo.source, fifo.target)]
    for name in names:
        if not NAME.fullmatch(name):
            raise ConfigError(f"{name!r} is not a valid SystemVerilog name.")
    widths = [*dict(project.streams).values(), *(port.bits for port in project.ports)]
    times = [project.interval, *(port.beats for port in project.ends)]
    sizes = [size for port in project.ports for size in (port.lanes, port.width)]
    sizes += [fifo.depth for fifo in project.fifos]
    for numbers, most in ((widths, WIDEST), (sizes, WIDEST), (times, LONGEST)):
        wrong = next((number for number in numbers if not 0 < number <= most), None)
        if wrong is not None:
            raise ConfigError(
                f"expected 1 to {most} for stream sizes and the interval, got {wrong}."
            )
    if WEIGHTS in {port.name for port in project.ports}:
        raise ConfigError(f"'{WEIGHTS}' cannot be the name of a port for samples.")
    if not project.ports or {port.name for port in project.ports} - project.codes.keys():
        raise ConfigError("expected at least one port, and the codes of each port.")


def _mark(path: str, content: bytes) -> tuple[str, str]:
    return path, hashlib.sha256(content).hexdigest()


def _is_foreign(source: Path) -> bool:
    return _mark(f"rtl/{source.name}", read_bytes(source, "source")) not in _written


def list_sources(folder: Path) -> list[Path]:
    """Returns the sources that are compiled, sorted: all of `rtl/*.sv`, whoever wrote them."""
    return sorted((folder / "rtl").glob("*.sv"))


def source_text(path: Path) -> str:
    """Reads a source file of a project.

    Raises:
        CheckpointError: if it cannot be read.
    """
    with library_errors(path):
        return read_text(path, "vectors")


def warn_if_foreign(folder: Path) -> None:
    """Warns once before simulating a source that this process did not write.

    SystemVerilog can run any command through `$system` and embedded C++. Files are identified by
    content, because projects can be moved and other programs can write into the same folder.

    Raises:
        CheckpointError: if a source cannot be read.
    """
    try:
        foreign = [source for source in list_sources(folder) if _is_foreign(source)]
    except (OSError, ConfigError) as error:
        raise CheckpointError(f"a source of '{folder}' cannot be read: {error}") from None
    if foreign:
        more = f" (and {len(foreign) - 1} more)" if len(foreign) > 1 else ""
        warn_once(
            f"'{foreign[0].absolute()}'{more}: this process did not write this SystemVerilog. "
            "It is compiled and runs with your permissions. chop emit --check-only compares a "
            "folder of chop emit first.",
            ForeignCodeWarning,
        )
