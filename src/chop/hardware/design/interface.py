"""Interface description of a circuit: meaning of each port's codes and element order."""

from __future__ import annotations

import itertools
import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from chop.hardware.design.instances import Boundary, Netlist
from chop.hardware.design.port import Port
from chop.hardware.design.stream import Stream
from chop.nn.integer import Edge

COMMENT_COLUMNS = 98
MOST_DIMS = 5
"""Maximum number of dimensions for which an order description is searched."""


@dataclass(frozen=True)
class PortDescription:
    """Description of a port for the engineer who connects it.

    Attributes:
        port: lanes, width and beats.
        low: minimum code.
        high: maximum code.
        step: real value of one code step.
        shape: shape of a sample.
        order: order in which its elements are transferred.
    """

    port: Port
    low: int
    high: int
    step: str
    shape: tuple[int, ...]
    order: str

    @property
    def row(self) -> dict[str, int | str]:
        """Returns a row of the interface table."""
        port = self.port
        return {
            "port": port.name,
            "direction": "in" if port.is_input else "out",
            "signals": ", ".join(port.signals),
            "lanes": port.lanes,
            "bits": port.width,
            "beats": port.beats,
            "codes": f"{self.low:,} to {self.high:,}",
            "value of a code": self.step,
            "sample": shape_text(self.shape),
            "order": self.order,
        }

    @property
    def comment(self) -> str:
        """Returns the comment above the port's signals."""
        port = self.port
        way = "Input" if port.is_input else "Output"
        lanes = f"{port.lanes} lane{'s' * (port.lanes != 1)} of {port.width} bits"
        places = f", lane 0 in the lowest {port.width}" if port.lanes > 1 else ""
        beats = f"{port.beats:,} beat{'s' * (port.beats != 1)} a sample"
        return (
            f"{way} {port.name}: {lanes}, two's complement{places}; {beats}. "
            f"Codes: {self.low} to {self.high}. Value of a code: {self.step}. "
            f"Sample: {shape_text(self.shape)}. Order: {self.order}."
        )

    def comment_lines(self) -> list[str]:
        """Returns the lines of `comment` in a module header, with `//`."""
        return textwrap.wrap(
            self.comment, COMMENT_COLUMNS, initial_indent="// ", subsequent_indent="// "
        )


def describe_interface(netlist: Netlist) -> list[PortDescription]:
    """Describes the ports of a circuit, inputs first."""
    inputs = [_described(port, True) for port in netlist.inputs]
    return inputs + [_described(port, False) for port in netlist.outputs]


def _described(boundary: Boundary, is_input: bool) -> PortDescription:
    stream = boundary.wire.stream
    edge = stream.edge
    return PortDescription(
        Port.of(boundary.name, stream, is_input),
        edge.low,
        edge.high,
        step_text(edge, boundary.name),
        stream.shape,
        order_text(stream, boundary.name),
    )


def shape_text(shape: Sequence[int]) -> str:
    """Formats the shape of a sample.

    >>> shape_text((3, 8, 8)), shape_text(())
    ('3 x 8 x 8', 'one number')
    """
    return " x ".join(map(str, shape)) or "one number"


def step_text(edge: Edge, name: str) -> str:
    """Formats the value of one code step, exactly if it is a power of two.

    Args:
        edge: meaning of the codes.
        name: port name. `design.json` lists all its steps.
    """
    if edge.is_trained:
        return f"a scale of the weights, codes.{name}.step in design.json"
    steps = sorted(set(edge.steps))
    divided = f" / {edge.divisor}" if edge.divisor != 1 else ""
    if len(steps) == 1:
        return f"{number_text(steps[0])}{divided}"
    ends = f"{number_text(steps[0])} to {number_text(steps[-1])}"
    where = f"dimension {edge.axis}, codes.{name}.step in design.json"
    return f"{ends}{divided}, by channel ({where})"


def number_text(step: float) -> str:
    """Formats a step, as a power of two if it is one.

    >>> number_text(0.0625), number_text(0.1), number_text(1.0)
    ('2^-4', '0.1', '1')
    """
    mantissa, exponent = math.frexp(step)
    return f"2^{exponent - 1}" if mantissa == 0.5 and step != 1 else f"{step:.9g}"


def order_text(stream: Stream, name: str) -> str:
    """Describes the order in which the elements of a sample are transferred.

    Args:
        stream: stream of the port.
        name: port name. `design.json` lists the position of each element.
    """
    dims = [dim for dim, size in enumerate(stream.shape) if size > 1]
    if len(dims) <= 1 and bool((stream.positions.flatten() == torch.arange(stream.size)).all()):
        return "from the first element to the last"
    for order in itertools.permutations(dims) if len(dims) <= MOST_DIMS else ():
        if _travels_by(stream, order):
            usual = " (row-major)" if list(order) == dims else ""
            return f"dimension {order[-1]} fastest, then {_listed(order[-2::-1])}{usual}"
    return f"by table, codes.{name}.positions in design.json"


def _travels_by(stream: Stream, order: Sequence[int]) -> bool:
    """Returns whether a stream sends the dimensions in this order, the last one fastest."""
    # Dimensions of size one do not change the order, wherever they are.
    rest = [dim for dim in range(len(stream.shape)) if dim not in order]
    sent = stream.positions.permute(*rest, *order).flatten()
    return bool((sent == torch.arange(stream.size)).all())


def _listed(dims: Sequence[int]) -> str:
    return ", ".join(map(str, dims))
