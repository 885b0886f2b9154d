"""Products of rows with a packed weight: by its codes, or by numbers that are decoded first."""

from __future__ import annotations

import ctypes

import torch
import torch.nn.functional as F
from torch import Tensor

from chop.kernels.codes import Packed
from chop.kernels.cpu.measure import pointer
from chop.kernels.cpu.reader import CHUNK_ROWS, Reader

TYPES = {torch.float32: 0, torch.bfloat16: 1}
"""Enumeration of `plan.h`, for the dtypes that can be decoded."""
PANEL = 2**19
"""Numbers of a panel for each thread. In bfloat16 they take 1 MiB, which a core's cache holds."""
PANEL_STEP = 64
"""Outputs of a panel are a multiple of this number, which is one of oneDNN's blocks."""
PANEL_CHUNK = 2048
"""Rows of activations that are rounded at a time. A panel is decoded once for each chunk."""


def decoded(reader: Reader, packed: Packed, dtype: torch.dtype) -> Tensor:
    """Returns the decoded tensor."""
    y = torch.empty(packed.shape, dtype=dtype, device="cpu")
    decode_rows(reader, packed, y, 0, reader.lines.rows)
    return y


def decode_rows(reader: Reader, packed: Packed, y: Tensor, first: int, count: int) -> None:
    """Writes `count` decoded rows from row `first` on to a contiguous `y`."""
    reader.loops.chop_decode(
        ctypes.byref(reader.codes),
        pointer(packed.codes),
        pointer(packed.scales),
        pointer(y),
        TYPES[y.dtype],
        *map(ctypes.c_int64, (first, count, reader.lines.columns)),
        torch.get_num_threads(),
    )


def by_codes(
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


def rounded_by_codes(reader: Reader, x: Tensor, packed: Packed, bias: Tensor | None) -> Tensor:
    """Multiplies float32 rows in bfloat16; row scales are applied to the sums in float32."""
    if not has_row_factors(reader):
        return by_codes(reader, x, packed, bias, rounds=True)
    factors = packed.scales
    assert factors is not None
    y = by_codes(reader.unscaled(), x, packed, None, rounds=True)
    return y.mul_(factors) if bias is None else torch.addcmul(bias, y, factors, out=y)


def half_by_codes(
    reader: Reader, x: Tensor, packed: Packed, bias: Tensor | None, rounds: bool
) -> Tensor:
    """Multiplies half-precision rows (rows, columns) in chunks; `rounds` as in `by_codes`."""
    y = x.new_empty(x.size(0), packed.shape[0])
    for part, target in zip(x.split(CHUNK_ROWS), y.split(CHUNK_ROWS), strict=True):
        # Conversion keeps the strides of a transposed tensor.
        target.copy_(by_codes(reader, part.float().contiguous(), packed, bias, rounds))
    return y


def in_float32(reader: Reader, x: Tensor, packed: Packed, bias: Tensor | None) -> Tensor:
    """Multiplies by the decoded weight; rows of other dtypes are widened in chunks."""
    weight = decoded(reader, packed, torch.float32)
    if x.dtype == torch.float32:
        return F.linear(x, weight, bias)
    y = x.new_empty(x.size(0), weight.size(0))
    for part, target in zip(x.split(CHUNK_ROWS), y.split(CHUNK_ROWS), strict=True):
        target.copy_(F.linear(part.float(), weight, bias))
    return y


def in_panels(reader: Reader, x: Tensor, packed: Packed, bias: Tensor | None) -> Tensor:
    """Multiplies rows (rows, columns) in bfloat16 by a few decoded outputs at a time.

    oneDNN multiplies them, with matrix tiles (AMX) if the processor has them. Row scales, and the
    bias of float32 rows, are applied to the products in float32.
    """
    factors = packed.scales if has_row_factors(reader) else None
    if factors is not None:
        reader = reader.unscaled()
    outputs, columns = packed.shape
    height = panel_outputs(outputs, columns)
    panel = torch.empty(height, columns, dtype=torch.bfloat16, device="cpu")
    # oneDNN adds a bias of bfloat16 before it rounds the sum.
    own_bias = bias.bfloat16() if bias is not None and _adds_bias(x, factors) else None
    y = x.new_empty(x.size(0), outputs)
    for part, targets in zip(x.split(PANEL_CHUNK), y.split(PANEL_CHUNK), strict=True):
        half = part.bfloat16()
        for first in range(0, outputs, height):
            last = min(first + height, outputs)
            weight = panel[: last - first]
            decode_rows(reader, packed, weight, first, last - first)
            added = None if own_bias is None else own_bias[first:last]
            product, target = F.linear(half, weight, added), targets[:, first:last]
            # Scales and bias are float32, so the operations below widen the products first.
            if factors is not None:
                product = product * factors.expand(outputs)[first:last]
            if bias is not None and own_bias is None:
                torch.add(product, bias[first:last], out=target)
            else:
                target.copy_(product)
    return y


def panel_bytes(x_dtype: torch.dtype, rows: int, outputs: int, columns: int, widens: bool) -> int:
    """Returns the workspace of `in_panels` in bytes.

    Args:
        x_dtype: dtype of the rows.
        rows: number of rows.
        outputs: outputs of the weight.
        columns: columns of the weight.
        widens: True if scales or a bias are applied to the products in float32.
    """
    height, chunk = panel_outputs(outputs, columns), min(rows, PANEL_CHUNK)
    rounded = 0 if x_dtype == torch.bfloat16 else 2 * chunk * columns
    # The product of the previous panel still exists while a panel is multiplied.
    products = (4 if height < outputs or rows > PANEL_CHUNK else 2) * chunk * height
    return 2 * height * columns + rounded + products + (4 * chunk * height if widens else 0)


def panel_outputs(outputs: int, columns: int) -> int:
    """Returns the largest number of outputs that are decoded at a time."""
    steps = PANEL * torch.get_num_threads() // (columns * PANEL_STEP)
    return min(max(steps, 1) * PANEL_STEP, outputs)


def has_row_factors(reader: Reader) -> bool:
    """Returns True if scales are factors of whole rows, which can be applied to the sums."""
    return reader.tables.stores_floats and reader.lines.groups_per_row <= 1


def _adds_bias(x: Tensor, factors: Tensor | None) -> bool:
    return x.dtype == torch.bfloat16 and factors is None
