"""Exact products of 8-bit integers."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import NamedTuple

import torch
from torch import Tensor

from chop.formats import NumberFormat, from_key, parse_format_string
from chop.formats.groups import WHOLE_TENSOR, Lines, Whole
from chop.formats.packing import unpack_bits
from chop.formats.scaling import EPSILON, TINY
from chop.kernels.codes import WHOLE, CodeTables, Packed, fixed_tables
from chop.kernels.cpu.crossovers import Crossover, random_bytes, register
from chop.kernels.cpu.measure import pointer
from chop.kernels.cpu.reader import CHUNK_ROWS, Reader, find_reader, is_large
from chop.kernels.integers import get_integers, one_scale
from chop.kernels.plan import get_layout
from chop.private.torch_api import has_int8_products, multiply_int8

LONGEST_SUM = (2**31 - 1) // 128**2
"""Largest number of 8-bit products whose sum always fits 32 bits."""
BYTE = 8
INPUTS, WEIGHTS = "8.0", "scale_integer:width=8:granularity=channel"
"""Formats of the products that are measured."""
SHAPES = ((3072, 768), (4096, 4096))
"""Weights that are measured. oneDNN rearranges the whole weight on each call."""


class Rule(ctypes.Structure):
    """Rounding rule of activations. `int8.cpp` documents the fields."""

    _fields_ = (
        *((name, ctypes.c_double) for name in ("low", "high")),
        *((name, ctypes.c_float) for name in ("given", "smallest", "zero_scale")),
    )


class Arguments(ctypes.Structure):
    """Arguments of a product. `Product` in `int8.cpp` documents the fields."""

    _fields_ = (
        ("rule", Rule),
        ("codes", ctypes.c_void_p),
        ("columns", ctypes.c_int64),
        ("scales", ctypes.c_void_p),
        ("stride", ctypes.c_int64),
        ("bias", ctypes.c_void_p),
        ("outputs", ctypes.c_int64),
        ("is_one_line", ctypes.c_int32),
    )


class WholeRule(NamedTuple):
    """Rule that rounds activations to integers.

    Attributes:
        low: smallest integer.
        high: largest integer.
        scale: static scale; 0 computes it from the largest magnitude.
        by_row: True if each row has its own scale.
    """

    low: int
    high: int
    scale: float
    by_row: bool

    @property
    def has_own_rows(self) -> bool:
        """True if rounding a row does not depend on other rows."""
        return self.by_row or self.scale != 0

    @property
    def structure(self) -> Rule:
        """Rule in the form that the loops take."""
        return Rule(self.low, self.high, self.scale, TINY, EPSILON)


@cache
def is_exact() -> bool:
    """Returns True if oneDNN computes 8-bit products exactly on this CPU."""
    # Without the instructions, oneDNN adds pairs of products in 16 bits. The largest ones saturate.
    largest = torch.full((64, 64), 127, dtype=torch.int8, device="cpu")
    sums = multiply_int8(largest, largest)
    return has_int8_products() and bool((sums == 64 * 127**2).all())


def whole_rule(number_format: NumberFormat) -> WholeRule | None:
    """Returns the rule of a signed integer format of up to 8 bits, or None for other formats."""
    layout = get_layout(number_format) if number_format.is_fitted else None
    integers = get_integers(layout)
    if layout is None or integers is None or integers.low >= 0:
        return None
    scale, by_row = one_scale(layout, integers), layout.groups == ROWS
    if scale is None or not (scale or by_row or layout.groups == WHOLE_TENSOR):
        return None
    return WholeRule(integers.low, integers.high, scale, by_row)


ROWS = Whole("row")


def linear(
    x: Tensor,
    x_format: NumberFormat,
    reader: Reader,
    packed: Packed,
    bias: Tensor | None,
) -> Tensor | None:
    """Returns `F.linear` of rounded rows (rows, columns) and a packed weight.

    Returns None unless both are 8-bit integers with a scale per row or per tensor, and `x` has no
    NaN. The integer sums are exact. Each is multiplied by the float32 product of its two scales,
    so a row's result depends neither on other rows nor on the instruction set. If that product
    overflows float32, the result is infinite, or NaN for a sum of 0.
    """
    rule = known_rule(x_format, reader, x.size(1))
    return None if rule is None else Product(reader, rule, packed, bias)(x.contiguous())


class Product:
    """Prepared `F.linear` of rounded rows and a packed weight, in one call of the loops.

    Attributes:
        loops: compiled library.
        rule: rounding rule of the rows.
        codes: codes of the weight, one byte each.
        scales: float32 scales of the weight, one per row or one in total.
        bias: float32 (outputs,), contiguous, or None.
        shape: shape of the weight.
        owned_bytes: size of widened codes, in bytes; 0 if the codes are the packed weight's.
    """

    def __init__(
        self, reader: Reader, rule: WholeRule, packed: Packed, bias: Tensor | None
    ) -> None:
        scales = packed.scales
        if scales is None or not scales.numel():
            scales = torch.tensor([reader.tables.factor], dtype=torch.float32, device="cpu")
        self.loops, self.rule, self.codes, self.scales = reader.loops, rule, packed.codes, scales
        self.bias, self.shape = bias, packed.shape
        self.owned_bytes = packed.codes.nbytes if packed.codes.dtype == torch.int8 else 0
        self._structure = Arguments(
            rule=rule.structure,
            codes=packed.codes.data_ptr(),
            columns=packed.shape[1],
            scales=scales.data_ptr(),
            # A stride of 0 reads the same scale for every output.
            stride=int(scales.numel() > 1),
            bias=None if bias is None else bias.data_ptr(),
            outputs=packed.shape[0],
            is_one_line=not rule.has_own_rows,
        )
        self._prepared = ctypes.byref(self._structure)
        self._multiply = _multiply(reader.loops)
        # `torch._int_mm` returns uninitialized memory for a single column.
        self._is_for_loops = not is_large(packed.shape) or packed.shape[1] == 1

    def __call__(self, x: Tensor) -> Tensor | None:
        """Multiplies contiguous float32 rows (..., columns); returns None if `x` has a NaN."""
        rows = x.numel() // self.shape[1]
        if not self._is_for_loops and INT8.is_used(self.shape, rows):
            return _by_onednn(x, self)
        return self.by_loops(x)

    def by_loops(self, x: Tensor) -> Tensor | None:
        """Computes the product in the loops of this package."""
        outputs, columns = self.shape
        y = x.new_empty((*x.shape[:-1], outputs))
        rows, threads = x.numel() // columns, torch.get_num_threads()
        has_nan = self._multiply(self._prepared, x.data_ptr(), y.data_ptr(), rows, threads)
        return None if has_nan else y


def prepared_product(
    x_format: NumberFormat, packed: Packed, bias: Tensor | None, widens: bool = True
) -> Product | None:
    """Returns the prepared product if rows and weight are 8-bit integers, otherwise None.

    Args:
        x_format: number format of the rows.
        packed: weight.
        bias: float32 (outputs,), contiguous, or None.
        widens: allows storing codes of fewer bits as bytes as well.
    """
    reader = find_reader(packed)
    if reader is None or not reader.takes(packed):
        return None
    rule = known_rule(x_format, reader, packed.shape[1])
    if rule is not None:
        return Product(reader, rule, packed, bias)
    if not (widens and _is_narrow(from_key(packed.key), reader.tables, reader.lines)):
        return None
    rule = whole_rule(x_format)
    return None if rule is None else Product(reader, rule, _widened(packed), bias)


def _is_narrow(number_format: NumberFormat, tables: CodeTables, lines: Lines) -> bool:
    """Returns True for integer codes of fewer than 8 bits with one scale per row or per tensor."""
    integers = get_integers(get_layout(number_format))
    has_one_scale = tables.scale_values is None and lines.groups_per_row <= 1
    is_short = has_one_scale and lines.columns <= LONGEST_SUM
    if integers is None or (tables.stores_floats and integers.step != 1):
        return False  # a stored scale does not include the step
    return is_short and integers.low < 0 and tables.width < BYTE


def _widened(packed: Packed) -> Packed:
    """Returns the codes as two's-complement bytes, with their step in the scales."""
    layout = get_layout(from_key(packed.key))
    integers = get_integers(layout)
    assert layout is not None and integers is not None
    width, scales = layout.element.width, packed.scales
    half, numel = 1 << width - 1, math.prod(packed.shape)
    # Sign extension from `width` bits: flip the sign bit, then subtract its weight.
    codes = ((unpack_bits(packed.codes, width, numel).int() ^ half) - half).to(torch.int8)
    if scales is None or not scales.numel():
        scales = torch.tensor([integers.step], dtype=torch.float32, device="cpu")
    return packed._replace(codes=codes, scales=scales)


@cache
def _multiply(loops: ctypes.CDLL) -> Callable[..., int]:
    """Returns `chop_int8_linear` with declared argument types, which make calls faster."""
    pointer, number = ctypes.c_void_p, ctypes.c_int32
    prototype = ctypes.CFUNCTYPE(number, *[pointer] * 3, ctypes.c_int64, number)
    return prototype(("chop_int8_linear", loops))


def _calls(shape: tuple[int, int], rows: int) -> tuple[Callable[[], object], Callable[[], object]]:
    """Returns products of random codes by the loops and by oneDNN."""
    codes = random_bytes(math.prod(shape))
    scales = torch.ones(shape[0], dtype=torch.float32, device="cpu")
    key = parse_format_string(WEIGHTS).key
    product = prepared_product(
        parse_format_string(INPUTS), Packed(codes, scales, None, shape, key), None
    )
    assert product is not None
    x = random_bytes(rows * shape[1]).view(rows, shape[1]).float().sub_(128).div_(64)
    return partial(product.by_loops, x), partial(_by_onednn, x, product)


def _by_onednn(x: Tensor, product: Product) -> Tensor | None:
    rows = x.view(-1, x.size(-1))
    rounded = _rounded(product.loops, rows, product.rule)
    if rounded is None:
        return None
    whole, x_scales = rounded
    weight = product.codes.view(torch.int8).view(*product.shape)
    y = x.new_empty((*x.shape[:-1], weight.size(0)))
    # Sums of a chunk are rescaled while they are in the cache.
    for part, part_scales, target in zip(
        *(tensor.split(CHUNK_ROWS) for tensor in (whole, x_scales, y.view(len(rows), -1))),
        strict=True,
    ):
        sums = multiply_int8(part, weight.t())
        _rescale(product.loops, sums, part_scales, product.scales, product.bias, target)
    return y


def known_rule(x_format: NumberFormat, reader: Reader, columns: int) -> WholeRule | None:
    """Returns the rounding rule of rows, or None if `linear` does not support them."""
    return _rule(x_format, reader.tables, reader.lines) if columns <= LONGEST_SUM else None


def takes(x_format: NumberFormat, weight_format: NumberFormat, shape: Sequence[int]) -> bool:
    """Returns True if `prepared_product` supports this pair of formats and weight shape."""
    tables = fixed_tables(weight_format)
    lines = None if tables is None else tables.lines(shape)
    if tables is None or lines is None or lines.columns > LONGEST_SUM:
        return False
    if _is_narrow(weight_format, tables, lines):
        return whole_rule(x_format) is not None
    return takes_as_codes(x_format, weight_format, shape)


def takes_as_codes(
    x_format: NumberFormat, weight_format: NumberFormat, shape: Sequence[int]
) -> bool:
    """Returns True if `prepared_product` supports the pair without widening codes to bytes."""
    tables = fixed_tables(weight_format)
    lines = None if tables is None else tables.lines(shape)
    if tables is None or lines is None or lines.columns > LONGEST_SUM:
        return False
    return _rule(x_format, tables, lines) is not None


def _rule(x_format: NumberFormat, tables: CodeTables, lines: Lines) -> WholeRule | None:
    if (tables.reading, tables.width) != (WHOLE, BYTE) or tables.scale_values is not None:
        return None
    return whole_rule(x_format) if lines.groups_per_row <= 1 else None


def workspace_bytes(loops: ctypes.CDLL, rows: int, outputs: int, columns: int) -> int:
    """Returns the workspace of `linear` in bytes: rounded rows; for oneDNN, sums of two chunks."""
    is_for_loops = not is_large((outputs, columns)) or columns == 1
    if not is_for_loops and INT8.is_used((outputs, columns), rows):
        return rows * (columns + 4) + 4 * min(rows, 2 * CHUNK_ROWS) * outputs
    sizes = (ctypes.c_int64, ctypes.c_int64, ctypes.c_int32)
    count_bytes = ctypes.CFUNCTYPE(ctypes.c_int64, *sizes)(("chop_int8_workspace", loops))
    return int(count_bytes(rows, columns, torch.get_num_threads()))


def _rounded(loops: ctypes.CDLL, x: Tensor, rule: WholeRule) -> tuple[Tensor, Tensor] | None:
    """Returns int8 codes (rows, columns) and float32 scales (rows,); None if `x` has a NaN."""
    whole = torch.empty(x.shape, dtype=torch.int8, device="cpu")
    lines = x.size(0) if rule.has_own_rows else 1
    scales = torch.empty(lines, dtype=torch.float32, device="cpu")
    has_nan = loops.chop_int8_codes(
        *map(pointer, (x, whole, scales)),
        *map(ctypes.c_int64, (lines, x.numel() // lines)),
        ctypes.byref(rule.structure),
        torch.get_num_threads(),
    )
    return None if has_nan else (whole, scales.expand(x.size(0)).contiguous())


def _rescale(
    loops: ctypes.CDLL,
    sums: Tensor,
    x_scales: Tensor,
    scales: Tensor,
    bias: Tensor | None,
    y: Tensor,
) -> None:
    loops.chop_int8_rescale(
        pointer(sums),
        pointer(x_scales),
        pointer(scales),
        ctypes.c_int64(int(scales.numel() > 1)),
        pointer(bias),
        pointer(y),
        *map(ctypes.c_int64, y.shape),
        torch.get_num_threads(),
    )


INT8 = register(
    Crossover("8-bit products", _calls, SHAPES, is_exact, "oneDNN is not exact on this processor")
)
