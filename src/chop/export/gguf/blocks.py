"""GGUF blocks: 32 or 64 values of a row with their scales, in ggml's byte layout.

Source: ggml, `ggml-common.h`, the structures `block_q8_0`, `block_q4_0`, `block_q4_1`,
`block_q5_0`, `block_q5_1`, `block_mxfp4` and `block_nvfp4`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from torch import Tensor

from chop.export.coded import E2M1, E4M3, E8M0_NAN, CodedWeight
from chop.formats.elements import Fixed
from chop.formats.scaling import ScaledFloatScale

Array = np.ndarray[Any, Any]
BLOCK = 32
HALF = BLOCK // 2
E4M3_NAN = 127
NV_BLOCK, NV_SUB = 64, 16
"""Values of an NVFP4 block, and of one of its scales."""
NIBBLE = 4
"""Bits of a nibble."""


@dataclass(frozen=True)
class Blocks:
    """Matrix in GGUF form.

    Attributes:
        type_name: ggml type, such as "Q8_0".
        data: (rows, values), or uint8 (rows, bytes per row).
        scale: additional factor of all values, stored as its own tensor, or None.
        moved: largest change of a value by rounding offsets to float16.
    """

    type_name: str
    data: Array
    scale: float | None = None
    moved: float = 0.0


def pack_blocks(weight: CodedWeight) -> Blocks | str:
    """Packs a weight into blocks of the same values, or returns the reason why that is impossible.

    Integers of up to 4 bits become Q4_0, of 5 bits Q5_0 and others Q8_0, with a float16 scale. With
    zero points they become Q4_1, or Q5_1 for 5 bits, with an offset s z rounded to float16. e2m1
    becomes MXFP4 with E8M0 scales and NVFP4 with e4m3 scales; both read -0 as 0. Scales that cover
    more than a block are repeated.

    Returns: the blocks, or a clause that continues a sentence after the layer's name.
    """
    element, scaling = weight.element, weight.scaling
    is_nvfp4 = element == E2M1 and isinstance(scaling, ScaledFloatScale)
    block, sub = (NV_BLOCK, NV_SUB) if is_nvfp4 else (BLOCK, BLOCK)
    if scaling is not None and scaling.tensor_width and not is_nvfp4:
        return "its format has a tensor scale in addition to group scales"
    if weight.columns % block:
        return f"its rows have {weight.columns} values, which is not a multiple of {block}"
    if weight.group % sub:
        return f"its format has groups of {weight.group} values, which is not a multiple of {sub}"
    if is_nvfp4 and scaling.element == E4M3:  # type: ignore[union-attr]
        return _nvfp4_blocks(weight)
    if isinstance(element, Fixed) and weight.zero_points is not None:
        return _affine_blocks(weight)
    if isinstance(element, Fixed) and element.code == "twos_complement":
        return _integer_blocks(weight)
    if element == E2M1 and weight.is_e8m0:
        return _mxfp4_blocks(weight)
    return f"no GGUF type has its elements {element} with such scales"


def _integer_blocks(weight: CodedWeight) -> Blocks | str:
    numbers = _in_blocks(weight, weight.integers)
    steps = _per_block(weight, weight.steps)
    # Whatever the scale of a block of zeros is, its values are zero.
    steps = np.where(numbers.any(-1), steps, 0.0)
    scales = _halves(steps)
    if isinstance(scales, str):
        return scales
    width = weight.element.width
    if width > 5:
        return _joined("Q8_0", scales, numbers.view(np.uint8))
    if width == 5:
        return _joined("Q5_0", scales, *_fives((numbers + 16).astype(np.uint8)))
    return _joined("Q4_0", scales, _nibbles((numbers + 8).astype(np.uint8)))


def _affine_blocks(weight: CodedWeight) -> Blocks | str:
    """Packs s k - s z with unsigned codes."""
    width = weight.element.width
    if width > 5:
        return f"its format has {width} bits with zero points; GGUF supports up to 5 bits"
    assert weight.zero_points is not None
    codes, steps = _in_blocks(weight, weight.codes), _per_block(weight, weight.steps)
    lowest = -steps * _per_block(weight, weight.zero_points)
    scales = _halves(np.where(codes.any(-1), steps, 0.0))
    if isinstance(scales, str):
        return scales
    with np.errstate(over="ignore"):
        halves = lowest.astype("<f2")
    if not np.isfinite(halves).all():
        return "some of its offsets are out of range of float16"
    moved = float(np.abs(halves - lowest).max())
    parts = [_nibbles(codes)] if width <= NIBBLE else _fives(codes)
    kind = "Q4_1" if width <= NIBBLE else "Q5_1"
    return replace(_joined(kind, scales, halves[..., None].view(np.uint8), *parts), moved=moved)


def _halves(steps: Array) -> Array | str:
    """Returns scales as float16 bytes, (rows, blocks, 2), or the reason why they do not fit."""
    with np.errstate(over="ignore"):
        halves = steps.astype("<f2")
    wrong = steps[halves.astype(np.float64) != steps]
    if wrong.size:
        return (
            f"{wrong.size} of its {steps.size} scales are not float16 numbers, "
            f"such as {wrong[0]:.9g}"
        )
    pairs: Array = halves[..., None].view(np.uint8)
    return pairs


def _fives(codes: Array) -> list[Array]:
    """Packs 5-bit codes: a word of their highest bits, and the other bits as nibbles."""
    highest = np.packbits(codes >> NIBBLE, axis=-1, bitorder="little")
    return [highest, _nibbles(codes & 15)]


def _mxfp4_blocks(weight: CodedWeight) -> Blocks | str:
    exponents = _per_block(weight, weight.exponents)
    if (exponents == E8M0_NAN).any():
        return f"{(exponents == E8M0_NAN).sum()} of its {exponents.size} scales are NaN"
    return _joined("MXFP4", exponents[..., None], _nibbles(_in_blocks(weight, weight.codes)))


def _nvfp4_blocks(weight: CodedWeight) -> Blocks | str:
    scales, tensor_scale = weight.encoded.scales, weight.encoded.tensor_scale
    assert scales is not None and tensor_scale is not None
    per_sub = scales.view(weight.rows, weight.groups).cpu().numpy().view(np.uint8)
    per_sub = per_sub.repeat(weight.group // NV_SUB, axis=1)[:, : weight.columns // NV_SUB]
    if (per_sub >= E4M3_NAN).any():
        return f"{(per_sub >= E4M3_NAN).sum()} of its {per_sub.size} scales are NaN"
    subs = weight.codes.cpu().numpy().reshape(weight.rows, -1, NV_BLOCK // NV_SUB, NV_SUB)
    half = NV_SUB // 2
    packed = subs[..., :half] | subs[..., half:] << NIBBLE
    per_block = per_sub.reshape(weight.rows, -1, NV_BLOCK // NV_SUB)
    blocks = _joined("NVFP4", per_block, packed.reshape(*per_block.shape[:2], -1))
    return replace(blocks, scale=float(tensor_scale))


def _in_blocks(weight: CodedWeight, values: Tensor) -> Array:
    array: Array = values.cpu().numpy()
    return array.reshape(weight.rows, -1, BLOCK)


def _per_block(weight: CodedWeight, group_values: Tensor) -> Array:
    """Repeats values of groups for each block: (rows, blocks)."""
    rows: Array = group_values.expand(weight.rows, -1).cpu().numpy()
    repeated: Array = rows.repeat(weight.group // BLOCK, axis=1)
    return repeated[:, : weight.columns // BLOCK]


def _nibbles(codes: Array) -> Array:
    """Packs 4-bit codes like ggml: the first half of a block in the low bits."""
    packed: Array = codes[..., :HALF] | codes[..., HALF:] << 4
    return packed


def _joined(type_name: str, *parts: Array) -> Blocks:
    joined = np.concatenate(parts, axis=-1)
    return Blocks(type_name, joined.reshape(len(joined), -1))
