"""Chunks of numbers rounded to elements, or to elements times scales."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from chop.kernels.eager.chunked import FLOAT32, FLOAT64, Buffers, Lane, Real
from chop.kernels.eager.cores import Core, core_of, exact_in_float32, small_core
from chop.kernels.eager.scales import LIFTABLE_EXPONENT, PowerOfTwo, Scale, SmallFloat, tops_of
from chop.kernels.plan import FIXED, Plan


@dataclass(frozen=True)
class Grid:
    """Elements by themselves, or scaled by blocks.

    Attributes:
        core: the elements.
        limit: results beyond become this; infinite where none can be.
        scale: how the scale follows a block's largest magnitude; None for none.
        wide: the same in float64, for magnitudes that are too large for this one.
    """

    core: Core
    limit: float
    scale: PowerOfTwo | SmallFloat | None = None
    wide: Grid | None = None

    def __call__(self, x: Tensor, out: Tensor, buffers: Buffers) -> None:
        """Rounds a chunk.

        Args:
            x: float32; (blocks, elements) where there is a scale.
            out: the same shape; may be `x`.
            buffers: lent from.
        """
        scale = None
        magnitudes = magnitudes_of(x, self.core.real, buffers)
        if self.scale is not None:
            tops = tops_of(magnitudes, self.core.real, buffers)
            if not self.scale.takes(tops):
                assert self.wide is not None
                return self.wide(x, out, buffers)
            scale = self.scale(tops, buffers)
        return round_scaled(self.core, scale, x, out, buffers, self.limit)


def magnitudes_of(x: Tensor, real: Real, buffers: Buffers) -> Lane:
    """|x| in another dtype, in the buffer called work."""
    lane = buffers.lane("work", real, x.shape)
    if real is FLOAT32:
        torch.abs(x, out=lane.values)
    else:
        lane.values.copy_(x).abs_()
    return lane


def round_scaled(
    core: Core, scale: Scale | None, x: Tensor, out: Tensor, buffers: Buffers, limit: float
) -> None:
    """Rounds a chunk whose scales are known.

    Args:
        core: the elements. If it takes magnitudes, `magnitudes_of` has been called.
        scale: of the same dtype as the core; None for none.
        x: float32, any shape that the scale fits.
        out: float32, like `x`; may be `x`.
        buffers: lent from.
        limit: results beyond become this.
    """
    rounded = _rounded(core, scale, x, buffers, limit)
    if not core.of_magnitudes:
        out.copy_(rounded)
        return
    magnitudes = buffers.lane("work", FLOAT32, x.shape)
    if core.real is not FLOAT32:
        magnitudes.values.copy_(rounded)
    zero = buffers.constant(0.0, x.dtype)
    if not core.reads_negative_zero:
        x = torch.add(x, zero, out=out)
    _give_signs(x, magnitudes, out, buffers)
    if not core.has_negative_zero:
        out.add_(zero)


def _rounded(core: Core, scale: Scale | None, x: Tensor, buffers: Buffers, limit: float) -> Tensor:
    """The rounded numbers or magnitudes, in the core's dtype, in the buffer called work."""
    lane = buffers.lane("work", core.real, x.shape)
    work = v = lane.values
    if not core.of_magnitudes:
        v = x if scale is not None and x.dtype == work.dtype else work.copy_(x)
    if scale is not None:
        scale.divide(v, out=work)
    core.round_(lane, buffers)
    if scale is not None:
        work.mul_(scale.factor)
    return work.clamp_(-limit, limit) if limit < math.inf else work


def _give_signs(x: Tensor, magnitudes: Lane, out: Tensor, buffers: Buffers) -> None:
    """Writes `copysign(magnitudes, x)` to `out`, in half its time."""
    signs = buffers.lane("spare", FLOAT32, x.shape).bits
    torch.bitwise_and(x.view(signs.dtype), buffers.constant(FLOAT32.sign, signs.dtype), out=signs)
    torch.bitwise_or(magnitudes.bits, signs, out=out.view(signs.dtype))


def elements(plan: Plan) -> Grid | None:
    """Elements by themselves; None for what is no grid."""
    core = core_of(plan, FLOAT32)
    if core is None or not exact_in_float32(core, is_scaled=False):
        core = core_of(plan, FLOAT64)
    return None if core is None else Grid(core, _limit(core.largest, plan))


def shared_exponents(plan: Plan) -> Grid | None:
    """Elements times powers of two that blocks share; None for what is no grid."""
    wide_core = core_of(plan, FLOAT64)
    if wide_core is None:
        return None
    wide = Grid(wide_core, plan.limit, PowerOfTwo.of(plan, FLOAT64))
    # The middle of the elements' range is put at 1, which keeps scales of long ranges normal.
    halvings = 0 if plan.core == FIXED else math.frexp(plan.high)[1] // 2
    core = core_of(plan, FLOAT32, halvings)
    scale = PowerOfTwo.of(plan, FLOAT32, halvings)
    if core and exact_in_float32(core, is_scaled=True) and scale.is_representable:
        return Grid(core, _limit(2.0 ** (LIFTABLE_EXPONENT + 1), plan), scale, wide)
    return wide


def two_levels(plan: Plan, of_tensor: float) -> Grid | None:
    """Elements times small floats times a factor of the tensor; None for what is no grid."""
    core = core_of(plan, FLOAT64)
    if core is None:
        return None
    small = small_core(plan)
    limit = _limit(core.largest * small.largest * of_tensor, plan)
    return Grid(core, limit, SmallFloat(small, plan.small_divisor, of_tensor))


def _limit(largest: float, plan: Plan) -> float:
    return plan.limit if largest > plan.limit else math.inf
