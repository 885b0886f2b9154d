"""Decoding of packed weights and multiplication by them, on CPUs."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from chop.formats import NumberFormat, from_key
from chop.formats.reference import cast
from chop.kernels.codes import Flat, Packed, fixed_tables
from chop.kernels.cpu import bfloat16, int8
from chop.kernels.cpu.products import (
    by_codes,
    decode_rows,
    decoded,
    has_row_factors,
    in_panels,
    panel_bytes,
)
from chop.kernels.cpu.reader import CHUNK_ROWS, Reader, find_reader, fixed_reader, is_large

SINGLE = (torch.float32, torch.bfloat16, torch.float16)
"""Activation dtypes for which float32 products are precise enough."""
FEW_WITH_MINIMA = 48
"""Rows up to which products of minima are subtracted, instead of decoding the minima too."""


def decode(packed: Packed, dtype: torch.dtype) -> Tensor | None:
    """Returns the decoded tensor, or None if the loops do not support the codes."""
    flat = packed.flattened()
    if flat is not None:
        return _decode_flat(flat, dtype)
    reader = _decoder(packed, dtype)
    return None if reader is None else decoded(reader, packed, dtype)


def _decode_flat(flat: Flat, dtype: torch.dtype) -> Tensor | None:
    """Decodes a tensor whose nested scales are floats; minima are subtracted in float32."""
    y = decode(flat.packed, dtype if flat.offsets is None else torch.float32)
    if y is None or flat.offsets is None:
        return y
    return cast(flat.subtract(y), dtype) if dtype in SINGLE else flat.subtract(y).to(dtype)


def decode_into(packed: Packed, y: Tensor) -> bool:
    """Writes the decoded tensor to a contiguous `y`; returns False if that is unsupported."""
    reader = _decoder(packed, y.dtype)
    if reader is None or y.shape != torch.Size(packed.shape) or not y.is_contiguous():
        return False
    decode_rows(reader, packed, y, 0, reader.lines.rows)
    return True


def linear(x: Tensor, x_key: str, packed: Packed, bias: Tensor | None) -> Tensor | None:
    """Returns `F.linear` of a packed weight, or None if decoding the weight first is as fast.

    The method depends on the formats and the number of rows:

    - Two 8-bit integer formats with a scale per row are multiplied as integers, exactly.
    - Few rows are multiplied in float32 by a weight that is decoded on the fly.
    - Many rows are multiplied by a weight that is decoded in parts, or as a whole if that is faster
      on this machine.
    - Many rows are multiplied in bfloat16, by the loops or by oneDNN, if `bfloat16.may_round`
      allows it and the processor is faster that way.
    """
    if not (_fit(x, packed.shape, bias) and is_large(packed.shape)):
        return None
    y = few_rows(x, packed, bias) if from_key(x_key).is_identity else None
    if y is not None:
        return y
    flat = packed.flattened()
    if flat is not None:
        return _linear_flat(x, x_key, flat, bias)
    reader = find_reader(packed)
    if reader is None or not reader.takes(packed):
        return None
    x_format, rows = from_key(x_key), _rows(x)
    bias = None if bias is None else _float(bias)
    if x.dtype == torch.float32 and not x_format.is_identity:
        y = int8.linear(rows, x_format, reader, packed, bias)
    if y is None:
        rows = _rows(x_format(x))
        is_by_onednn = bfloat16.is_by_onednn(reader, x.dtype, packed.shape, len(rows))
        y = (in_panels if is_by_onednn else bfloat16.without_panels)(reader, rows, packed, bias)
    if y is None:
        return None
    return y if x.ndim == 2 else y.view(*x.shape[:-1], packed.shape[0])


def few_rows(x: Tensor, packed: Packed, bias: Tensor | None) -> Tensor | None:
    """Multiplies few float32 rows by codes, or returns None if `linear` has to prepare operands.

    It checks only what differs between calls, because a generated token takes hundreds of them.

    Args:
        x: (..., columns) on the CPU.
        packed: weight.
        bias: (outputs,) or None.
    """
    known = _rows_reader(packed.key, tuple(packed.shape))
    if known is None or x.dtype != torch.float32 or packed.tensor_scale is not None:
        return None
    reader, most = known
    if not (_fit(x, packed.shape, bias) and x.numel() <= most * packed.shape[1]):
        return None
    if bias is not None and bias.dtype != torch.float32:
        return None
    is_contiguous = x.is_contiguous() and (bias is None or bias.is_contiguous())
    return by_codes(reader, x, packed, bias) if is_contiguous and reader.takes(packed) else None


@lru_cache(maxsize=4096)
def _rows_reader(key: str, shape: tuple[int, ...]) -> tuple[Reader, int] | None:
    """Returns the reader of a weight and the largest number of rows for it; None without one."""
    reader = fixed_reader(key, shape) if is_large(shape) else None
    return None if reader is None else (reader, min(reader.few_rows, reader.decoded_rows - 1))


def _linear_flat(x: Tensor, x_key: str, flat: Flat, bias: Tensor | None) -> Tensor | None:
    """Multiplies by a weight whose nested scales are floats.

    The products of minima with the sums of groups are subtracted from the result, for few float32
    rows: rounding both to bfloat16 could cancel.
    """
    if flat.offsets is None:
        return linear(x, x_key, flat.packed, bias)
    is_few = x.numel() <= FEW_WITH_MINIMA * flat.packed.shape[1]
    if x.dtype != torch.float32 or not is_few or not from_key(x_key).is_identity:
        return None
    y = linear(x, x_key, flat.packed, bias)
    products = None if y is None else flat.products(_rows(x))
    return y if y is None or products is None else y.sub_(products.view(y.shape))


def bfloat16_roundings(number_format: NumberFormat, shape: Sequence[int]) -> int:
    """Returns the largest number of roundings per product in bfloat16, 2 or 3.

    `x` and the sum of products are rounded. Weights are rounded too if their scales are neither
    powers of two nor factors of whole rows. For codes that bfloat16 does not represent, `x` and the
    weights are rounded. Each rounding is to 8 significant bits. The result differs from float32 by
    at most this number times 2^-8 times the sum of the products' magnitudes, up to terms of 2^-16.
    """
    tables = fixed_tables(number_format)
    if tables is None or not tables.suits_bfloat16:
        return 2
    lines = tables.lines(shape)
    is_factor = lines is not None and tables.stores_floats and lines.groups_per_row <= 1
    layout = number_format.layout()
    scaling = None if layout is None else layout.scaling
    are_powers = tables.scales_are_powers and not (scaling and scaling.spans_tensor)
    return 2 if is_factor or are_powers else 3


def workspace_bytes(x: Tensor, x_key: str, packed: Packed, bias: Tensor | None) -> int | None:
    """Returns the workspace of `linear` in bytes, or None if `linear` returns None.

    Values of tensors are not read, so fake tensors work. The result is also None if the method
    depends on the values of the scales.
    """
    if packed.tensor_scale is not None or not _fit(x, packed.shape, bias):
        return None
    reader = fixed_reader(packed.key, packed.shape) if is_large(packed.shape) else None
    if reader is None or not reader.takes(packed):
        return None
    # The branches of `linear`, in its order.
    (outputs, columns), rows = packed.shape, x.numel() // x.size(-1)
    x_format, is_float = from_key(x_key), x.dtype == torch.float32
    if is_float and int8.known_rule(x_format, reader, columns) is not None:
        return int8.workspace_bytes(reader.loops, rows, outputs, columns)
    rounded = 0 if x_format.is_identity else x.nbytes
    if bfloat16.is_by_onednn(reader, x.dtype, packed.shape, rows):
        has_factors = has_row_factors(reader)
        widens = has_factors or (is_float and bias is not None)
        return rounded + panel_bytes(x.dtype, rows, outputs, columns, widens)
    chunks = 0 if is_float else 4 * min(rows, CHUNK_ROWS) * (outputs + columns)
    if bfloat16.is_in_float32(reader, x.dtype, packed.shape, rows):
        return rounded + 4 * outputs * columns + chunks
    return rounded + _loop_bytes(reader, rows) + chunks if rows <= reader.few_rows else None


def _loop_bytes(reader: Reader, rows: int) -> int:
    """Returns the workspace of the loops, in bytes."""
    sizes = (ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int32)
    name = ("chop_linear_workspace", reader.loops)
    count_bytes = ctypes.CFUNCTYPE(ctypes.c_int64, *sizes)(name)
    threads = torch.get_num_threads()
    return int(count_bytes(ctypes.addressof(reader.codes), rows, reader.lines.columns, threads))


def _fit(x: Tensor, shape: Sequence[int], bias: Tensor | None) -> bool:
    """Returns True if the loops support the shapes, dtypes and the device of the bias."""
    outputs, columns = shape
    if x.ndim == 0 or x.size(-1) != columns or x.dtype not in SINGLE:
        return False
    return (bias is None or (bias.is_cpu and bias.shape == (outputs,))) and x.numel() > 0


def _rows(x: Tensor) -> Tensor:
    return x if x.ndim == 2 else x.reshape(-1, x.size(-1))


def _float(x: Tensor) -> Tensor:
    x = x if x.dtype == torch.float32 else x.float()
    return x if x.is_contiguous() else x.contiguous()


def _decoder(packed: Packed, dtype: torch.dtype) -> Reader | None:
    reader = find_reader(packed)
    if reader is None or not reader.takes(packed):
        return None
    return reader if _decodes(reader, dtype) else None


def _decodes(reader: Reader, dtype: torch.dtype) -> bool:
    """Returns True if the loops decode to a dtype without double rounding or overflow."""
    fits = reader.tables.scales_are_powers and reader.tables.fits_bfloat16
    return dtype == torch.float32 or (dtype == torch.bfloat16 and fits)
