"""Plans of elementwise operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from chop.errors import ConfigError
from chop.hardware.design.lanes import divisors, fewest_lanes
from chop.hardware.design.plan import DIRECT, ComponentPlan, Memory, Resources, Site
from chop.hardware.design.stream import OrderError, Stream
from chop.hardware.plans.division import Division
from chop.hardware.plans.weighted import count_width
from chop.nn.integer import (
    IntegerAdd,
    IntegerBatchNorm,
    IntegerMul,
    IntegerOperator,
    IntegerPReLU,
    IntegerScale,
    IntegerThresholds,
    Requantize,
    Table,
)
from chop.nn.integer.base import MAX_BITS
from chop.nn.integer.edge import bit_width
from chop.nn.integer.requantize import LOADABLE_BITS

ROUNDINGS = ("nearest_even", "floor", "sign", "threshold")
"""Rounding modes, by the value of the parameter ROUNDING."""
SCALED = ROUNDINGS[:2]
"""Rounding modes that scale a code by the ratio of steps."""
TABLE_STAGES = 5
"""Cycles of `chop_table` and of the FIFO behind it."""
ROUND_STAGES = 7
"""Cycles of `chop_requantize` and of the FIFO behind it, without those of a multiplier."""
MULTIPLY_STAGES = 2
SCALE_STAGES = 5
"""Cycles of `chop_scale` and of the FIFO behind it."""
AFFINE_STAGES = 7
"""Cycles of `chop_affine` or `chop_prelu` and of the FIFO behind it."""
THRESHOLD_STAGES = 6
"""Cycles of `chop_thresholds` and of the FIFO behind it."""


def plan_relu(site: Site) -> ComponentPlan:
    """Plans a ReLU, without a register if a whole sample is in a beat."""
    plan = _elementwise(site, {"IN_W": site.inputs[0].width})
    return _direct(plan, {"REGISTERED": 0}, 0) if plan.out.beats == 1 else plan


def plan_negate(site: Site) -> ComponentPlan:
    """Plans a negation."""
    return _elementwise(site, {"IN_W": site.inputs[0].width})


def plan_abs(site: Site) -> ComponentPlan:
    """Plans a magnitude."""
    return _elementwise(site, {"IN_W": site.inputs[0].width, "MAGNITUDE": 1})


def plan_table(site: Site) -> ComponentPlan:
    """Plans a lookup table per lane."""
    table = site.operator
    assert isinstance(table, Table)
    entries = table.entries.tolist()
    memory = Memory.of([[entry] for entry in entries], table.out.bits)
    # Each lane reads a word of its own in every cycle.
    memory = replace(memory, copies=_lanes(site))
    parameters = {"IN_W": site.inputs[0].width, "LOW": table.low, "ENTRIES": len(entries)}
    plan = _elementwise(site, parameters, memories={"TABLE_FILE": memory})
    return replace(plan, latency=TABLE_STAGES)


def plan_add(site: Site) -> ComponentPlan:
    """Plans a sum or difference."""
    operator = site.operator
    assert isinstance(operator, IntegerAdd)
    shifts = {f"SHIFT_{k}": shift for k, shift in enumerate(operator.shifts)}
    return _plan_pair(site, shifts | {"NEGATE": int(operator.sign < 0)})


def plan_mul(site: Site) -> ComponentPlan:
    """Plans a product of two streams."""
    assert isinstance(site.operator, IntegerMul)
    a, b = site.inputs
    return _plan_pair(site, {}, (a.width, b.width))


def plan_scale(site: Site) -> ComponentPlan:
    """Plans a product by a constant."""
    operator, read = site.operator, site.inputs[0]
    assert isinstance(operator, IntegerScale)
    plan = _elementwise(site, {"IN_W": read.width, "FACTOR": operator.factor})
    resources = Resources(scalings={(read.width, operator.factor): plan.out.lanes})
    return replace(plan, resources=resources, latency=SCALE_STAGES)


def plan_requantize(site: Site) -> ComponentPlan:
    """Plans a requantizer. Channel multipliers and thresholds are stored in stream order.

    Raises:
        ConfigError: if the multiplier of a mean exceeds int64.
    """
    operator, read = site.operator, site.inputs[0]
    assert isinstance(operator, Requantize)
    channel, division = _channel(operator, read), _division(operator, read)
    if division is not None:
        channel = channel * division.multiplier
    largest = _largest_loadable(operator, read) if operator.is_loadable else int(channel.max())
    width = max(largest.bit_length(), 1)
    parameters: dict[str, int | str] = {
        "IN_W": read.width,
        "SHIFT": operator.shift,
        "LOW": operator.out_low,
        "HIGH": operator.out_high,
        "ROUNDING": ROUNDINGS.index(operator.rounding),
        "CHANNEL_W": width,
    }
    multiplier, latency = None, ROUND_STAGES
    if division is not None or _multiplies(operator):
        latency += MULTIPLY_STAGES
        # The addend that rounds the quotient adds to the width of the product.
        half = 0 if division is None else 1 << division.dropped - 1
        product = bit_width(read.edge.low * largest, read.edge.high * largest + half)
        parameters |= {"MULTIPLIES": 1, "PRODUCT_W": product}
        # The unsigned factor gets a sign bit of 0 for the signed multiplier.
        multiplier = (read.width, width + 1)
    if division is not None:
        latency += 1
        parameters |= {"SHIFT": division.shift, "DROPPED": division.dropped}
    memories = {}
    if channel.numel() == 1 and not operator.is_loadable:
        parameters["CHANNEL"] = largest
    else:
        words = _channel_words(read.with_lanes(_lanes(site)), channel, operator.is_loadable)
        parameters["CHANNEL_BEATS"] = len(words)
        memories["CHANNEL_FILE"] = Memory.of(words, width)
    plan = _elementwise(site, parameters, multiplier, memories)
    if plan.out.beats == 1 and latency == ROUND_STAGES and operator.rounding in SCALED:
        return replace(_direct(plan, {}, 1), module="chop_round")
    return replace(plan, latency=latency)


def _direct(plan: ComponentPlan, more: Mapping[str, int], latency: int) -> ComponentPlan:
    """Returns the plan of a component that waits for its reader without a buffer ahead of it."""
    parameters = {k: v for k, v in plan.parameters.items() if not k.startswith("CHANNEL")}
    return replace(plan, parameters={**parameters, **more}, buffers=(DIRECT,), latency=latency)


def plan_affine(site: Site) -> ComponentPlan:
    """Plans a batch norm: a multiplier and an adder per lane."""
    operator, read = site.operator, site.inputs[0]
    assert isinstance(operator, IntegerBatchNorm)
    parts = operator.factor, operator.shift
    widths = [*(operator.widths if operator.is_loadable else map(count_width, parts))]
    factor_bits, shift_bits = widths
    fields = [*zip(parts, widths, strict=True)]
    parameters = {"IN_W": read.width, "FACTOR_W": factor_bits, "SHIFT_W": shift_bits}
    plan = _by_channel(site, parameters, fields, (read.width, factor_bits))
    return replace(plan, latency=AFFINE_STAGES)


def plan_prelu(site: Site) -> ComponentPlan:
    """Plans a PReLU: a multiplier per lane for codes below zero."""
    operator, read = site.operator, site.inputs[0]
    assert isinstance(operator, IntegerPReLU)
    bits = operator.width if operator.is_loadable else count_width(operator.factor)
    parameters = {"IN_W": read.width, "FACTOR_W": bits, "SHIFT": operator.shift}
    plan = _by_channel(site, parameters, [(operator.factor, bits)], (read.width, bits))
    return replace(plan, latency=AFFINE_STAGES)


def plan_thresholds(site: Site) -> ComponentPlan:
    """Plans comparisons with the thresholds of each channel."""
    operator, read = site.operator, site.inputs[0]
    assert isinstance(operator, IntegerThresholds)
    fields = [(threshold, read.width + 1) for threshold in operator.thresholds]
    parameters = {"IN_W": read.width, "THRESHOLDS": len(fields)}
    parameters |= {"LOW": operator.low, "STRIDE": operator.stride}
    plan = _by_channel(site, parameters, [*fields, (operator.inversion, 1)])
    return replace(plan, latency=THRESHOLD_STAGES)


def _by_channel(
    site: Site,
    parameters: Mapping[str, int | str],
    fields: Sequence[tuple[Tensor, int]],
    multiplier: tuple[int, int] | None = None,
) -> ComponentPlan:
    """Returns an elementwise plan with a memory word of each channel, in stream order.

    Args:
        site: site of the operator.
        parameters: as for `_elementwise`.
        fields: numbers of a word, lowest bits first: int64 by channel in a shape that broadcasts to
            a sample, and bits.
        multiplier: as for `_elementwise`.
    """
    shape = fields[0][0].shape
    words = [0] * shape.numel()
    place = 0
    for values, bits in fields:
        for channel, value in enumerate(values.flatten().tolist()):
            words[channel] |= (value & (1 << bits) - 1) << place
        place += bits
    stream = site.inputs[0].with_lanes(_lanes(site))
    memory = Memory.of(_words_by_channel(stream, words, shape), place)
    parameters = {**parameters, "WORDS": len(memory.words)}
    return _elementwise(site, parameters, multiplier, {"FILE": memory})


def _division(operator: Requantize, read: Stream) -> Division | None:
    """Returns the division of a mean whose count is not a power of two."""
    if operator.divisor == 1 or operator.rounding not in SCALED:
        return None
    largest = int(_channel(operator, read).max())
    ends = read.edge.low * largest, read.edge.high * largest
    division = Division.of(operator.divisor, operator.shift, *ends)
    if largest * division.multiplier >= 2**MAX_BITS:
        raise ConfigError(
            f"Requantize: a mean over {operator.divisor} codes of {read.width} bits needs more "
            f"than {MAX_BITS} bits for a product; use fewer bits, or a power of two as the divisor."
        )
    return division


def _multiplies(operator: Requantize) -> bool:
    return operator.has_multiplier and operator.rounding in SCALED


def _channel(operator: Requantize, read: Stream) -> Tensor:
    """Returns the unsigned multiplier or threshold of each code: int64, () or by channel.

    Thresholds beyond all codes become the largest magnitude.
    """
    if operator.rounding == "threshold":
        return operator.threshold.clamp(max=max(-read.edge.low, read.edge.high, 0))
    return operator.multiplier if _multiplies(operator) else torch.ones((), dtype=torch.int64)


def _largest_loadable(operator: Requantize, read: Stream) -> int:
    """Returns the largest multiplier or threshold that can be written at run time."""
    if operator.rounding == "threshold":
        return max(-read.edge.low, read.edge.high, 0)
    return (1 << LOADABLE_BITS) - 1


def _channel_words(stream: Stream, channel: Tensor, is_loadable: bool) -> list[list[int]]:
    """Returns the memory words of channel parameters, as many for any loadable ones."""
    if not is_loadable:
        return _periodic_words(stream, channel)
    return _words_by_channel(stream, channel.flatten().tolist(), channel.shape)


def _words_by_channel(
    stream: Stream, numbers: Sequence[int], shape: Sequence[int]
) -> list[list[int]]:
    """Returns the memory words of numbers by channel, whose shape broadcasts to a sample."""
    beats = _periodic_words(stream, torch.arange(len(numbers)).view(tuple(shape)))
    return [[numbers[channel] for channel in beat] for beat in beats]


def _periodic_words(stream: Stream, channel: Tensor) -> list[list[int]]:
    """Returns the memory words of one period of channel parameters.

    Args:
        stream: stream of the codes.
        channel: int64, broadcastable to a sample.
    """
    # With channels last they repeat for every pixel, so that a period is far shorter than a sample.
    beats = stream.sent(channel.expand(stream.shape))
    for period in divisors(len(beats)):
        if torch.equal(beats, beats[:period].repeat(len(beats) // period, 1)):
            return [list(map(int, beat)) for beat in beats[:period].tolist()]
    raise AssertionError("a stream repeats itself after a sample")


def _lanes(site: Site) -> int:
    first = site.inputs[0]
    return fewest_lanes(first.size, site.fold, first.lanes)


def _elementwise(
    site: Site,
    parameters: Mapping[str, int | str],
    multiplier: tuple[int, int] | None = None,
    memories: Mapping[str, Memory] | None = None,
) -> ComponentPlan:
    """Returns a plan with one result per code of the first input, and one beat per cycle.

    Args:
        site: site of the operator.
        parameters: module parameters other than `LANES` and `OUT_W`.
        multiplier: factor widths in bits of a lane's multiplier.
        memories: read-only memories.
    """
    assert isinstance(site.operator, IntegerOperator)
    lanes, inputs = _lanes(site), len(site.inputs)
    out = site.inputs[0].of(site.operator.out).with_lanes(lanes)
    return ComponentPlan(
        parameters={"LANES": lanes, "OUT_W": out.width, **parameters},
        lanes=(lanes,) * inputs,
        out=out,
        cycles=out.beats,
        memories=memories or {},
        resources=Resources({multiplier: lanes} if multiplier else {}),
        holds=(0.0,) * inputs,
        buffers=(0,) * inputs,
    )


def _plan_pair(
    site: Site, parameters: Mapping[str, int | str], multiplier: tuple[int, int] | None = None
) -> ComponentPlan:
    """Returns a plan of two inputs with the same order.

    Raises:
        ConfigError: if their shapes or orders differ.
    """
    a, b = site.inputs
    if not torch.equal(a.positions, b.positions):
        text = (
            f"{type(site.operator).__name__}: expected two inputs with the same shape and order, "
            f"got shapes {a.shape} and {b.shape}."
        )
        raise OrderError(text, _same_order(a, b, text), is_choice=True)
    return _elementwise(site, {"IN_0_W": a.width, "IN_1_W": b.width, **parameters}, multiplier)


def _same_order(a: Stream, b: Stream, refusal: str) -> dict[int, Tensor]:
    """Returns the orders in which one of two inputs, or both, could be sent.

    Raises:
        ConfigError: if their shapes do not broadcast within samples.
    """
    sizes = [{m, n} - {1} for m, n in zip(a.shape, b.shape, strict=False)]
    # Dimensions that only one input has would be the batch of the other one.
    if len(a.shape) != len(b.shape) or any(len(size) > 1 for size in sizes):
        raise ConfigError(f"{refusal[:-1]}; expand both to one shape.")
    shape = tuple(map(max, a.shape, b.shape))
    full = {k: stream.positions for k, stream in ((1, a), (0, b)) if stream.shape == shape}
    return full or {k: torch.arange(torch.Size(shape).numel()).view(shape) for k in (0,)}
