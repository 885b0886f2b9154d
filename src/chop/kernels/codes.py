"""Decode tables that map the codes of a format to float32 values, for kernels on packed tensors."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from chop.formats import Encoded, NumberFormat, from_key
from chop.formats.elements import Element, Minifloat, Trit
from chop.formats.groups import ALL_COLUMNS, Groups, Lines
from chop.formats.k_quant import subtract_groups
from chop.formats.nf4 import NestedScale, nested_bytes, nested_table
from chop.formats.packing import TRITS_PER_BYTE, pack_bits, packed_bytes
from chop.formats.reference import decode
from chop.formats.scaling import Scaling, Unscaled
from chop.kernels.plan import get_layout

# The enumerations of cpu/codes.h.
TABLE, WHOLE, NATURAL, MAGNITUDE, MIRRORED, FLOAT, TRITS = range(7)
NO_SCALE, SCALE_CODES, SCALE_FLOATS, SCALES_AND_ZEROS, NESTED_SCALES = range(5)
ZERO_WIDTHS = (16, 8)
"""Bits of a scale and of a zero point if groups store both."""
WIDEST = 16
"""Largest code width, in bits, that is decoded by a table."""
FLOAT32_BIAS = 127
FLOAT32_WIDTH = 32
LARGEST_POWER = 2.0**FLOAT32_BIAS


class Codes(ctypes.Structure):
    """Description of a packed tensor for the C++ loops. `cpu/codes.h` documents the fields."""

    _fields_ = (
        *((name, ctypes.c_int32) for name in ("reading", "width", "scale_storage", "scale_width")),
        *((name, ctypes.c_int32) for name in ("mantissa_width", "largest_code")),
        *((name, ctypes.c_float) for name in ("step", "factor")),
        *((name, ctypes.c_void_p) for name in ("table", "scale_table", "zero_table")),
        *((name, ctypes.c_int64) for name in ("group", "groups_per_row", "scale_count")),
    )


class Packed(NamedTuple):
    """Packed tensor in the form that operators take.

    Attributes:
        codes: uint8, one-dimensional, as in `Encoded`.
        scales: float32 or uint8, as in `Encoded`, or None.
        tensor_scale: float32 scalar that multiplies all scales, or None.
        shape: shape of the decoded tensor.
        key: key of the number format.
    """

    codes: Tensor
    scales: Tensor | None
    tensor_scale: Tensor | None
    shape: Sequence[int]
    key: str

    def encoded(self, dtype: torch.dtype) -> Encoded:
        """Returns the tensor as the `Encoded` that `NumberFormat.decode` takes."""
        shape = torch.Size(self.shape)
        return Encoded(self.codes, shape, dtype, self.scales, self.tensor_scale)

    def flattened(self) -> Flat | None:
        """Returns the tensor with nested scales as float32; None if the loops read its scales."""
        number_format = from_key(self.key)
        if not number_format.is_nested or fixed_tables(number_format) is not None:
            return None
        flat = number_format.flattened(self.encoded(torch.float32))
        if flat is None:
            return None
        plain, stored, offsets = flat
        scales = None if stored.scales is None else stored.scales.contiguous()
        packed = Packed(stored.codes, scales, stored.tensor_scale, self.shape, plain.key)
        return Flat(packed, offsets)


class Flat(NamedTuple):
    """Packed tensor without nested scales.

    Attributes:
        packed: the tensor.
        offsets: float32 (groups,), numbers to subtract from the values of groups of a row, or None.
    """

    packed: Packed
    offsets: Tensor | None

    def subtract(self, y: Tensor) -> Tensor:
        """Subtracts the offsets from decoded float32 values in place, and returns them."""
        return y if self.offsets is None else subtract_groups(y, self.offsets, self._groups()[1])

    def products(self, x: Tensor) -> Tensor | None:
        """Returns the products of rows (rows, columns) with the offsets, (rows, outputs)."""
        if self.offsets is None:
            return None
        groups, size = self._groups()
        padded = F.pad(x, (0, groups * size - x.size(-1)))
        sums = padded.view(len(x), groups, size).sum(-1)
        return sums @ self.offsets.view(-1, groups).t()

    def _groups(self) -> tuple[int, int]:
        """Returns the groups of a row, and the columns of a group."""
        layout = get_layout(from_key(self.packed.key))
        assert layout is not None
        size, columns = int(layout.groups.nominal_size), self.packed.shape[-1]
        return -(-columns // size), size


@dataclass(frozen=True)
class CodeTables:
    """Lookup tables from codes and scale codes to numbers.

    Attributes:
        width: bits per code; 0 for base-3 digits.
        values: float32, (codes,): unscaled number of each code.
        reading: method by which kernels may compute the numbers instead of looking them up.
        step: 2^(127 - bias) for minifloats: factor of their fields read as float32.
        factor: final factor of every number.
        mantissa_width: mantissa bits of a minifloat.
        largest_code: largest unsigned minifloat code that may be computed.
        groups: elements that share a scale; None without scales.
        scale_values: float32: number of each scale code; None if scales are stored as float32.
        zero_values: float32: number of each zero-point code, or None. Zero-point bits follow the
            bits of the scale.
        scale_width: bits of a scale code and its zero point together.
        has_nested_scales: True if scales are stored as by `NestedScale`, whose table is
            `scale_values`.
    """

    width: int
    values: Tensor
    reading: int = TABLE
    step: float = 1.0
    factor: float = 1.0
    mantissa_width: int = 0
    largest_code: int = 0
    groups: Groups | None = None
    scale_values: Tensor | None = None
    zero_values: Tensor | None = None
    scale_width: int = 0
    has_nested_scales: bool = False

    def lines(self, shape: Sequence[int]) -> Lines | None:
        """Returns the layout of groups in a tensor of a shape; None if groups cross rows."""
        if self.groups is None:
            columns = shape[-1] if shape else 1
            return Lines(math.prod(shape) // columns, columns, ALL_COLUMNS, 0)
        return self.groups.lines(shape)

    def size_bytes(self, lines: Lines) -> tuple[int, int]:
        """Returns the sizes of the codes and of the scales, in bytes."""
        count = lines.rows * lines.columns
        codes = packed_bytes(count, self.width) if self.width else -(-count // TRITS_PER_BYTE)
        if self.groups is None:
            return codes, 0
        scales = _scale_count(lines)
        if self.has_nested_scales:
            return codes, nested_bytes(scales)
        width = FLOAT32_WIDTH if self.stores_floats else self.scale_width
        return codes, packed_bytes(scales, width)

    def structure(self, lines: Lines, tensor_scale: Tensor | None) -> Codes:
        """Returns the arguments of the C++ loops."""
        codes = Codes(
            reading=self.reading,
            width=self.width,
            scale_storage=self.scale_storage,
            scale_width=self.scale_width,
            mantissa_width=self.mantissa_width,
            largest_code=self.largest_code,
            step=self.step,
            factor=self.factor if tensor_scale is None else tensor_scale.item(),
            table=self.values.data_ptr(),
            scale_table=None if self.scale_values is None else self.scale_values.data_ptr(),
            zero_table=None if self.zero_values is None else self.zero_values.data_ptr(),
            group=lines.group,
            groups_per_row=lines.groups_per_row,
            scale_count=_scale_count(lines),
        )
        # The structure only has addresses. This reference keeps the tables alive.
        codes.tables = self
        return codes

    def without_scales(self) -> CodeTables:
        """Returns a copy that reads the codes with scales of 1."""
        unscaled = replace(self, groups=None, scale_values=None, zero_values=None, scale_width=0)
        return replace(unscaled, has_nested_scales=False)

    @property
    def scale_storage(self) -> int:
        """Storage of scales and zero points, a value of the enumeration in `cpu/codes.h`."""
        if self.groups is None:
            return NO_SCALE
        if self.stores_floats:
            return SCALE_FLOATS
        if self.has_nested_scales:
            return NESTED_SCALES
        return SCALE_CODES if self.zero_values is None else SCALES_AND_ZEROS

    @property
    def stores_floats(self) -> bool:
        """True if scales are stored as float32."""
        return self.groups is not None and self.scale_values is None

    @cached_property
    def suits_bfloat16(self) -> bool:
        """True if bfloat16 represents every unscaled number exactly."""
        return bool(((self.values.bfloat16().float() == self.values) | self.values.isnan()).all())

    @cached_property
    def fits_bfloat16(self) -> bool:
        """True if every unscaled number is within the range of bfloat16."""
        return self.values.nan_to_num(nan=0.0).abs().max().item() <= torch.finfo(torch.bfloat16).max

    @cached_property
    def scales_are_powers(self) -> bool:
        """True if scales are absent or powers of two, which round only at the ends of the range."""
        if self.scale_values is None:
            return self.groups is None
        # `frexp` returns fractions in [0.5, 1), and 0.5 for powers of two only.
        fractions, _ = self.scale_values.frexp()
        return bool(((fractions == 0.5) | self.scale_values.isnan()).all())


def _scale_count(lines: Lines) -> int:
    # `groups_per_row` is 0 if the whole tensor has a single scale.
    return lines.rows * lines.groups_per_row or 1


def tables_of_levels(number_format: NumberFormat, scales: Tensor) -> CodeTables | None:
    """Returns the tables of a multi-level tensor, which stores a factor for each level."""
    layout = get_layout(number_format)
    if layout is None or layout.levels is None or not _has_plain_codes(layout.element):
        return None
    if layout.overflow == "infinity":  # the loops clamp instead
        return None
    width = layout.element.width * layout.levels
    if width > WIDEST:
        return None
    # Decoding each possible code once by the reference gives the table.
    every = Encoded(_packed(width), torch.Size((2**width,)), torch.float32, scales)
    return CodeTables(width, decode(layout, every))


@lru_cache(maxsize=1024)
def fixed_tables(number_format: NumberFormat) -> CodeTables | None:
    """Returns the tables of a format that decodes codes identically in every tensor."""
    layout = get_layout(number_format) if number_format.is_fitted else None
    if layout is None or layout.levels is not None:
        return None
    if layout.overflow == "infinity" and layout.scaling is not None:  # the loops clamp instead
        return None
    read = READINGS.get(type(layout.element), _by_table)
    tables, scaling = read(layout.element), layout.scaling
    if tables is None or isinstance(scaling, Unscaled):
        return tables
    return _whole(tables) if scaling is None else _scaled(layout.groups, scaling, tables)


def _has_plain_codes(element: Element) -> bool:
    return element.radix == 2 and element.threshold is None


def _by_table(element: Element) -> CodeTables | None:
    if element.width > WIDEST or not _has_plain_codes(element):
        return None
    values = _exact(element.values(_every_code(element.width)))
    return None if values is None else CodeTables(element.width, values)


def _minifloat(element: Minifloat) -> CodeTables | None:
    """Returns tables that compute 8-bit minifloats instead of looking them up."""
    tables = _by_table(element)
    if tables is None or element.width != 8 or abs(element.bias) >= FLOAT32_BIAS:
        return tables
    return replace(
        tables,
        reading=FLOAT,
        step=2.0 ** (FLOAT32_BIAS - element.bias),
        mantissa_width=element.mantissa_width,
        largest_code=element.largest_code,
    )


def _trit(element: Trit) -> CodeTables:
    return CodeTables(0, element.values(torch.arange(3, device="cpu")).float(), TRITS)


READINGS: dict[type[Element], Callable[[Any], CodeTables | None]] = {
    Minifloat: _minifloat,
    Trit: _trit,
}
"""Elements with their own decoding; all others are looked up in a table."""


def _every_code(width: int) -> Tensor:
    return torch.arange(2**width, device="cpu")


def _packed(width: int) -> Tensor:
    return pack_bits(_every_code(width), width)


def _exact(values: Tensor) -> Tensor | None:
    """Returns the numbers as float32, or None if float32 cannot represent one exactly."""
    # Rounding never returns the code of infinity, and the loops clamp products to finite numbers.
    values = values.masked_fill(values.isinf(), torch.nan)
    rounded = values.float()
    holds = (rounded.double() == values.double()) | values.isnan()
    return rounded if holds.all() else None


def _scaled(groups: Groups, scaling: Scaling, tables: CodeTables) -> CodeTables | None:
    if scaling.stores_floats:
        return _whole(replace(tables, groups=groups))
    if isinstance(scaling, NestedScale):
        nested = torch.tensor(nested_table(), dtype=torch.float32, device="cpu")
        scaled = replace(tables, groups=groups, scale_values=nested, scale_width=scaling.width)
        return _whole(replace(scaled, has_nested_scales=True))
    scale_width = scaling.width - scaling.zero_width
    if scale_width > WIDEST:
        return None
    scales = _scale_values(scaling)
    # Scales of 2^128 exceed float32: the excess power of two moves into the elements.
    excess = max(int(scales.nan_to_num(nan=0.0).max().frexp().exponent) - FLOAT32_BIAS - 1, 0)
    zeros = _zero_values(scaling) if scaling.zero_width else None
    # The loops read a zero point as the byte after a 16-bit scale, and do not rescale it.
    if zeros is not None and (excess or (scale_width, scaling.zero_width) != ZERO_WIDTHS):
        return None
    values = _exact(tables.values.double() * 2.0**excess)
    scale_values = _exact(scales * 2.0**-excess)
    if values is None or scale_values is None:
        return None
    step = tables.step * 2.0**excess
    # The loops multiply fields of minifloats by `step` in float32, where 2^128 is infinite.
    reading = tables.reading if step <= LARGEST_POWER else TABLE
    tables = replace(tables, values=values, reading=reading, step=step)
    scaled = replace(tables, groups=groups, scale_values=scale_values, scale_width=scaling.width)
    return _whole(scaled if zeros is None else replace(scaled, zero_values=zeros))


def _whole(tables: CodeTables) -> CodeTables:
    """Reads integer codes as integers and moves their step into the scales."""
    # All integer encodings have code 1 for the number 1, so its value is the step.
    step = tables.values[1]
    for reading, read in WHOLE_NUMBERS.items():
        whole = read(tables.width) if tables.width in BYTES_AND_NIBBLES else None
        if whole is not None and _same(tables.values, whole * step):
            return _with_whole(tables, reading, whole, step)
    if tables.width == 4 and _same(tables.values[8:], -tables.values[:8]):
        return replace(tables, reading=MIRRORED)
    return tables


def _with_whole(tables: CodeTables, reading: int, whole: Tensor, step: Tensor) -> CodeTables:
    read = replace(tables, reading=reading, values=whole)
    if step == 1:
        return read
    if tables.groups is None:
        return replace(read, factor=step.item())
    if tables.scale_values is None or tables.zero_values is not None:
        return tables  # products with float scales could overflow; zero points include the step
    scales = _exact(tables.scale_values.double() * step.double())
    return tables if scales is None else replace(read, scale_values=scales)


def _same(a: Tensor, b: Tensor) -> bool:
    # `equal` ignores the sign of zero, but decoding has to reproduce it.
    return torch.equal(a, b) and torch.equal(a.signbit(), b.signbit())


def _in_twos_complement(width: int) -> Tensor:
    codes = _every_code(width)
    return (codes - ((codes >> width - 1) << width)).float()


def _in_sign_and_magnitude(width: int) -> Tensor | None:
    magnitudes = torch.arange(2 ** (width - 1), device="cpu").float()
    return None if width == 4 else torch.cat((magnitudes, -magnitudes))  # 4 bits: MIRRORED


BYTES_AND_NIBBLES = (8, 4)
WHOLE_NUMBERS: dict[int, Callable[[int], Tensor | None]] = {
    WHOLE: _in_twos_complement,
    NATURAL: lambda width: _every_code(width).float(),
    MAGNITUDE: _in_sign_and_magnitude,
}
"""Numbers of computed codes by their width."""


def _scale_values(scaling: Scaling) -> Tensor:
    """Returns the number of each scale code as float64, without the scale of the whole tensor."""
    one = torch.ones((), device="cpu") if scaling.tensor_width else None
    codes = _every_code(scaling.width - scaling.zero_width)
    scales = scaling.restore(pack_bits(codes, scaling.width), len(codes), one).view(-1)
    # No group has an infinite scale; NaN marks the code as unused.
    return scales.masked_fill(scales.isinf(), torch.nan)


def _zero_values(scaling: Scaling) -> Tensor:
    """Returns the number of each zero-point code as float32."""
    codes = _every_code(scaling.zero_width) << scaling.width - scaling.zero_width
    zeros = scaling.restore_zero_points(pack_bits(codes, scaling.width), len(codes))
    assert zeros is not None
    return zeros.float().view(-1)
