"""Readable reference for rounding, encoding and decoding by a layout, computed in float64.

Kernels are compared with these functions bit for bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from chop.errors import ConfigError
from chop.formats.chunks import chunks
from chop.formats.elements import Element
from chop.formats.encoded import Encoded
from chop.formats.layout import Layout
from chop.formats.scaling import Scales, Scaling, StaticScale


def cast(y: Tensor, dtype: torch.dtype) -> Tensor:
    """Converts `y` to another floating dtype, limiting finite numbers to its largest one."""
    limits = torch.finfo(dtype)
    return torch.where(y.isinf(), y, y.clamp(limits.min, limits.max)).to(dtype)


def round_by(layout: Layout, x: Tensor) -> Tensor:
    """Rounds each value to a scaled element; if the dtype cannot represent it, rounds once more.

    Returns: tensor of the shape and dtype of `x`.
    """
    layout = layout.fitted(x)
    if layout.levels is not None:
        return _sum(layout, *_signs_and_scales(layout, x), x.dtype)
    groups = layout.split(x)
    parts = [_converted(layout, _rounded(layout, part), x.dtype) for part in _parts(layout, groups)]
    return layout.groups.join(torch.cat(parts).view(groups.shape), x.shape)


def _parts(layout: Layout, groups: Tensor) -> Sequence[Tensor]:
    """Yields chunks of groups, (rows, group size) each, or of elements if there is no scale.

    Yields everything at once if a scale cannot be computed from a chunk.
    """
    if layout.scaling is None:
        return chunks(groups.reshape(-1))
    rows = groups.reshape(-1, groups.size(-1))
    if layout.scaling.spans_tensor:
        return (rows,)
    return chunks(rows, rows.size(-1), layout.scaling.chunk)


def _rounded(layout: Layout, part: Tensor) -> Tensor:
    elements, scales = _elements_and_scales(layout, part)
    if scales is None:
        return elements
    return _scaled(layout.element, elements, scales.values, scales.zero_points)


def _scaled(element: Element, y: Tensor, scale: Tensor, zero_point: Tensor | None) -> Tensor:
    """Multiplies elements, minus their zero points if any, by scales."""
    if zero_point is not None:
        return (y - zero_point) * scale
    # A negative digit times a scale of zero is -0; adding zero makes it +0.
    return y * scale if element.threshold is None else y * scale + 0.0


def _elements_and_scales(layout: Layout, part: Tensor) -> tuple[Tensor, Scales | None]:
    exact, element = part.double(), layout.element
    if layout.scaling is None:
        return element.round(exact), None
    scales = layout.scaling.measure(exact, layout.counted(exact))
    if (scales.zero_points is not None) != layout.has_zero_points:
        raise ConfigError(
            f"{layout.scaling}: `measure` must return zero points if and only if `zero_width` is "
            "above 0."
        )
    parted = element.threshold is not None
    return element.round(exact if parted else _unscaled(exact, scales)), scales


def _divide(groups: Tensor, scale: Tensor) -> Tensor:
    """Returns `groups / scale`; groups with a scale of zero stay unchanged."""
    # Any quotient serves a scale of zero: multiplying by the scale gives zero.
    return groups / scale.masked_fill(scale == 0, 1.0)


def _unscaled(groups: Tensor, scales: Scales) -> Tensor:
    """Returns the values to round to elements: `groups / scale`, plus the zero point if any."""
    quotients = _divide(groups, scales.values)
    return quotients if scales.zero_points is None else quotients + scales.zero_points


def _converted(layout: Layout, y: Tensor, dtype: torch.dtype) -> Tensor:
    return y.to(dtype) if layout.overflow == "infinity" else cast(y, dtype)


def saturates(layout: Layout, x: Tensor) -> Tensor:
    """Returns a boolean mask of values beyond the largest element times the group's scale."""
    layout = layout.fitted(x)
    element = layout.element
    if layout.levels is not None:
        return x.double().abs() > _signs_and_scales(layout, x)[1].double().sum()
    if layout.scaling is None:
        return element.saturates(x.double())
    groups = layout.split(x.double())
    scales = layout.scaling.measure(groups, layout.counted(groups))
    outside = (
        groups.abs() > element.largest * scales.values
        if element.threshold is not None
        else element.saturates(_unscaled(groups, scales))
    )
    return layout.groups.join(outside, x.shape)


def bits(layout: Layout, shape: Sequence[int] = ()) -> float:
    """Returns the storage per element in bits, including scales; `()` for a full group."""
    scaling, levels = layout.scaling, layout.levels or 1
    width = levels * layout.element.bits
    if scaling is None:
        return width
    if not shape:
        return width + levels * scaling.width / layout.groups.nominal_size
    count = 1 if layout.levels else layout.groups.count(shape)
    scale_bits = levels * (scaling.width * count + scaling.tensor_width)
    return width + scale_bits / max(math.prod(shape), 1)


def encode(layout: Layout, x: Tensor) -> Encoded:
    """Encodes codes in the order of `x`, without padding, and the scales of groups."""
    layout = layout.fitted(x)
    if layout.levels is not None:
        return _encode_levels(layout, x)
    groups, element, scaling = layout.split(x), layout.element, layout.scaling
    codes, scales = zip(*(_encode(layout, part) for part in _parts(layout, groups)), strict=True)
    whole = layout.groups.join(torch.cat(codes).view(groups.shape), x.shape)
    packed = element.pack(whole)
    if scaling is None:
        return Encoded(packed, x.shape, x.dtype)
    stored = scaling.pack(torch.cat([part.codes for part in scales]))
    return Encoded(packed, x.shape, x.dtype, stored, scales[0].tensor_scale)


def _encode(layout: Layout, part: Tensor) -> tuple[Tensor, Scales | None]:
    """Returns codes in the narrowest dtype that holds them, and scales."""
    elements, scales = _elements_and_scales(layout, part)
    codes = layout.element.stored(elements)
    return codes.to(torch.uint8 if layout.element.width <= 8 else torch.int64), scales


def decode(layout: Layout, encoded: Encoded) -> Tensor:
    """Decodes codes and multiplies them by their scales."""
    if layout.levels is not None:
        return _decode_levels(layout, encoded)
    shape, element = encoded.shape, layout.element
    codes = layout.groups.split(element.unpack(encoded.codes, shape.numel()).view(shape))
    y = torch.empty(codes.shape, dtype=encoded.dtype, device=codes.device)
    scales, zero_points = _restored(layout, encoded)
    is_float32 = y.dtype == torch.float32 and zero_points is None
    if is_float32 and scales is not None and _float32_does(element, scales):
        scales = scales.float()
    values = _reader(element, codes.device, torch.float64 if scales is None else scales.dtype)
    if scales is None:
        for target, part in zip(chunks(y.view(-1)), chunks(codes.view(-1)), strict=True):
            target.copy_(_converted(layout, values(part), y.dtype))
    else:
        rows = (x.reshape(-1, x.size(-1)) for x in (y, codes, scales))
        parts = [chunks(x, y.size(-1)) for x in rows]
        zeros: Sequence[Tensor | None] = [None] * len(parts[0])
        if zero_points is not None:
            zeros = chunks(zero_points, y.size(-1))
        for target, part, scale, zero in zip(*parts, zeros, strict=True):
            part_values = _scaled(element, values(part), scale, zero)
            target.copy_(_converted(layout, part_values, y.dtype))
    return layout.groups.join(y, shape)


def _restored(layout: Layout, encoded: Encoded) -> tuple[Tensor | None, Tensor | None]:
    """Returns scales and zero points, float64, (groups, 1) each."""
    if layout.scaling is None:
        return None, None
    assert encoded.scales is not None
    count = layout.groups.count(encoded.shape)
    scales = layout.scaling.restore(encoded.scales, count, encoded.tensor_scale)
    return scales, layout.scaling.restore_zero_points(encoded.scales, count)


def is_row_separable(layout: Layout, shape: Sequence[int]) -> bool:
    """Returns True if no group spans two rows and rows fill whole bytes."""
    if math.prod(shape) == 0 or layout.levels is not None:
        return False
    fills_bytes = layout.element.fills_bytes(math.prod(shape[1:]))
    if layout.scaling is None:
        return fills_bytes
    if len(shape) < 2:
        return False
    scale_bits = layout.scaling.width * layout.groups.count(shape) // shape[0]
    return fills_bytes and scale_bits % 8 == 0 and layout.groups.is_row_separable(len(shape))


def _reader(
    element: Element, device: torch.device, dtype: torch.dtype
) -> Callable[[Tensor], Tensor]:
    """Returns the function from codes to values; a table lookup if codes are bytes."""
    if element.width > 8:
        return lambda codes: element.values(codes.long()).to(dtype)
    table = _table(element, device).to(dtype)
    return lambda codes: table.index_select(0, codes.reshape(-1).int()).view(codes.shape)


def _table(element: Element, device: torch.device) -> Tensor:
    return element.values(torch.arange(2**element.width, device=device))


def _float32_does(element: Element, scales: Tensor) -> bool:
    """Returns True if float32 arithmetic gives the same rounded products as float64.

    The product of two float32 numbers is exact in float64. Both methods therefore round once if
    elements and scales are float32 numbers or NaN, and finite products stay finite.
    """
    if element.width > 8 or scales.numel() == 0 or scales.is_meta:
        return False
    values = _table(element, scales.device)
    top = element.largest * scales.nan_to_num(nan=0.0).abs().amax()
    return _is_float32(values) and _is_float32(scales) and bool(top <= torch.finfo(torch.float).max)


def _is_float32(x: Tensor) -> bool:
    return bool(((x.float().double() == x) | x.isnan()).all())


def _signs_and_scales(layout: Layout, x: Tensor) -> tuple[list[Tensor], Tensor]:
    """Returns float64 elements of each level in the shape of `x`, and float32 (levels,) factors."""
    scaling, rest = layout.scaling, x.double()
    assert scaling is not None and layout.levels is not None
    known = scaling.known(x.device).double() if isinstance(scaling, StaticScale) else None
    elements: list[Tensor] = []
    scales: list[Tensor] = []
    for level in range(layout.levels):
        if level:
            rest = rest - scales[-1] * elements[-1]
        scales.append(_factor(scaling, rest) if known is None else known[level])
        elements.append(layout.element.round(_divide(rest, scales[-1])))
    return elements, torch.stack(scales).float()


def _factor(scaling: Scaling, rest: Tensor) -> Tensor:
    """Returns the scale of a tensor as one group: float64 scalar."""
    return scaling.measure(rest.reshape(1, -1)).values.squeeze()


def scales_of_levels(layout: Layout, x: Tensor) -> Tensor:
    """Returns the factors of a tensor's levels: float32, (levels,)."""
    return _signs_and_scales(layout, x)[1]


def _sum(layout: Layout, elements: Sequence[Tensor], scales: Tensor, dtype: torch.dtype) -> Tensor:
    total = torch.zeros_like(elements[0])
    for level, scale in zip(elements, scales.double(), strict=True):
        total = total + scale * level
    return _converted(layout, total, dtype)


def _encode_levels(layout: Layout, x: Tensor) -> Encoded:
    """Encodes the levels of each value, the first in the lowest bits, and the factors."""
    elements, scales = _signs_and_scales(layout, x)
    levels = torch.stack([layout.element.stored(level) for level in elements], -1)
    return Encoded(layout.element.pack(levels), x.shape, x.dtype, scales)


def _decode_levels(layout: Layout, encoded: Encoded) -> Tensor:
    assert encoded.scales is not None and layout.levels is not None
    count, element = encoded.shape.numel(), layout.element
    codes = element.unpack(encoded.codes, count * layout.levels).view(count, layout.levels)
    y = torch.empty(count, dtype=encoded.dtype, device=codes.device)
    for target, part in zip(chunks(y), chunks(codes), strict=True):
        levels = [element.values(level.long()) for level in part.unbind(-1)]
        target.copy_(_sum(layout, levels, encoded.scales, y.dtype))
    return y.view(encoded.shape)
