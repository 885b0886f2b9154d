"""Vectors: the beats that a circuit is sent, and those that it has to answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from chop.files import make_folder, write_text
from chop.hardware.design import Design
from chop.hardware.testbench import VECTORS
from chop.hardware.testbench import vectors as vector_text
from chop.integer.golden import golden_values
from chop.ir.graph import MaseGraph

Beats = dict[str, Tensor]
"""int64 (samples * beats, lanes), by the name of the port."""


def vectors(design: Design, mg: MaseGraph, batch: Mapping[str, Any]) -> Beats:
    """Beats of all ports.

    Args:
        design: the circuit.
        mg: the graph of integers that it was made from.
        batch: inputs of the graph by name; others are ignored.
    """
    golden = golden_values(mg, batch)
    found = {}
    for port in design.netlist.inputs:
        found[port.name] = port.wire.stream.sent(golden[f"sent.{port.node}"])
    for port in design.netlist.outputs:
        found[port.name] = port.wire.stream.sent(golden[f"received.{port.node}"])
    return found


def write_vectors(design: Design, batches: Sequence[Beats], folder: Path) -> int:
    """Writes the beats of all ports, `VECTORS/NAME.hex`.

    Args:
        design: the circuit.
        batches: in the order in which they are sent.
        folder: of the project.
    Returns: the number of samples.
    """
    make_folder(folder / VECTORS)
    samples = 0
    for port in design.ports:
        beats = torch.cat([batch[port.name] for batch in batches])
        samples = len(beats) // port.beats
        write_text(folder / VECTORS / f"{port.name}.hex", vector_text(port, beats))
    return samples
