"""Test vectors: the input beats of a circuit, and the expected output beats."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from chop.base.files import make_folder, write_text
from chop.base.files.reading import read_text
from chop.errors import CheckpointError
from chop.hardware.check.project import Project
from chop.hardware.check.testbench import VECTORS
from chop.hardware.check.testbench import vectors as vector_text
from chop.hardware.design.design import Design
from chop.hardware.design.packing import unpack
from chop.hardware.design.port import Port

Codes = dict[str, Tensor]
"""int64 (samples, *shape), by port name."""


def get_codes(project: Project, golden: Mapping[str, Tensor]) -> Codes:
    """Returns the codes of all ports.

    Args:
        project: the design.
        golden: result of `chop.integer.golden.golden_values`.
    """
    codes = {}
    for port in project.ports:
        kind, described = "sent" if port.is_input else "received", project.codes[port.name]
        values = golden[f"{kind}.{described.node}"].long()
        codes[port.name] = values.movedim(described.batch_dim, 0)
    return codes


def write_vectors(design: Design, codes: Mapping[str, Tensor], folder: Path) -> None:
    """Writes the beats of all ports to `VECTORS/NAME.hex`."""
    make_folder(folder / VECTORS)
    streams = {b.name: b.wire.stream for b in (*design.netlist.inputs, *design.netlist.outputs)}
    for port in design.ports:
        beats = streams[port.name].sent(codes[port.name])
        write_text(folder / VECTORS / f"{port.name}.hex", vector_text(port, beats))


def read_vectors(folder: Path, project: Project) -> Codes:
    """Reads the codes of all ports from the files of `write_vectors`.

    Raises:
        CheckpointError: if a port's file is missing or has an incomplete sample.
    """
    return {port.name: _read(folder, project, port) for port in project.ports}


def _read(folder: Path, project: Project, port: Port) -> Tensor:
    path = folder / VECTORS / f"{port.name}.hex"
    try:
        words = [int(word, 16) for word in read_text(path, "vectors").split()]
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"'{path}' cannot be read: {error}; emit_cocotb_transform_pass writes it."
        ) from None
    if not words or len(words) % port.beats:
        raise CheckpointError(f"'{path}' has {len(words)} beats, with {port.beats} per sample.")
    size = (port.bits + 7) // 8
    beats = unpack(b"".join(word.to_bytes(size, "little") for word in words), port)
    positions = torch.tensor(project.codes[port.name].positions)
    flat = torch.from_numpy(beats).reshape(-1, port.beats * port.lanes)[:, positions]
    return flat.reshape(-1, *project.codes[port.name].shape)
