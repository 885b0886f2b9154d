"""Costs of a format assignment that are known before a trial: cost table and bit costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch

from chop.formats import NumberFormat
from chop.problems.mixed_precision.layers import FLOAT, Formats, Layer, Layers


@dataclass(frozen=True)
class Cost:
    """Cost in the cost table; less is better.

    Attributes:
        unit: unit in tables and on axes.
        is_of_circuit: True for circuit costs of `chop.problems.mixed_precision.circuit`, False for
            costs of the formats, see `Costs`.
    """

    unit: str
    is_of_circuit: bool = False


COSTS = {
    "bits": Cost("bits per weight"),
    "activation_bits": Cost("bits per input"),
    "bytes": Cost("bytes"),
    "bit_operations": Cost("bit operations per sample"),
    "lut": Cost("lookup tables", True),
    "ff": Cost("flip-flops", True),
    "dsp": Cost("multipliers", True),
    "bram": Cost("block memories", True),
    "interval": Cost("cycles between samples", True),
    "latency_us": Cost("microseconds from a sample to its last result", True),
}
"""Cost name -> cost, for goals and budgets."""
FLOAT_BITS = 32


@dataclass(frozen=True)
class _Stored:
    """Parameter and the layer operands that use it."""

    numel: int
    shape: torch.Size
    float_bits: int
    users: tuple[tuple[str, str], ...]

    def bits(self, chosen: Mapping[str, Formats]) -> float:
        """Returns the bits of all elements in the widest format of its uses."""
        formats = [chosen.get(name, {}).get(operand, FLOAT) for name, operand in self.users]
        return self.numel * max(bit_width(fmt, self.shape, self.float_bits) for fmt in formats)


@lru_cache(maxsize=2**16)  # an integer program asks for each layer once per choice and option
def bit_width(
    number_format: NumberFormat, shape: torch.Size, float_bits: int = FLOAT_BITS
) -> float:
    """Returns the bits per element of a tensor of this shape."""
    return float(float_bits) if number_format.is_identity else number_format.bits(shape)


class Costs:
    """Cost model of a format assignment.

    `bits`: average storage per element of the layers' parameters, including biases. A parameter
    shared by several layers counts once, in the widest format. `activation_bits`: average storage
    per element of the layers' inputs. `bytes`: storage of all parameters of the model.
    `bit_operations`: sum over the layers of (multiply-accumulates for one row of data) x (bits of
    data_in) x (bits of weight), as in van Baalen et al. 2020 (Bayesian Bits), arXiv:2005.07093,
    appendix B.2.1.
    """

    def __init__(self, layers: Layers) -> None:
        self.layers, self.by_name = layers, {x: layers.by_name[x] for x in layers.searched}
        users: dict[int, list[tuple[str, str]]] = {}
        tensors: dict[int, torch.Tensor] = {}
        for name, layer in self.by_name.items():
            for operand, x in layer.parameters().items():
                users.setdefault(id(x), []).append((name, operand))
                tensors[id(x)] = x
        self._stored = [
            _Stored(x.numel(), x.shape, x.dtype.itemsize * 8, tuple(users[key]))
            for key, x in tensors.items()
        ]
        self.numel = sum(stored.numel for stored in self._stored)
        every = layers.mg.model.parameters()
        self._other_bits = 8 * sum(x.nbytes for x in every if id(x) not in tensors)

    def __call__(self, chosen: Mapping[str, Formats]) -> dict[str, float]:
        """Returns the costs among `COSTS` that are not circuit costs."""
        stored = sum(stored.bits(chosen) for stored in self._stored)
        read, elements, operations = 0.0, 0.0, 0.0
        for name, layer in self.by_name.items():
            formats = chosen.get(name, {})
            bits, count = _inputs(layer, formats)
            read, elements = read + bits, elements + count
            operations += _bit_operations(layer, formats)
        return {
            "bits": stored / max(self.numel, 1),
            "activation_bits": read / max(elements, 1),
            "bytes": (stored + self._other_bits) / 8,
            "bit_operations": operations,
        }

    def ties(self, costs: Sequence[str]) -> list[set[tuple[str, str]]]:
        """Returns groups of layer operands whose contributions to these costs do not add up."""
        stored = [set(stored.users) for stored in self._stored if len(stored.users) > 1]
        products = [{(name, "data_in"), (name, "weight")} for name in self.by_name]
        is_stored = {"bits", "bytes"} & set(costs)
        is_product = any(COSTS[cost].is_of_circuit for cost in costs) or "bit_operations" in costs
        return (stored if is_stored else []) + (products if is_product else [])

    def share(self, name: str, operand: str, number_format: NumberFormat) -> float:
        """Returns an operand's share of `bits`; shared parameters count at their first use."""
        own = [stored for stored in self._stored if stored.users[0] == (name, operand)]
        bits = (s.numel * bit_width(number_format, s.shape, s.float_bits) for s in own)
        return sum(bits) / max(self.numel, 1)


def _inputs(layer: Layer, formats: Formats) -> tuple[float, float]:
    """Returns (bits, elements) of a layer's inputs for one row of data."""
    fmt = formats.get("data_in", FLOAT)
    bits_and_counts = [
        (count * bit_width(fmt, shape), count) for count, shape in layer.inputs.values()
    ]
    return sum(bits for bits, _ in bits_and_counts), sum(count for _, count in bits_and_counts)


def _bit_operations(layer: Layer, formats: Formats) -> float:
    shapes = [shape for _, shape in layer.inputs.values()]
    if not layer.macs or not shapes:
        return 0.0
    weight = layer.parameters().get("weight")
    data_bits = bit_width(formats.get("data_in", FLOAT), shapes[0])
    weight_shape = shapes[0] if weight is None else weight.shape
    return layer.macs * data_bits * bit_width(formats.get("weight", FLOAT), weight_shape)
