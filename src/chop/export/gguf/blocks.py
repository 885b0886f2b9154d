"""GGUF blocks: 32 or 64 values of a row with their scales, byte by byte as ggml lays them out.

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
"""Values of a block of NVFP4, and of a scale of it."""
NIBBLE = 4
"""Bits of it."""


@dataclass(frozen=True)
class Blocks:
    """A matrix as GGUF holds it.

    Attributes:
        type_name: of ggml, such as "Q8_0".
        data: (rows, values), or uint8 (rows, bytes of a row).
        scale: what all values are multiplied by besides, in a tensor of its own; None: nothing.
        moved: how far values of lowest codes were moved by rounding them to float16, at most.
    """

    type_name: str
    data: Array
    scale: float | None = None
    moved: float = 0.0


def pack_blocks(weight: CodedWeight) -> Blocks | str:
    """A weight as blocks of the same values, or why there are none.

    Integers of up to 4 bits become Q4_0, of 5 Q5_0 and others Q8_0, with a scale in float16. Those
    with zero points become Q4_1, or Q5_1 of 5 bits, with a lowest value s z in float16, to which it
    is rounded. e2m1 with E8M0 becomes MXFP4, and with e4m3 NVFP4, which have no -0 and read it as
    0. A scale of more values than a block's is repeated.

    Returns: The blocks, or a clause that goes on after the layer's name.
    """
    element, scaling = weight.element, weight.scaling
    is_nvfp4 = element == E2M1 and isinstance(scaling, ScaledFloatScale)
    block, sub = (NV_BLOCK, NV_SUB) if is_nvfp4 else (BLOCK, BLOCK)
    if scaling is not None and scaling.tensor_width and not is_nvfp4:
        return "its format has a scale of the whole tensor besides those of groups"
    if weight.columns % block:
        return f"its rows have {weight.columns} values, which is no multiple of {block}"
    if weight.group % sub:
        return f"its format has groups of {weight.group} values, which is no multiple of {sub}"
    if is_nvfp4 and scaling.element == E4M3:  # type: ignore[union-attr]
        return _nvfp4_blocks(weight)
    if isinstance(element, Fixed) and weight.zero_points is not None:
        return _affine_blocks(weight)
    if isinstance(element, Fixed) and element.code == "twos_complement":
        return _integer_blocks(weight)
    if element == E2M1 and weight.is_e8m0:
        return _mxfp4_blocks(weight)
    return f"its format has elements {element}, which no type of GGUF has with such scales"


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
    """s k - s z, of codes from 0 on."""
    width = weight.element.width
    if width > 5:
        return f"its format has codes of {width} bits with zero points, and GGUF up to 5 bits"
    assert weight.zero_points is not None
    codes, steps = _in_blocks(weight, weight.codes), _per_block(weight, weight.steps)
    lowest = -steps * _per_block(weight, weight.zero_points)
    scales = _halves(np.where(codes.any(-1), steps, 0.0))
    if isinstance(scales, str):
        return scales
    with np.errstate(over="ignore"):
        halves = lowest.astype("<f2")
    if not np.isfinite(halves).all():
        return "some of its lowest values are beyond float16"
    moved = float(np.abs(halves - lowest).max())
    parts = [_nibbles(codes)] if width <= NIBBLE else _fives(codes)
    kind = "Q4_1" if width <= NIBBLE else "Q5_1"
    return replace(_joined(kind, scales, halves[..., None].view(np.uint8), *parts), moved=moved)


def _halves(steps: Array) -> Array | str:
    """Scales as the two bytes of float16, (rows, blocks, 2), or why they are none."""
    with np.errstate(over="ignore"):
        halves = steps.astype("<f2")
    wrong = steps[halves.astype(np.float64) != steps]
    if wrong.size:
        return (
            f"{wrong.size} of its {steps.size} scales are no numbers of float16, "
            f"such as {wrong[0]:.9g}"
        )
    found: Array = halves[..., None].view(np.uint8)
    return found


def _fives(codes: Array) -> list[Array]:
    """Codes of 5 bits: a word of the highest ones, bit by bit, and the others as nibbles."""
    highest = np.packbits(codes >> NIBBLE, axis=-1, bitorder="little")
    return [highest, _nibbles(codes & 15)]


def _mxfp4_blocks(weight: CodedWeight) -> Blocks | str:
    exponents = _per_block(weight, weight.exponents)
    if (exponents == E8M0_NAN).any():
        return f"{(exponents == E8M0_NAN).sum()} of its {exponents.size} scales are NaN"
    return _joined("MXFP4", exponents[..., None], _nibbles(_in_blocks(weight, weight.codes)))


def _nvfp4_blocks(weight: CodedWeight) -> Blocks | str:
    scales, of_tensor = weight.encoded.scales, weight.encoded.tensor_scale
    assert scales is not None and of_tensor is not None
    per_sub = scales.view(weight.rows, weight.groups).cpu().numpy().view(np.uint8)
    per_sub = per_sub.repeat(weight.group // NV_SUB, axis=1)[:, : weight.columns // NV_SUB]
    if (per_sub >= E4M3_NAN).any():
        return f"{(per_sub >= E4M3_NAN).sum()} of its {per_sub.size} scales are NaN"
    subs = weight.codes.cpu().numpy().reshape(weight.rows, -1, NV_BLOCK // NV_SUB, NV_SUB)
    half = NV_SUB // 2
    packed = subs[..., :half] | subs[..., half:] << NIBBLE
    per_block = per_sub.reshape(weight.rows, -1, NV_BLOCK // NV_SUB)
    found = _joined("NVFP4", per_block, packed.reshape(*per_block.shape[:2], -1))
    return replace(found, scale=float(of_tensor))


def _in_blocks(weight: CodedWeight, values: Tensor) -> Array:
    array: Array = values.cpu().numpy()
    return array.reshape(weight.rows, -1, BLOCK)


def _per_block(weight: CodedWeight, of_groups: Tensor) -> Array:
    """What groups have, (rows, blocks)."""
    rows: Array = of_groups.expand(weight.rows, -1).cpu().numpy()
    repeated: Array = rows.repeat(weight.group // BLOCK, axis=1)
    return repeated[:, : weight.columns // BLOCK]


def _nibbles(codes: Array) -> Array:
    """Codes of 4 bits as ggml packs them: the first half of a block in the low bits."""
    packed: Array = codes[..., :HALF] | codes[..., HALF:] << 4
    return packed


def _joined(type_name: str, *parts: Array) -> Blocks:
    joined = np.concatenate(parts, axis=-1)
    return Blocks(type_name, joined.reshape(len(joined), -1))
