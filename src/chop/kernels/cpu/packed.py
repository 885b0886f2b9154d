"""Decoding of packed weights and multiplication by them, on CPUs."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache, lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from chop.formats import NumberFormat, from_key
from chop.formats.reference import cast
from chop.kernels.codes import CodeTables, Flat, Packed, fixed_tables
from chop.kernels.cpu import int8
from chop.kernels.cpu.measure import pointer
from chop.kernels.cpu.reader import CHUNK_ROWS, Reader, find_reader, fixed_reader, is_large
from chop.kernels.matmul_precision import allows_bfloat16
from chop.private.torch_api import has_bfloat16_products, has_tiles

TYPES = {torch.float32: 0, torch.bfloat16: 1}
"""Enumeration of `plan.h`, for the dtypes that can be decoded."""
SINGLE = (torch.float32, torch.bfloat16, torch.float16)
"""Activation dtypes for which float32 products are precise enough."""
FEW_BESIDE_ONEDNN = 48
"""Rows up to which codes are multiplied in float32 if only oneDNN can multiply in bfloat16."""
MANY_FOR_ONEDNN, MANY_FOR_TILES = 256, 32
"""Rows from which oneDNN multiplies a decoded weight in bfloat16, without and with AMX."""


def decode(packed: Packed, dtype: torch.dtype) -> Tensor | None:
    """Returns the decoded tensor, or None if the loops do not support the codes."""
    flat = packed.flattened()
    if flat is not None:
        return _decode_flat(flat, dtype)
    reader = _decoder(packed, dtype)
    return None if reader is None else _decoded(reader, packed, dtype)


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
    _decode(reader, packed, y)
    return True


def linear(x: Tensor, x_key: str, packed: Packed, bias: Tensor | None) -> Tensor | None:
    """Returns `F.linear` of a packed weight, or None if decoding the weight first is as fast.

    The method depends on the formats and the number of rows:

    - Two 8-bit integer formats with a scale per row are multiplied as integers, exactly.
    - Few rows are multiplied in float32 by a weight that is decoded on the fly.
    - Many rows are multiplied by a weight that is decoded in parts, or as a whole without vector
      instructions.
    - Many rows are rounded to bfloat16 if `_rounds_to_bfloat16` allows it.
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
    x_format, is_float = from_key(x_key), x.dtype == torch.float32
    bias = None if bias is None else _float(bias)
    count = x.numel() // packed.shape[1]
    by_codes = count <= _rows_by_codes(reader, x.dtype, count)
    rows = _rows(x)
    if is_float and not x_format.is_identity:
        y = int8.linear(rows, x_format, reader, packed, bias)
    if y is None and by_codes:
        multiply = _by_codes if is_float else _half_by_codes
        y = multiply(reader, _rows(x_format(x)).contiguous(), packed, bias)
    # Many rows: torch multiplies by the decoded weight in half precision.
    if y is None and _stays_half(x.dtype):
        return None
    if y is None:
        multiply = _in_bfloat16 if is_float and _rounds_to_bfloat16(reader.tables) else _in_float32
        y = multiply(reader, _rows(x_format(x)), packed, bias)
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
    return _by_codes(reader, x, packed, bias) if is_contiguous and reader.takes(packed) else None


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
    is_few = x.numel() <= FEW_BESIDE_ONEDNN * flat.packed.shape[1]
    if x.dtype != torch.float32 or not is_few or not from_key(x_key).is_identity:
        return None
    y = linear(x, x_key, flat.packed, bias)
    products = None if y is None else flat.products(_rows(x))
    return y if y is None or products is None else y.sub_(products.view(y.shape))


def _rounds_to_bfloat16(tables: CodeTables) -> bool:
    """Returns True if many float32 rows are multiplied by such codes in bfloat16.

    `bfloat16_roundings` gives the error. Other codes are decoded and multiplied by torch, which may
    round both operands to bfloat16 under the same setting.
    """
    return multiplies_bfloat16() and tables.suits_bfloat16 and allows_bfloat16()


def _rows_by_codes(reader: Reader, dtype: torch.dtype, rows: int) -> int:
    """Returns the largest number of rows that is multiplied without writing the decoded weight."""
    if rows < reader.decoded_rows:
        return reader.few_rows
    if dtype == torch.float32:
        limit = reader.decoded_rows - 1 if reader.has_bfloat16 else FEW_BESIDE_ONEDNN
        return (
            min(reader.few_rows, limit) if _rounds_to_bfloat16(reader.tables) else reader.few_rows
        )
    if not _stays_half(dtype) or not _decodes(reader, dtype):
        return reader.few_rows
    return min(reader.few_rows, _many_rows() - 1 if reader.has_bfloat16 else FEW_BESIDE_ONEDNN)


@cache
def _many_rows() -> int:
    """Returns the number of rows from which oneDNN is faster in bfloat16."""
    return MANY_FOR_TILES if has_tiles() else MANY_FOR_ONEDNN


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


def _stays_half(dtype: torch.dtype) -> bool:
    """Returns True if many rows are multiplied in their own dtype, as fast as in a float layer."""
    return dtype == torch.bfloat16 and multiplies_bfloat16()


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
    if rows <= _rows_by_codes(reader, x.dtype, rows):
        chunk = 0 if is_float else min(rows, CHUNK_ROWS)
        return rounded + _loop_bytes(reader, rows) + 4 * chunk * (outputs + columns)
    if _stays_half(x.dtype):
        return None
    if is_float and _rounds_to_bfloat16(reader.tables):
        if reader.has_bfloat16 and rows < _many_rows():
            return rounded + _loop_bytes(reader, rows)
        is_widened = bias is not None or _has_row_factors(reader)
        return rounded + _bfloat16_bytes(rows, outputs, columns, is_widened)
    chunk = 0 if is_float else min(rows, CHUNK_ROWS)
    return rounded + 4 * (outputs * columns + chunk * (outputs + columns))


def _loop_bytes(reader: Reader, rows: int) -> int:
    """Returns the workspace of the loops, in bytes."""
    sizes = (ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int32)
    name = ("chop_linear_workspace", reader.loops)
    count_bytes = ctypes.CFUNCTYPE(ctypes.c_int64, *sizes)(name)
    threads = torch.get_num_threads()
    return int(count_bytes(ctypes.addressof(reader.codes), rows, reader.lines.columns, threads))


def _bfloat16_bytes(rows: int, outputs: int, columns: int, is_widened: bool) -> int:
    """Returns the workspace of `_in_bfloat16`: the weight, a chunk and its widened products.

    The products of the previous chunk still exist while a chunk is multiplied.
    """
    chunk = min(rows, CHUNK_ROWS)
    before = min(max(rows - CHUNK_ROWS, 0), CHUNK_ROWS)
    multiplied = 2 * (chunk * columns + before * outputs)
    widened = 4 * chunk * outputs if is_widened else 0
    return 2 * outputs * (columns + chunk) + max(multiplied, widened)


def _has_row_factors(reader: Reader) -> bool:
    """Returns True if scales are factors of whole rows, which can be applied to the sums."""
    return reader.tables.stores_floats and reader.lines.groups_per_row <= 1


def _fit(x: Tensor, shape: Sequence[int], bias: Tensor | None) -> bool:
    """Returns True if the loops support the shapes, dtypes and the device of the bias."""
    outputs, columns = shape
    if x.ndim == 0 or x.size(-1) != columns or x.dtype not in SINGLE:
        return False
    return (bias is None or (bias.is_cpu and bias.shape == (outputs,))) and x.numel() > 0


def _rows(x: Tensor) -> Tensor:
    return x if x.ndim == 2 else x.reshape(-1, x.size(-1))


@cache
def multiplies_bfloat16() -> bool:
    """Returns True if the CPU has instructions for bfloat16 products."""
    return has_bfloat16_products()


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


def _decoded(reader: Reader, packed: Packed, dtype: torch.dtype) -> Tensor:
    y = torch.empty(packed.shape, dtype=dtype, device="cpu")
    _decode(reader, packed, y)
    return y


def _decode(reader: Reader, packed: Packed, y: Tensor) -> None:
    reader.loops.chop_decode(
        ctypes.byref(reader.codes),
        pointer(packed.codes),
        pointer(packed.scales),
        pointer(y),
        TYPES[y.dtype],
        ctypes.c_int64(reader.lines.rows),
        ctypes.c_int64(reader.lines.columns),
        torch.get_num_threads(),
    )


def _by_codes(
    reader: Reader, x: Tensor, packed: Packed, bias: Tensor | None, rounds: bool = False
) -> Tensor:
    """Multiplies contiguous float32 rows (..., columns) by the codes, in 1 to 2 us of Python.

    `rounds` allows rounding `x` and the weights to bfloat16.
    """
    outputs, columns = packed.shape
    codes, scales = packed.codes, packed.scales
    y = x.new_empty((*x.shape[:-1], outputs))
    # Declared argument types: building each argument would take as long as a tenth of the product.
    reader.multiply(
        ctypes.byref(reader.codes),
        codes.data_ptr(),
        None if scales is None else scales.data_ptr(),
        x.data_ptr(),
        None if bias is None else bias.data_ptr(),
        y.data_ptr(),
        x.numel() // columns,
        outputs,
        columns,
        rounds,
        torch.get_num_threads(),
    )
    return y


def _half_by_codes(reader: Reader, x: Tensor, packed: Packed, bias: Tensor | None) -> Tensor:
    """Multiplies half-precision rows (rows, columns) in chunks, in bfloat16 if `_stays_half`."""
    rounds = _stays_half(x.dtype) and reader.tables.suits_bfloat16
    y = x.new_empty(x.size(0), packed.shape[0])
    for part, target in zip(x.split(CHUNK_ROWS), y.split(CHUNK_ROWS), strict=True):
        target.copy_(_by_codes(reader, part.float(), packed, bias, rounds))
    return y


def _in_float32(reader: Reader, x: Tensor, packed: Packed, bias: Tensor | None) -> Tensor:
    """Multiplies by the decoded weight; rows of other dtypes are widened in chunks."""
    weight = _decoded(reader, packed, torch.float32)
    if x.dtype == torch.float32:
        return F.linear(x, weight, bias)
    y = x.new_empty(x.size(0), weight.size(0))
    for part, target in zip(x.split(CHUNK_ROWS), y.split(CHUNK_ROWS), strict=True):
        target.copy_(F.linear(part.float(), weight, bias))
    return y


def _in_bfloat16(reader: Reader, x: Tensor, packed: Packed, bias: Tensor | None) -> Tensor:
    """Multiplies in bfloat16; row scales and the bias are applied to the sums in float32."""
    after = packed.scales if _has_row_factors(reader) else None
    if after is not None:
        reader = reader.unscaled()
    if reader.has_bfloat16 and x.size(0) < _many_rows():
        y = _by_codes(reader, _float(x), packed, bias if after is None else None, rounds=True)
        if after is not None:
            y = y.mul_(after) if bias is None else torch.addcmul(bias, y, after, out=y)
        return y
    weight = _decoded(reader, packed, torch.bfloat16)
    y = x.new_empty(x.size(0), weight.size(0))
    for part, target in zip(x.split(CHUNK_ROWS), y.split(CHUNK_ROWS), strict=True):
        # Scales and bias are float32, so both operations below widen the products first.
        product = F.linear(part.bfloat16(), weight)
        if after is not None:
            product = torch.mul(product, after, out=target)
        if bias is not None:
            torch.add(product, bias, out=target)
        elif after is None:
            target.copy_(product)
    return y
