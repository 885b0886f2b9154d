"""GGUF blocks: 32 values of a row with one scale, byte by byte as ggml lays them out.

Source: ggml, `ggml-common.h`, the structures `block_q8_0`, `block_q4_0` and `block_mxfp4`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from chop.export.coded import CodedWeight
from chop.formats.elements import Fixed, Minifloat

Array = np.ndarray[Any, Any]
BLOCK = 32
HALF = BLOCK // 2
E2M1 = Minifloat(2, 1, 1, "finite")
E8M0_NAN = 255


@dataclass(frozen=True)
class Blocks:
    """A matrix as GGUF holds it.

    Attributes:
        type_name: of ggml, such as "Q8_0".
        data: (rows, values), or uint8 (rows, bytes of a row).
    """

    type_name: str
    data: Array


def blocks_of(weight: CodedWeight) -> Blocks | str:
    """A weight as blocks of the same values, or why there are none.

    Integers of up to 4 bits become Q4_0 and others Q8_0, with a scale in float16; e2m1 with E8M0
    becomes MXFP4, which has no -0 and reads it as 0. A scale of 64 values, or of more, is repeated.

    Args:
        weight: on any device.
    Returns: The blocks, or a clause that goes on after the layer's name.
    """
    element, scaling = weight.element, weight.scaling
    if scaling is not None and scaling.tensor_width:
        return "its format has a scale of the whole tensor besides those of groups"
    if weight.columns % BLOCK:
        return f"its rows have {weight.columns} values, which is no multiple of {BLOCK}"
    if weight.group % BLOCK:
        return f"its format has groups of {weight.group} values, which is no multiple of {BLOCK}"
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
    with np.errstate(over="ignore"):
        halves = steps.astype("<f2")
    wrong = steps[halves.astype(np.float64) != steps]
    if wrong.size:
        return (
            f"{wrong.size} of its {steps.size} scales are no numbers of float16, "
            f"such as {wrong[0]:.9g}"
        )
    scale_bytes = halves[..., None].view(np.uint8)
    if weight.element.width > 4:
        return _joined("Q8_0", scale_bytes, numbers.view(np.uint8))
    return _joined("Q4_0", scale_bytes, _nibbles((numbers + 8).astype(np.uint8)))


def _mxfp4_blocks(weight: CodedWeight) -> Blocks | str:
    exponents = _per_block(weight, weight.exponents)
    if (exponents == E8M0_NAN).any():
        return f"{(exponents == E8M0_NAN).sum()} of its {exponents.size} scales are NaN"
    return _joined("MXFP4", exponents[..., None], _nibbles(_in_blocks(weight, weight.codes)))


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
