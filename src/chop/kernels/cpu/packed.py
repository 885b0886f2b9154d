"""Packed weights on CPUs: decoding them, and multiplying by them."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from chop.formats import from_key
from chop.kernels.codes import Packed
from chop.kernels.cpu import int8
from chop.kernels.cpu.measure import pointer
from chop.kernels.cpu.reader import CHUNK_ROWS, Reader, find_reader, fixed_reader, is_large

TYPES = {torch.float32: 0, torch.bfloat16: 1}
"""The enumeration of plan.h, as far as decoding goes."""
SINGLE = (torch.float32, torch.bfloat16, torch.float16)
"""Of activations: products of float32 are as precise as these deserve."""
MANY_FOR_INT8 = 4
"""Rows of activations from which products of integers are faster than that."""


def decode(packed: Packed, dtype: torch.dtype) -> Tensor | None:
    """The tensor that codes stand for; None where the loops do not know them."""
    reader = _decoder(packed, dtype)
    return None if reader is None else _decoded(reader, packed, dtype)


def decode_into(packed: Packed, y: Tensor) -> bool:
    """Writes the tensor that codes stand for to a contiguous `y`; False where it cannot."""
    reader = _decoder(packed, y.dtype)
    if reader is None or y.shape != torch.Size(packed.shape) or not y.is_contiguous():
        return False
    _decode(reader, packed, y)
    return True


def linear(x: Tensor, x_key: str, packed: Packed, bias: Tensor | None) -> Tensor | None:
    """`F.linear` of a packed weight; None where decoding it first is as good, as of a small one.

    Few rows of `x` are multiplied in float32 by weights that are decoded on the way. Many are
    multiplied as 8-bit integers, exactly, where both operands are that times a scale per row; else
    they are rounded to bfloat16, as their products are, where the CPU multiplies it faster and it
    holds the codes' numbers exactly. Which way is taken depends on the arguments and the CPU alone,
    so that results do not change from one call to the next.
    """
    if not (_fit(x, packed.shape, bias) and is_large(packed.shape)):
        return None
    reader = find_reader(packed)
    if reader is None or not reader.takes(packed):
        return None
    x_format, is_float = from_key(x_key), x.dtype == torch.float32
    bias = None if bias is None else _float(bias)
    count = x.numel() // packed.shape[1]
    if is_float and count < MANY_FOR_INT8 and count <= reader.few_rows:
        rounded = x if x_format.is_identity else x_format(x)
        return _few_rows(reader, _float(rounded), packed, bias)
    rows = _rows(x)
    y, are_many = None, count >= MANY_FOR_INT8 and is_float
    if are_many and int8.is_exact():
        y = int8.linear(rows, x_format, reader, packed, bias)
    if y is None and count <= reader.few_rows:
        y = _few_rows(reader, _float(_rows(x_format(x))), packed, bias)
        y = y if is_float else y.to(x.dtype)
    if y is None and are_many and multiplies_bfloat16() and reader.tables.suits_bfloat16:
        y = _many_rows(reader, _rows(x_format(x)), packed, bias)
    return y if y is None or x.ndim == 2 else y.view(*x.shape[:-1], packed.shape[0])


def workspace_bytes(x: Tensor, x_key: str, packed: Packed, bias: Tensor | None) -> int | None:
    """What `linear` needs beside its result, in the way that it takes; None where it takes none.

    The numbers of tensors are not looked at, so that they may be fake: where codes mean what their
    scales say, which way it will be is not known, and the answer is None too.
    """
    if packed.tensor_scale is not None or not _fit(x, packed.shape, bias):
        return None
    reader = fixed_reader(packed.key, packed.shape) if is_large(packed.shape) else None
    if reader is None or not reader.takes(packed):
        return None
    (outputs, columns), rows = packed.shape, x.numel() // x.size(-1)
    x_format, is_float = from_key(x_key), x.dtype == torch.float32
    are_many, rounded = rows >= MANY_FOR_INT8 and is_float, 0 if x_format.is_identity else x.nbytes
    if are_many and int8.is_exact() and int8.known_rule(x_format, reader, columns) is not None:
        return int8.workspace_bytes(rows, outputs, columns)
    if rows <= reader.few_rows:
        return rounded + (0 if is_float else 4 * rows * (outputs + columns))
    if are_many and multiplies_bfloat16() and reader.tables.suits_bfloat16:
        is_widened = bias is not None or _has_row_factors(reader)
        return rounded + _many_rows_bytes(rows, outputs, columns, is_widened)
    return None


def _many_rows_bytes(rows: int, outputs: int, columns: int, is_widened: bool) -> int:
    """Of `_many_rows`, in bfloat16: the weight, a chunk and its products, which are then widened.

    While a chunk is multiplied, the products of the one before are still there.
    """
    chunk = min(rows, CHUNK_ROWS)
    before = min(max(rows - CHUNK_ROWS, 0), CHUNK_ROWS)
    multiplied = 2 * (chunk * columns + before * outputs)
    widened = 4 * chunk * outputs if is_widened else 0
    return 2 * outputs * (columns + chunk) + max(multiplied, widened)


def _has_row_factors(reader: Reader) -> bool:
    """Whether scales are factors of whole rows, and can wait for the sums."""
    return reader.tables.stores_floats and reader.lines.groups_per_row <= 1


def _fit(x: Tensor, shape: Sequence[int], bias: Tensor | None) -> bool:
    """False also for shapes that the reference refuses."""
    outputs, columns = shape
    if x.ndim == 0 or x.size(-1) != columns or x.dtype not in SINGLE:
        return False
    return (bias is None or bias.shape == (outputs,)) and x.numel() > 0


def _rows(x: Tensor) -> Tensor:
    return x if x.ndim == 2 else x.reshape(-1, x.size(-1))


@cache
def multiplies_bfloat16() -> bool:
    """True where the CPU has instructions for products of bfloat16."""
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()


def _float(x: Tensor) -> Tensor:
    x = x if x.dtype == torch.float32 else x.float()
    return x if x.is_contiguous() else x.contiguous()


def _decoder(packed: Packed, dtype: torch.dtype) -> Reader | None:
    reader = find_reader(packed)
    if reader is None or dtype not in TYPES or not reader.takes(packed):
        return None
    # Otherwise it would be rounded twice, or become infinite.
    fits = reader.tables.scales_are_powers and reader.tables.fits_bfloat16
    return reader if dtype == torch.float32 or fits else None


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


def _few_rows(reader: Reader, x: Tensor, packed: Packed, bias: Tensor | None) -> Tensor:
    """`x` (..., columns), contiguous float32; each row is a microsecond of Python or two."""
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
        torch.get_num_threads(),
    )
    return y


def _many_rows(reader: Reader, x: Tensor, packed: Packed, bias: Tensor | None) -> Tensor:
    """In bfloat16, but for scales of whole rows and the bias, which wait for the sums."""
    after = packed.scales if _has_row_factors(reader) else None
    if after is not None:
        reader = reader.unscaled()
    weight = _decoded(reader, packed, torch.bfloat16)
    y = x.new_empty(x.size(0), weight.size(0))
    for part, target in zip(x.split(CHUNK_ROWS), y.split(CHUNK_ROWS), strict=True):
        product = F.linear(part.bfloat16(), weight)
        if after is not None:
            product = torch.mul(product, after, out=target)
        if bias is not None:
            torch.add(product, bias, out=target)
        elif after is None:
            target.copy_(product)
    return y
