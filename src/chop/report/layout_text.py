"""One-line text of a format's layout: element x scale per group, rounding, levels."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from chop.formats.affine_scale import AffineScale
from chop.formats.fitted_float_scale import FittedFloatScale
from chop.formats.groups import Blocks, Groups, Whole
from chop.formats.layout import Layout
from chop.formats.scaling import (
    ConstantScale,
    FloatScale,
    ScaledFloatScale,
    Scaling,
    SharedExponent,
    Unscaled,
)
from chop.formats.searched_scale import SearchedScale

E8M0 = (-127, 8, True)
"""Lowest exponent, bits and presence of a NaN in the E8M0 scale format."""
FEW = 4
"""Numbers of a part that are written one by one; of more, the ends."""


def describe_layout(layout: Layout | None) -> str:
    """Describes the parts of a layout in standard terms; unknown parts by their fields.

    >>> from chop.formats import MXInt
    >>> describe_layout(MXInt(4).layout())
    'Fixed(width 4, frac_width 2, twos complement) x 2^E (E8M0) per block of 32; nearest even'
    """
    if layout is None:
        return "custom rounding"
    text = _parts(layout.element)
    if layout.scaling is not None and not isinstance(layout.scaling, Unscaled):
        group = GROUPS.get(type(layout.groups), _parts)(layout.groups)
        scale = SCALINGS.get(type(layout.scaling))
        scale_text = (
            scale(layout.scaling, group) if scale else f"{_parts(layout.scaling)} per {group}"
        )
        text = f"{text} x {scale_text}"
    if layout.levels is not None:
        text = f"sum of {layout.levels} levels of {text}"
    return f"{text}; {_words(layout.rounding)}"


def _blocks(groups: Blocks) -> str:
    axis = "" if groups.dim == -1 else f" along axis {groups.dim}"
    return f"block of {' x '.join(map(str, groups.sizes))}{axis}"


def _shared_exponent(scaling: SharedExponent, group: str) -> str:
    is_e8m0 = (scaling.lowest, scaling.width, scaling.has_nan) == E8M0
    exponents = "E8M0" if is_e8m0 else f"{scaling.lowest} <= E <= {scaling.largest}"
    return f"2^E ({exponents}) per {group}"


def _float_scale(scaling: FloatScale, group: str) -> str:
    divisor = "" if scaling.divisor == 1 else f" / {scaling.divisor:g}"
    return f"float32 ({scaling.statistic.kind}{divisor}) per {group}"


def _scaled_float(scaling: ScaledFloatScale, group: str) -> str:
    given = "" if scaling.given is None else "given "
    return f"{_parts(scaling.element)} per {group} x {given}float32 per tensor"


GROUPS: dict[type[Groups], Callable[[Any], str]] = {
    Whole: lambda groups: str(groups.granularity),
    Blocks: _blocks,
}
SCALINGS: dict[type[Scaling], Callable[[Any, str], str]] = {
    SharedExponent: _shared_exponent,
    FloatScale: _float_scale,
    ConstantScale: lambda scaling, group: f"given float32 per {group}",
    AffineScale: lambda scaling, group: (
        f"bfloat16 and zero point of {scaling.zero_width} bits (least squared error) per {group}"
    ),
    SearchedScale: lambda scaling, group: f"bfloat16 (least squared error) per {group}",
    ScaledFloatScale: _scaled_float,
    FittedFloatScale: lambda scaling, group: _scaled_float(
        scaling, f"{group} (least squared error)"
    ),
}


def _parts(part: Any) -> str:
    """Returns the class of a part with its non-default fields."""
    fields = dataclasses.fields(part) if dataclasses.is_dataclass(part) else ()
    given = {field.name: getattr(part, field.name) for field in fields}
    defaults = {field.name: field.default for field in fields}
    changed = [_field(name, x) for name, x in given.items() if x != defaults[name]]
    return f"{type(part).__name__}({', '.join(changed)})" if changed else type(part).__name__


def _field(name: str, value: Any) -> str:
    if isinstance(value, str):
        return _words(value)
    if isinstance(value, tuple) and len(value) > FEW:
        return f"{name} of {len(value)} numbers from {min(value):g} to {max(value):g}"
    if isinstance(value, bool):
        return name.removeprefix("is_") if value else f"not {name.removeprefix('is_')}"
    return f"{name} {_parts(value) if dataclasses.is_dataclass(value) else value}"


def _words(text: str) -> str:
    return text.replace("_", " ")
