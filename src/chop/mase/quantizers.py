"""Number formats as functions that round `x`, with a straight-through gradient of one.

Every function takes a tensor of any shape and floating dtype and returns one of the same. Settings
out of range raise ConfigError. `chop.formats` documents the formats.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from chop.config import convert
from chop.errors import ConfigError
from chop.formats import (
    MXFP,
    Binary,
    BlockFP,
    BlockLog,
    BlockMinifloat,
    Integer,
    Log,
    MinifloatDenorm,
    MinifloatIEEE,
    MXInt,
    ScaleInteger,
    Ternary,
)
from chop.paths.not_built import mxint_hardware

__all__ = [
    "binary_quantizer",
    "block_fp_quantizer",
    "block_log_quantizer",
    "block_minifloat_quantizer",
    "integer_floor_quantizer",
    "integer_quantizer",
    "log_quantizer",
    "minifloat_denorm_quantizer",
    "minifloat_ieee_quantizer",
    "mxfp_quantizer",
    "mxint_hardware",
    "mxint_quantizer",
    "quantizer_map",
    "residual_sign_quantizer",
    "scale_integer_quantizer",
    "ternary_quantizer",
]

BlockSize = int | Sequence[int]
E8M0_WIDTH = 8


def integer_quantizer(x: Tensor, width: int, frac_width: int, is_signed: bool = True) -> Tensor:
    """Rounds to `chop.formats.Integer`, to nearest.

    >>> integer_quantizer(torch.tensor([0.3, 9.0]), 4, 1)
    tensor([0.5000, 3.5000])
    """
    return Integer(width, frac_width, is_signed)(x)


def integer_floor_quantizer(
    x: Tensor, width: int, frac_width: int, is_signed: bool = True
) -> Tensor:
    """Rounds down to `chop.formats.Integer`."""
    return Integer(width, frac_width, is_signed, floor=True)(x)


def scale_integer_quantizer(
    x: Tensor, width: int, is_signed: bool = True, quantile: float = 1.0
) -> Tensor:
    """Rounds to `chop.formats.ScaleInteger` with one scale per tensor."""
    return ScaleInteger(width, is_signed, quantile)(x)


def minifloat_denorm_quantizer(
    x: Tensor, width: int, exponent_width: int, exponent_bias: int | None = None
) -> Tensor:
    """Rounds to `chop.formats.MinifloatDenorm`."""
    return MinifloatDenorm(width, exponent_width, exponent_bias)(x)


def minifloat_ieee_quantizer(
    x: Tensor, width: int, exponent_width: int, exponent_bias: int | None = None
) -> Tensor:
    """Rounds to `chop.formats.MinifloatIEEE`, in OCP's variant for the width.

    >>> minifloat_ieee_quantizer(torch.tensor([1.97, 500.0]), 8, 4, 7)
    tensor([  2., 448.])
    """
    return MinifloatIEEE(width, exponent_width, exponent_bias)(x)


def log_quantizer(x: Tensor, width: int, exponent_bias: int | None) -> Tensor:
    """Rounds to `chop.formats.Log`."""
    return Log(width, exponent_bias)(x)


def block_fp_quantizer(
    x: Tensor,
    width: int = 12,
    exponent_width: int = 8,
    exponent_bias: int | None = None,
    block_size: BlockSize = (16,),
    skip_first_dim: bool = True,
) -> Tensor:
    """Rounds to `chop.formats.BlockFP`."""
    size, skip = _sizes(block_size), skip_first_dim
    return BlockFP(width, exponent_width, exponent_bias, block_size=size, skip_first_dim=skip)(x)


def block_minifloat_quantizer(
    x: Tensor,
    width: int,
    exponent_width: int,
    exponent_bias_width: int,
    block_size: BlockSize = (16,),
    skip_first_dim: bool = False,
) -> Tensor:
    """Rounds to `chop.formats.BlockMinifloat`."""
    size, skip = _sizes(block_size), skip_first_dim
    widths = (width, exponent_width, exponent_bias_width)
    return BlockMinifloat(*widths, block_size=size, skip_first_dim=skip)(x)


def block_log_quantizer(
    x: Tensor,
    width: int,
    exponent_bias_width: int | None = None,
    block_size: BlockSize = (16,),
    skip_first_dim: bool = False,
) -> Tensor:
    """Rounds to `chop.formats.BlockLog`."""
    size, skip = _sizes(block_size), skip_first_dim
    return BlockLog(width, exponent_bias_width, block_size=size, skip_first_dim=skip)(x)


def binary_quantizer(x: Tensor, stochastic: bool = False, bipolar: bool = False) -> Tensor:
    """Rounds to `chop.formats.Binary`: {0, 1}, or {-1, +1} if bipolar."""
    return Binary(stochastic=stochastic, bipolar=bipolar)(x)


def residual_sign_quantizer(
    levels: int, x_quantizer: Callable[[Tensor], Tensor], means: Sequence[Tensor], x: Tensor
) -> Tensor:
    """Returns the sum of `chop.formats.BinaryResidual` with trainable factors.

    Args:
        levels: number of signs to sum.
        x_quantizer: returns the signs: `binary_quantizer` with its options.
        means: one scalar factor per level; their magnitudes count, and they get gradients.
        x: tensor to round.

    Raises:
        ConfigError: if there are fewer factors than levels.
    """
    if len(means) < levels:
        raise ConfigError(f"residual_sign_quantizer: {levels} levels, but {len(means)} means.")
    rest, total = x.detach(), torch.zeros_like(x)
    for mean in means[:levels]:
        step = torch.as_tensor(mean).abs() * x_quantizer(rest)
        rest, total = rest - step.detach(), total + step
    return total + (x - x.detach())


def ternary_quantizer(
    x: Tensor,
    threshold: float | None = None,
    maximum: float | None = None,
    median: float | None = None,
    mean: float | None = None,
    scaling_factor: bool = False,
) -> Tensor:
    """Rounds to `chop.formats.Ternary`; uses the first of threshold, mean, maximum and median.

    The default threshold is 0.7 of the tensor's mean magnitude.
    """
    given = {"threshold": threshold, "mean": mean, "max": maximum, "median": median}
    known = (
        (name, float(convert(value, float, f"ternary.{name}")))
        for name, value in given.items()
        if value is not None
    )
    first: dict[str, Any] = dict(itertools.islice(known, 1))
    return Ternary(scaling_factor=scaling_factor, **first)(x)


def mxint_quantizer(
    x: Tensor,
    block_size: BlockSize,
    element_bits: int,
    block_dim: int = -1,
    scale_bits: int = 8,
    quantile_search: bool = False,
) -> Tensor:
    """Rounds to `chop.formats.MXInt` with E8M0 scales from the largest magnitude.

    Raises:
        ConfigError: if scales have another width, or clipped ones are searched.
    """
    _check_scales("mxint_quantizer", "scale_bits", scale_bits, quantile_search)
    return MXInt(element_bits, block_size=_sizes(block_size), block_dim=block_dim)(x)


def mxfp_quantizer(
    x: Tensor,
    block_size: BlockSize,
    element_exp_bits: int,
    element_frac_bits: int,
    block_dim: int = -1,
    scale_exp_bits: int = 8,
    quantile_search: bool = False,
) -> Tensor:
    """Rounds to `chop.formats.MXFP` with E8M0 scales from the largest magnitude.

    Raises:
        ConfigError: if scales have another width, or clipped ones are searched.
    """
    _check_scales("mxfp_quantizer", "scale_exp_bits", scale_exp_bits, quantile_search)
    width = 1 + element_exp_bits + element_frac_bits
    size = _sizes(block_size)
    return MXFP(width, element_exp_bits, block_size=size, block_dim=block_dim)(x)


quantizer_map: dict[str, Callable[..., Tensor]] = {
    "integer": integer_quantizer,
    "fixed": integer_quantizer,
    "minifloat_denorm": minifloat_denorm_quantizer,
    "minifloat_ieee": minifloat_ieee_quantizer,
    "log": log_quantizer,
    "block_fp": block_fp_quantizer,
    "block_minifloat": block_minifloat_quantizer,
    "block_log": block_log_quantizer,
    "binary": binary_quantizer,
    "ternary": ternary_quantizer,
    "mxint": mxint_quantizer,
    "mxfp": mxfp_quantizer,
    "mxint_hardware": mxint_hardware,
}
"""Functions by format name."""


def _sizes(block_size: BlockSize) -> int | tuple[int, ...]:
    return tuple(block_size) if isinstance(block_size, Sequence) else block_size


def _check_scales(function: str, argument: str, width: int, quantile_search: bool) -> None:
    if width != E8M0_WIDTH:
        raise ConfigError(f"{function}.{argument}: got {width}, expected 8: OCP's scales are E8M0.")
    if quantile_search:
        raise ConfigError(
            f"{function}.quantile_search: scales follow the largest magnitude; for scales that "
            "leave out a share of them use scale_integer_quantizer with its quantile."
        )
