"""Products of 8-bit integers: exact, where float32 would round."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from chop.formats import NumberFormat, from_key
from chop.formats.groups import WHOLE_TENSOR, Lines, Whole
from chop.formats.packing import unpack_bits
from chop.formats.scaling import EPSILON, TINY
from chop.kernels.codes import WHOLE, CodeTables, Packed, fixed_tables
from chop.kernels.cpu.measure import pointer
from chop.kernels.cpu.reader import CHUNK_ROWS, Reader, find_reader, is_large
from chop.kernels.integers import get_integers, one_scale
from chop.kernels.plan import get_layout
from chop.private.torch_api import has_int8_products, has_tiles, multiply_int8

LONGEST_SUM = (2**31 - 1) // 128**2
"""Products of such integers whose sum 32 bits hold, whatever they are."""
BYTE = 8
MANY_FOR_TILES = 64
"""Rows of activations from which oneDNN, by AMX, is faster than loops of our own."""


class Rule(ctypes.Structure):
    """How loops round activations: see int8.cpp for the fields."""

    _fields_ = (
        *((name, ctypes.c_double) for name in ("low", "high")),
        *((name, ctypes.c_float) for name in ("given", "smallest", "of_zeros")),
    )


class Arguments(ctypes.Structure):
    """A product as loops take it: see `Product` of int8.cpp for the fields."""

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
    """How activations become integers.

    Attributes:
        low: the smallest integer.
        high: the largest integer.
        scale: of all of them; 0 to follow the largest magnitude.
        by_row: whether each row has a scale of its own.
    """

    low: int
    high: int
    scale: float
    by_row: bool

    @property
    def has_own_rows(self) -> bool:
        """Whether a row is rounded without looking at others."""
        return self.by_row or self.scale != 0

    @property
    def structure(self) -> Rule:
        """What the loops take."""
        return Rule(self.low, self.high, self.scale, TINY, EPSILON)


@cache
def is_exact() -> bool:
    """True where the CPU has instructions for these products, and oneDNN takes them.

    Without, it adds pairs of products in 16 bits, which are too few for large ones.
    """
    largest = torch.full((64, 64), 127, dtype=torch.int8, device="cpu")
    sums = multiply_int8(largest, largest)
    return has_int8_products() and bool((sums == 64 * 127**2).all())


def whole_rule(number_format: NumberFormat) -> WholeRule | None:
    """The rule of a format, or None if it is not one of signed integers of up to 8 bits."""
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
    """`F.linear` of rounded rows (rows, columns) and a packed weight.

    None unless both are 8-bit integers times a scale that whole rows share, and `x` has no NaN.
    Sums are exact, and each is multiplied by the product of its two scales in float32: a row has
    the same result among any others, by any instructions. Scales whose product float32 does not
    hold give infinities, or NaN of a sum of 0.
    """
    rule = known_rule(x_format, reader, x.size(1))
    return None if rule is None else Product(reader, rule, packed, bias)(x.contiguous())


class Product:
    """`F.linear` of rounded rows and a packed weight in one call of the loops, prepared once.

    Attributes:
        loops: the library.
        rule: how rows are rounded.
        codes: of the weight, a byte each.
        scales: of its rows, float32; one for all of them.
        bias: float32 (outputs,), contiguous, or None.
        shape: of the weight.
        kept_bytes: of codes that are its own.
    """

    def __init__(
        self, reader: Reader, rule: WholeRule, packed: Packed, bias: Tensor | None
    ) -> None:
        scales = packed.scales
        if scales is None or not scales.numel():
            scales = torch.tensor([reader.tables.factor], dtype=torch.float32, device="cpu")
        self.loops, self.rule, self.codes, self.scales = reader.loops, rule, packed.codes, scales
        self.bias, self.shape = bias, packed.shape
        self.kept_bytes = packed.codes.nbytes if packed.codes.dtype == torch.int8 else 0
        self._structure = Arguments(
            rule=rule.structure,
            codes=packed.codes.data_ptr(),
            columns=packed.shape[1],
            scales=scales.data_ptr(),
            stride=int(scales.numel() > 1),
            bias=None if bias is None else bias.data_ptr(),
            outputs=packed.shape[0],
            is_one_line=not rule.has_own_rows,
        )
        self._prepared = ctypes.byref(self._structure)
        self._multiply = _multiply(reader.loops)
        # Of one column `torch._int_mm` gives what was in memory.
        is_for_loops = not is_large(packed.shape) or packed.shape[1] == 1
        self._rows_for_onednn = math.inf if is_for_loops else rows_for_onednn()

    def __call__(self, x: Tensor) -> Tensor | None:
        """Of contiguous float32 (..., columns); None if there is a NaN in it."""
        outputs, columns = self.shape
        rows, threads = x.numel() // columns, torch.get_num_threads()
        if rows >= self._rows_for_onednn:
            return _by_onednn(x, self)
        y = x.new_empty((*x.shape[:-1], outputs))
        found_nan = self._multiply(self._prepared, x.data_ptr(), y.data_ptr(), rows, threads)
        return None if found_nan else y


def prepared_product(
    x_format: NumberFormat, packed: Packed, bias: Tensor | None, widens: bool = True
) -> Product | None:
    """The product by a packed weight, where it and its rounded rows are 8-bit integers; else None.

    Args:
        x_format: of the rows.
        packed: the weight.
        bias: float32 (outputs,), contiguous, or None.
        widens: whether codes of fewer bits may be kept as bytes, too.
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
    """Whether codes are whole numbers of fewer than 8 bits times a scale that rows share."""
    integers = get_integers(get_layout(number_format))
    has_one_scale = tables.scale_values is None and lines.groups_per_row <= 1
    is_short = has_one_scale and lines.columns <= LONGEST_SUM
    if integers is None or (tables.stores_floats and integers.step != 1):
        return False  # a stored scale does not have the step
    return is_short and integers.low < 0 and tables.width < BYTE


def _widened(packed: Packed) -> Packed:
    """The codes as bytes in two's complement, and the step among the scales."""
    layout = get_layout(from_key(packed.key))
    integers = get_integers(layout)
    assert layout is not None and integers is not None
    width, scales = layout.element.width, packed.scales
    half, numel = 1 << width - 1, math.prod(packed.shape)
    codes = ((unpack_bits(packed.codes, width, numel).int() ^ half) - half).to(torch.int8)
    if scales is None or not scales.numel():
        scales = torch.tensor([integers.step], dtype=torch.float32, device="cpu")
    return packed._replace(codes=codes, scales=scales)


@cache
def _multiply(loops: ctypes.CDLL) -> Callable[..., int]:
    """`chop_int8_linear` with declared arguments: building each would take as long as a product."""
    pointer, number = ctypes.c_void_p, ctypes.c_int32
    prototype = ctypes.CFUNCTYPE(number, *[pointer] * 3, ctypes.c_int64, number)
    return prototype(("chop_int8_linear", loops))


@cache
def rows_for_onednn() -> float:
    """From how many rows on oneDNN is faster than the loops; infinity: never.

    It lays the weight out anew at each call.
    """
    return MANY_FOR_TILES if has_tiles() and is_exact() else math.inf


def _by_onednn(x: Tensor, product: Product) -> Tensor | None:
    rows = x.view(-1, x.size(-1))
    rounded = _rounded(product.loops, rows, product.rule)
    if rounded is None:
        return None
    whole, x_scales = rounded
    weight = product.codes.view(torch.int8).view(*product.shape)
    y = x.new_empty((*x.shape[:-1], weight.size(0)))
    for part, part_scales, target in zip(
        *(tensor.split(CHUNK_ROWS) for tensor in (whole, x_scales, y.view(len(rows), -1))),
        strict=True,
    ):
        sums = multiply_int8(part, weight.t())
        _rescale(product.loops, sums, part_scales, product.scales, product.bias, target)
    return y


def known_rule(x_format: NumberFormat, reader: Reader, columns: int) -> WholeRule | None:
    """How rows of so many columns become integers; None where `linear` does not multiply them."""
    return _rule(x_format, reader.tables, reader.lines) if columns <= LONGEST_SUM else None


def takes(x_format: NumberFormat, weight_format: NumberFormat, shape: Sequence[int]) -> bool:
    """Whether `prepared_product` takes rows in a format and a weight in another."""
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
    """As `takes`, of weights that are not widened to bytes."""
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
    """What `linear` needs beside its result: integers of rows; for oneDNN, sums of two chunks."""
    if rows >= rows_for_onednn():
        return rows * (columns + 4) + 4 * min(rows, 2 * CHUNK_ROWS) * outputs
    sizes = (ctypes.c_int64, ctypes.c_int64, ctypes.c_int32)
    of_loops = ctypes.CFUNCTYPE(ctypes.c_int64, *sizes)(("chop_int8_workspace", loops))
    return int(of_loops(rows, columns, torch.get_num_threads()))


def _rounded(loops: ctypes.CDLL, x: Tensor, rule: WholeRule) -> tuple[Tensor, Tensor] | None:
    """int8 (rows, columns) and float32 (rows,); None if there is a NaN."""
    whole = torch.empty(x.shape, dtype=torch.int8, device="cpu")
    lines = x.size(0) if rule.has_own_rows else 1
    scales = torch.empty(lines, dtype=torch.float32, device="cpu")
    found_nan = loops.chop_int8_codes(
        *map(pointer, (x, whole, scales)),
        *map(ctypes.c_int64, (lines, x.numel() // lines)),
        ctypes.byref(rule.structure),
        torch.get_num_threads(),
    )
    return None if found_nan else (whole, scales.expand(x.size(0)).contiguous())


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
