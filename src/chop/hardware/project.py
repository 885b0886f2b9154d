"""Project: a design on the disk, as simulators and synthesis take it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from chop.config import parse
from chop.errors import CheckpointError, ConfigError
from chop.files import make_folder, write_json, write_text
from chop.hardware.design import Design
from chop.hardware.netlist import Boundary
from chop.hardware.port import Port

DESIGN = "design.json"


@dataclass(frozen=True)
class Project:
    """A design that was written into a folder.

    Attributes:
        top: name of the top module, in `rtl/TOP.sv`.
        ports: streams in and out, inputs first.
        streams: inner streams of the top module: name and bits.
        interval: cycles between two samples when nothing stalls.
        codes: for each port what its codes are: the graph's `node`, `step` (or one for each
            channel), `low`, `high`, `divisor`, the `shape` of a sample, and the `positions` at
            which its elements travel.
    """

    top: str
    ports: tuple[Port, ...]
    streams: tuple[tuple[str, int], ...]
    interval: int
    codes: Mapping[str, Any]


def project_of(design: Design) -> Project:
    """What `DESIGN` says of a design."""
    boundaries = [*design.netlist.inputs, *design.netlist.outputs]
    codes = {port.name: _codes(port) for port in boundaries}
    return Project(design.top, design.ports, design.streams, design.interval, codes)


def _codes(port: Boundary) -> dict[str, Any]:
    stream = port.wire.stream
    edge = stream.edge
    return {
        "node": port.node,
        "step": edge.steps if edge.step.dim() else edge.scalar_step,
        "low": edge.low,
        "high": edge.high,
        "divisor": edge.divisor,
        "shape": stream.shape,
        "positions": stream.positions.flatten().tolist(),
    }


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
    write_json(folder / DESIGN, asdict(project_of(design)))


def read_project(folder: Path) -> Project:
    """The project in a folder.

    Raises:
        CheckpointError: there is none, or it is broken.
    """
    path = folder / DESIGN
    try:
        project: Project = parse(Project, json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise CheckpointError(
            f"'{folder}' holds no {DESIGN}: expected a folder of chop emit."
        ) from None
    except (OSError, ValueError, ConfigError) as error:
        raise CheckpointError(f"'{path}' cannot be read: {error}") from None
    return project
