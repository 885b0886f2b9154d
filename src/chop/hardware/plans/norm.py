"""Plan of LayerNorm and RMSNorm."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from torch import Tensor

from chop.hardware.design.lanes import converter_cycles, divisors, first_within
from chop.hardware.design.plan import ComponentPlan, Memory, Resources, Site
from chop.hardware.design.stream import Rows, Stream
from chop.hardware.plans.softmax import PIPELINE, reciprocal_cycles, row_ends
from chop.hardware.plans.weighted import parameter_widths
from chop.nn.integer import IntegerLayerNorm, IntegerRMSNorm
from chop.nn.integer.edge import bit_width

STAGES = 27
"""Cycles from a row's last code to its first result, without root and division."""
Norm = IntegerLayerNorm | IntegerRMSNorm


class _Units(NamedTuple):
    """Cycles of the units that compute one bit per cycle.

    Attributes:
        root: cycles of a square root.
        division: cycles of a reciprocal.
    """

    root: int
    division: int

    def interval(self, beats: int) -> int:
        """Returns the cycles between two rows. The units work on different rows at a time."""
        return max(beats, *self)

    def depth(self, beats: int) -> int:
        """Returns the beats that are stored: a row, and what arrives until its reciprocal."""
        waiting = -(-beats * (sum(self) + PIPELINE) // self.interval(beats))
        return beats + waiting + PIPELINE


def plan_norm(site: Site) -> ComponentPlan:
    """Plans a norm over rows of whole beats, with parameters in feature order of the stream."""
    operator, (read,) = site.operator, site.inputs
    assert isinstance(operator, Norm)
    rows = read.rows(len(operator.dims))
    radicand_width = _largest_radicand(operator, read).bit_length()
    units = _Units(
        -(-radicand_width // 2) + 1,
        reciprocal_cycles(operator.reciprocal - operator.root + 1),
    )
    lanes = _lanes(read, rows, units, site.fold)
    beats = rows.features // lanes
    pairs = zip((operator.weight, operator.bias), parameter_widths(operator), strict=True)
    weight, bias = (_words(x, width, rows.order, lanes) for x, width in pairs)
    out = read.of(operator.out).with_lanes(lanes)
    parameters: dict[str, int | str] = {
        "LANES": lanes,
        "FEATURES": rows.features,
        "IN_W": read.width,
        "OUT_W": out.width,
        **_constants(operator, radicand_width),
        "WEIGHT_W": weight.width // lanes,
        "BIAS_W": bias.width // lanes,
        "DEPTH": units.depth(beats),
    }
    return ComponentPlan(
        parameters,
        lanes=(lanes,),
        out=out,
        cycles=rows.count * units.interval(beats),
        memories={"WEIGHT_FILE": weight, "BIAS_FILE": bias},
        resources=_resources(parameters),
        holds=(rows.features / read.size,),
        needs=(row_ends(read.size // lanes, beats),),
        buffers=(0,),
        latency=units.root + units.division + STAGES,
    )


def _lanes(read: Stream, rows: Rows, units: _Units, fold: int) -> int:
    """Returns the fewest lanes that reach a fold."""

    def cycles(lanes: int) -> int:
        own = rows.count * units.interval(rows.features // lanes)
        return max(own, converter_cycles(read.size, read.lanes, lanes))

    return first_within(divisors(rows.features), fold, cycles)


def _constants(operator: Norm, radicand_width: int) -> dict[str, int]:
    """Returns the module parameters that do not depend on streams."""
    # If all weights are zero, u does not affect the result and needs no bits.
    limit = operator.limit if operator.is_loadable or bool(operator.weight.any()) else 0
    return {
        "CENTERED": int(operator.is_centered),
        "RADICAND_W": radicand_width,
        "ROOT": operator.root,
        "POWER": operator.reciprocal,
        "FRACTION": operator.fraction,
        "EPS": operator.eps,
        "LIMIT": limit,
        "LIMIT_W": bit_width(-limit, limit),
        "SCALE_SHIFT": operator.shift,
    }


def _largest_radicand(operator: Norm, read: Stream) -> int:
    """Returns V 2^2k + EPS of `IntegerNorm`, with V at most (C (high - low) / 2)^2."""
    low, high = read.edge.low, read.edge.high
    spread = high - low if operator.is_centered else 2 * max(-low, high)
    return ((operator.count * spread) ** 2 // 4 << 2 * operator.root) + operator.eps


def _words(parameter: Tensor, width: int, order: Tensor, lanes: int) -> Memory:
    """Returns a parameter's numbers in feature order of the stream, a word for each beat."""
    codes = parameter.flatten()[order.argsort()]
    return Memory.of(codes.view(-1, lanes).tolist(), width)


def _resources(parameters: dict[str, int | str]) -> Resources:
    """Returns the resources, from the widths that the module derives from its parameters."""
    sizes = {key: value for key, value in parameters.items() if isinstance(value, int)}
    lanes, read = sizes["LANES"], sizes["IN_W"]
    total = read + (sizes["FEATURES"] - 1).bit_length()
    squares = 2 * read + (sizes["FEATURES"] - 1).bit_length()
    variance = max(sizes["RADICAND_W"] - 2 * sizes["ROOT"], 1)
    reciprocal = sizes["POWER"] - sizes["ROOT"] + 1
    multipliers: Counter[tuple[int, int]] = Counter()
    for widths, count in (
        ((read, read), lanes),
        ((total, total), sizes["CENTERED"]),
        ((total + 1, reciprocal + 1), lanes),
        ((sizes["LIMIT_W"], sizes["WEIGHT_W"]), lanes),
    ):
        multipliers[widths] += count
    return Resources(
        multipliers,
        sizes["DEPTH"] * lanes * read + 8 * total,
        scalings={(total, sizes["FEATURES"]): lanes},
        positive_scalings={(min(squares, variance) + 1, sizes["FEATURES"]): 1},
    )
