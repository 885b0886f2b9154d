"""Compile-time constants of Triton kernels, derived from layouts without importing Triton.

The kernels compute in float32, the readable references in float64. A format with steps that are not
exact in float32 has no rule and is rounded by the reference.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import torch

from chop.formats import NumberFormat
from chop.formats.elements import Denormal, Element, Fixed, Log2, Minifloat
from chop.formats.groups import Blocks
from chop.formats.scaling import FRACTION_BITS, Scaling, SharedExponent
from chop.kernels.plan import first_fraction, get_layout, get_row

BIAS = 127
SMALLEST_EXPONENT = 1 - BIAS
FLOAT32_MAX = torch.finfo(torch.float32).max
# Kernels scale by two factors of half the exponent each. Within these limits the factors and the
# scaled elements are normal numbers.
LARGEST_SCALE_EXPONENT = 150
SMALLEST_SCALED_STEP = -60
# Exponent that the kernels compute for zero. The reference's is lower; both are clamped.
EXPONENT_OF_ZERO = -BIAS - 24
MAX_BLOCK = 2**12
MAX_CODE_WIDTH = 8
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


class FixedRule(NamedTuple):
    """Rule for fixed-point elements.

    Attributes:
        steps: steps per unit; a power of two.
        step: its inverse.
        low: smallest number of steps.
        high: largest number of steps.
        floors: rounds down instead of to nearest.
        has_negative_zero: preserves -0.
    """

    steps: float
    step: float
    low: float
    high: float
    floors: bool
    has_negative_zero: bool
    core: str = "fixed"


class _MinifloatRule(NamedTuple):
    """Rule for minifloats.

    Attributes:
        dropped: bits of float32's fraction that are rounded away, 1 to 23.
        smallest_normal: smallest normal number; steps below it are equal.
        grid: power of two with float32 neighbors one such step apart.
        largest: magnitude that saturates.
    """

    dropped: int
    smallest_normal: float
    grid: float
    largest: float
    core: str = "minifloat"


class _LogRule(NamedTuple):
    """Rule for powers of two.

    Attributes:
        rounding_bias: number added to a value's bits; it carries into the exponent field if the
            value rounds up.
        lowest: exponent field of the smallest magnitude.
        highest: exponent field of the largest magnitude, at most 255, which saturates at the end
            of the dtype's range.
        zero_below: bits of the magnitude below which a value becomes zero; 0 for none.
    """

    rounding_bias: int
    lowest: int
    highest: int
    zero_below: int
    core: str = "log"


ElementRule = FixedRule | _MinifloatRule | _LogRule


class _ScaleRule(NamedTuple):
    """Rule for a block's power-of-two scale.

    Attributes:
        offset: exponent for a largest magnitude of 1.
        rounding_bias: number added to the bits of a block's largest magnitude; it carries into the
            exponent field if the scale is the next power.
        lowest: smallest exponent.
        highest: largest exponent.
        has_nan: a NaN or infinity makes the block NaN.
    """

    offset: int
    rounding_bias: int
    lowest: int
    highest: int
    has_nan: bool


class BlockLayout(NamedTuple):
    """Layout of blocks along the last axis.

    Attributes:
        blocks: number of blocks in the tensor.
        row_size: elements of a row.
        blocks_per_row: blocks of a row; the last may be shorter.
        block_size: elements of a block.
    """

    blocks: int
    row_size: int
    blocks_per_row: int
    block_size: int

    @classmethod
    def of(cls, shape: torch.Size, block_size: int) -> BlockLayout:
        """Returns the layout of a non-empty tensor."""
        row_size = shape[-1] if shape else 1
        # Rows that divide into blocks become rows of one block, which avoids a division per block.
        if row_size % block_size == 0:
            row_size = block_size
        blocks_per_row = -(-row_size // block_size)
        count = shape.numel() // row_size * blocks_per_row
        return cls(count, row_size, blocks_per_row, block_size)


class CodeRule(NamedTuple):
    """Rule that decodes a stored code and scales it by E8M0.

    Attributes:
        width: bits of a code, 2 to 8.
        is_integer: True for two's complement; False for sign, exponent and fraction.
        factor: factor of the integer, or of the float32 that holds the code in its lowest binades.
        shift: shift from the code's fraction to float32's.
        largest: code of the largest finite magnitude; larger codes are NaN.
        has_infinity: the first of those larger codes is infinity.
        alignment: power of two that divides the index of every block's first code.
        is_paired: codes have 4 bits, and every block begins with a byte.
    """

    width: int
    is_integer: bool
    factor: float
    shift: int
    largest: int
    has_infinity: bool
    alignment: int = 1
    is_paired: bool = False


@lru_cache(maxsize=4096)
def element_rule(number_format: NumberFormat) -> ElementRule | None:
    """Returns the rule for the elements of a fitted format, or None."""
    layout = get_layout(number_format)
    if layout is None or layout.levels is not None or layout.has_zero_points:
        return None
    rule: ElementRule | None = get_row(ELEMENTS, layout.element)
    return rule


@lru_cache(maxsize=4096)
def scale_rule(number_format: NumberFormat) -> _ScaleRule | None:
    """Returns the rule for the scales of a fitted format's groups, or None."""
    layout = get_layout(number_format)
    if layout is None or type(layout.scaling) is not SharedExponent:
        return None
    scaling, element = layout.scaling, layout.element
    if layout.groups.nominal_size > MAX_BLOCK:
        return None
    in_range = (
        max(scaling.largest, -scaling.lowest) <= LARGEST_SCALE_EXPONENT
        and EXPONENT_OF_ZERO + scaling.offset <= scaling.lowest
        and _smallest_step(element) >= SMALLEST_SCALED_STEP
        and element.largest <= FLOAT32_MAX
        and element.rounding != "floor"  # numbers that underflow would not round down
    )
    bias = 2**FRACTION_BITS - first_fraction(scaling.increment_threshold)
    rule = _ScaleRule(scaling.offset, bias, scaling.lowest, scaling.largest, scaling.has_nan)
    return rule if in_range else None


def _smallest_step(element: Element) -> int:
    """Returns the exponent of a minifloat's smallest step; 0 for other elements."""
    if not isinstance(element, Minifloat | Denormal):
        return 0
    lowest, mantissa_width = _lowest_binade(element)
    return lowest - mantissa_width


def is_scaled(number_format: NumberFormat) -> bool:
    """Returns True for formats with scales."""
    layout = get_layout(number_format)
    return layout is not None and layout.scaling is not None


def takes(number_format: NumberFormat, dtype: torch.dtype) -> bool:
    """Returns True if the fake-quantizer supports the fitted format and the dtype."""
    if dtype not in DTYPES or element_rule(number_format) is None:
        return False
    return not is_scaled(number_format) or scale_rule(number_format) is not None


@lru_cache(maxsize=4096)
def code_rule(number_format: NumberFormat) -> CodeRule | None:
    """Returns the rule for codes of up to 8 bits with E8M0 scales, or None."""
    layout = get_layout(number_format) if number_format.is_fitted else None
    if layout is None or layout.scaling is None or layout.overflow == "infinity":
        return None
    if not _is_e8m0(layout.scaling):
        return None
    if layout.groups.nominal_size > MAX_BLOCK or layout.element.width > MAX_CODE_WIDTH:
        return None
    rule: CodeRule | None = get_row(CODES, layout.element)
    return rule


def decodes(number_format: NumberFormat, rank: int, dtype: torch.dtype) -> bool:
    """Returns True if the kernels on packed weights support the codes of a tensor of that rank."""
    if dtype not in DTYPES or code_rule(number_format) is None:
        return False
    return block_size_along_rows(number_format, rank) is not None


def block_size_along_rows(number_format: NumberFormat, rank: int) -> int | None:
    """Returns the block size, or None unless blocks run along the last axis of that rank."""
    layout = get_layout(number_format)
    groups = None if layout is None else layout.groups
    if not isinstance(groups, Blocks) or not (rank < 2 or groups.is_row_separable(rank)):
        return None
    return groups.sizes[-1]


def _is_e8m0(scaling: Scaling) -> bool:
    return (
        type(scaling) is SharedExponent
        and scaling.has_nan
        and (scaling.lowest, scaling.width) == (-BIAS, 8)
    )


def _fixed(element: Fixed) -> FixedRule | None:
    floors, signed_zero = element.rounding == "floor", element.code == "sign_magnitude"
    if floors and signed_zero:
        return None
    low, high = float(element.lowest_code), float(element.largest_code)
    step = 2.0**-element.frac_width
    return FixedRule(1 / step, step, low, high, floors, signed_zero)


def _lowest_binade(element: Minifloat | Denormal) -> tuple[int, int]:
    """Returns the exponent of a minifloat's lowest binade, and its number of fraction bits."""
    if isinstance(element, Minifloat):
        return element.lowest_exponent, element.mantissa_width
    # In [2^(E-1), 2^E) the top bit of k is set: it does what a hidden bit would.
    return -element.bias - 1, element.mantissa_width - 1


def _minifloat(element: Minifloat | Denormal) -> _MinifloatRule | None:
    lowest, mantissa_width = _lowest_binade(element)
    dropped = FRACTION_BITS - mantissa_width
    # The smallest normal number and the grid have to be normal float32 numbers.
    if dropped < 1 or lowest < SMALLEST_EXPONENT or lowest + dropped > BIAS:
        return None
    largest = min(element.largest, FLOAT32_MAX)
    return _MinifloatRule(dropped, 2.0**lowest, 2.0 ** (lowest + dropped), largest)


def _log(element: Log2) -> _LogRule | None:
    lowest, highest = element.lowest_exponent + BIAS, element.largest_exponent + BIAS
    # Float32's subnormal numbers, whose exponent is not in their bits, must all be below.
    if lowest < 2 or lowest > 2 * BIAS:
        return None
    in_log_domain = element.nearest == "log"
    carry = first_fraction(math.sqrt(2) if in_log_domain else 1.5)
    halfway = (lowest - 1 << FRACTION_BITS) + (carry if in_log_domain else 0)
    zero_below = halfway if element.zero_code else 0
    return _LogRule(2**FRACTION_BITS - carry, lowest, min(highest, 2 * BIAS + 1), zero_below)


def _whole_codes(element: Fixed) -> CodeRule | None:
    if element.code != "twos_complement":
        return None
    return CodeRule(element.width, True, 2.0**-element.frac_width, 0, 0, False)


def _float_codes(element: Minifloat) -> CodeRule | None:
    if not 0 <= element.bias < BIAS:
        return None
    shift, factor = FRACTION_BITS - element.mantissa_width, 2.0 ** (BIAS - element.bias)
    has_infinity = element.variant == "ieee"
    return CodeRule(element.width, False, factor, shift, element.largest_code, has_infinity)


Rows = dict[type[Element], Callable[[Any], Any]]
ELEMENTS: Rows = {Fixed: _fixed, Minifloat: _minifloat, Denormal: _minifloat, Log2: _log}
"""Rounding rules by element class."""
CODES: Rows = {Fixed: _whole_codes, Minifloat: _float_codes}
"""Code rules by element class."""
