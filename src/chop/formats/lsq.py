"""Learned step size quantization (LSQ): formats with learnable scales, and their operator.

y = s q(x/s) has a gradient for its scale s as well as for x. The sum over a group's values is
divided by sqrt(N Q), where N is the number of values per sample and scale, and Q the largest
element. This keeps the updates of scales and weights in proportion. Source: Esser et al. 2020
(LSQ), arXiv:1902.08153, sections 2.1 and 2.2.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Self

import torch
from torch import Tensor

from chop.config import with_checked_arguments
from chop.errors import ConfigError, DerivativeError
from chop.formats import reference
from chop.formats.base import NumberFormat, formats
from chop.formats.groups import CHANNELS, WHOLE_TENSOR
from chop.formats.layout import Layout
from chop.formats.operators import define_operator
from chop.formats.parsing import from_key
from chop.formats.quantizer import Quantizer
from chop.formats.scaling import EPSILON, TINY, StaticScale
from chop.formats.statistic import mean_magnitude
from chop.formats.transforms import refuse_transforms
from chop.private.torch_api import is_dispatch_observed, is_transformed

Gradients = Callable[
    ["LearnableFormat", Tensor, Tensor, Tensor], tuple[Tensor | None, Tensor] | None
]
"""Kernel that rounds and equals `gradients` up to rounding of sums."""


class LearnableFormat(NumberFormat):
    """Format with float32 scales that may be static and therefore learned.

    Scales are one-dimensional: one per group of the tensor, one for all groups, or one per level.
    """

    scales: tuple[float, ...] | None
    """Static scales; None to measure them."""

    def round_by(self, x: Tensor, scales: Tensor) -> Tensor:
        """Rounds `x` with scales, float32 (n,) and positive, instead of measured or static ones."""
        return reference.round_by(self._layout.with_scales(scales), x)

    def with_scales(self, scales: Tensor) -> Self:
        """Returns this format with learned scales."""
        # Nine digits tell float32 numbers apart; more would only make keys and files longer.
        settled = tuple(float(f"{scale:.9g}") for scale in in_use(scales.detach()).tolist())
        return dataclasses.replace(self, scales=settled)  # type: ignore[type-var]

    def without_scales(self) -> Self:
        """Returns this format with measured scales."""
        return dataclasses.replace(self, scales=None)  # type: ignore[type-var]


def with_scales_for(number_format: NumberFormat, channels: slice) -> NumberFormat:
    """Returns a format with the static scales of some channels.

    Raises:
        ConfigError: if the format has no static scale per channel.
    """
    layout = number_format.layout()
    scaling = None if layout is None else layout.scaling
    if not isinstance(number_format, LearnableFormat) or not isinstance(scaling, StaticScale):
        raise ConfigError(f"{number_format.label} has no static scales per channel.")
    return number_format.with_scales(scaling.known(torch.device("cpu"))[channels])


def learns(quantizer: Quantizer) -> bool:
    """Returns True for formats with a float scale per tensor or channel and no random rounding."""
    if not isinstance(quantizer, LearnableFormat):
        return False
    layout = quantizer.layout()
    if layout is None or layout.scaling is None or layout.rounding == "stochastic":
        return False
    return layout.scaling.stores_floats and layout.groups in (WHOLE_TENSOR, CHANNELS)


@with_checked_arguments
def initial_scales(number_format: NumberFormat, x: Tensor) -> Tensor:
    """Returns initial values of learned scales, float32 (n,) and positive: static or measured ones.

    Elements that approximate values start at 2 mean |x| / sqrt(Q), Q the largest element. Signs
    start at the mean of the group's magnitudes.

    Args:
        number_format: format with learnable scales.
        x: weight, or inputs as one row; any shape and floating dtype.

    Raises:
        ConfigError: if the scales of the format cannot be learned.
    """
    if not isinstance(number_format, LearnableFormat):
        raise ConfigError(
            f"number_format: expected one with learnable scales ({', '.join(learnable_names())}), "
            f"got {number_format.label}."
        )
    layout = number_format.layout()
    assert layout is not None
    if number_format.scales is not None:
        return torch.tensor(number_format.scales, dtype=torch.float32, device=x.device)
    if layout.levels is not None:
        start = reference.scales_of_levels(layout, x)
        return start.masked_fill(start < TINY, 1.0)
    groups = layout.groups.split(x.double())
    counted = layout.fitted(x).counted(groups)
    mean = mean_magnitude((groups if counted is None else counted).float()).reshape(-1)
    if not layout.element.follows:
        return mean.masked_fill(mean < TINY, 1.0)
    start = 2 * mean / math.sqrt(layout.element.largest)
    return start.masked_fill(start < TINY, EPSILON)


def gradients(
    layout: Layout, grad: Tensor, x: Tensor, rounded: Tensor, scales: Tensor
) -> tuple[Tensor, Tensor]:
    """Returns the gradients of the loss with respect to `x` and to `scales`, not yet divided.

    If x/s is within the range of elements that approximate values, dy/dx = 1 and dy/ds = k - x/s
    for the element k; beyond it, 0 and k. For signs, dy/dx is 1, and 0 beyond the scale; dy/ds = k.

    Args:
        layout: layout of the format.
        grad: gradient of the loss with respect to `rounded`.
        x: at least float32.
        rounded: `x` rounded by the scales, in its shape and dtype.
        scales: float32 (n,), all positive.
    """
    if layout.levels is not None:
        return _level_gradients(layout, grad, x, scales)
    element, split, s = layout.element, layout.groups.split, scales.view(-1, 1)
    groups, slopes = split(x), split(rounded)  # times the scale
    if element.follows:
        beyond = (groups <= element.lowest * s) | (groups >= element.highest * s)
        slopes = slopes - groups.masked_fill(beyond, 0)
    else:
        beyond = groups.abs() > s
    scale_gradients = _sums(split(grad) * slopes, scales.numel()) / scales
    return grad.masked_fill(layout.groups.join(beyond, x.shape), 0), scale_gradients


def _level_gradients(
    layout: Layout, grad: Tensor, x: Tensor, scales: Tensor
) -> tuple[Tensor, Tensor]:
    rest, scale_gradients = x, []
    for scale in scales:
        sign = torch.where(rest >= 0, layout.element.largest, layout.element.lowest)
        scale_gradients.append((grad * sign).sum())
        rest = rest - scale * sign
    return grad.masked_fill(x.abs() > scales.sum(), 0), torch.stack(scale_gradients).float()


def learnable_names() -> list[str]:
    """Returns the names of the formats that can learn a scale in some setting."""
    return [kind.name for kind in formats() if issubclass(kind, LearnableFormat)]


def in_use(scales: Tensor) -> Tensor:
    """Returns the scales that rounding uses: float32 magnitudes, never zero."""
    return scales.float().abs().clamp(min=TINY)


def check_scales(scales: Sequence[float] | None, where: str) -> tuple[float, ...] | None:
    """Returns static scales as a tuple.

    Raises:
        ConfigError: if there are none, or if one is not finite.
    """
    if scales is None:
        return None
    if not scales or not all(map(math.isfinite, scales)):
        raise ConfigError(f"{where}: expected one or more finite numbers, got {list(scales)}.")
    return tuple(scales)


def _sums(terms: Tensor, count: int) -> Tensor:
    """Returns the sums of groups (groups, group size), or of all terms: float32 (count,)."""
    per_group = terms.sum(-1).reshape(-1).float()
    return per_group if count > 1 else per_group.sum().reshape(1)


def _like(x: Tensor, y: Tensor) -> Tensor:
    """Returns a new tensor `y` in the dtype and strides that fake implementations declare."""
    expected = torch.empty_like(x, device="meta").stride()
    return y if y.dtype == x.dtype and y.stride() == expected else torch.empty_like(x).copy_(y)


# One node for FX, torch.compile and export, forward and backward; kernels may implement it.
def _lsq_fake_quantize(x: Tensor, scales: Tensor, key: str, is_batch: bool) -> Tensor:
    number_format = from_key(key)
    assert isinstance(number_format, LearnableFormat)
    return _like(x, number_format.round_by(x, in_use(scales)))


def _lsq_gradients(
    grad: Tensor, x: Tensor, scales: Tensor, key: str, is_batch: bool
) -> tuple[Tensor, Tensor]:
    x_gradient, scale_gradients = learned_gradients(grad, x, scales, key, is_batch)
    assert x_gradient is not None
    return x_gradient, scale_gradients


# Most weights have no number beyond the range: their gradient is `grad`, which an operator must
# not return. Compilers need shapes that do not depend on values, so they see `lsq_gradients`.
def _lsq_changed_gradients(
    grad: Tensor, x: Tensor, scales: Tensor, key: str, is_batch: bool
) -> tuple[Tensor, Tensor]:
    """Returns the results of `lsq_gradients`, or an empty tensor for one that equals `grad`."""
    both: tuple[Tensor, Tensor] = torch.ops.chop.lsq_gradients(grad, x, scales, key, is_batch)
    return both


@lru_cache(maxsize=4096)
def _format_and_layout(key: str) -> tuple[LearnableFormat, Layout]:
    number_format = from_key(key)
    assert isinstance(number_format, LearnableFormat)
    layout = number_format.layout()
    assert layout is not None
    return number_format, layout


def learned_gradients(
    grad: Tensor,
    x: Tensor,
    scales: Tensor,
    key: str,
    is_batch: bool,
    kernel: Gradients | None = None,
) -> tuple[Tensor | None, Tensor]:
    """Returns the gradients of `x` and of the scales, divided by sqrt(N Q).

    A kernel may return None for a gradient of `x` that equals `grad`.

    Args:
        grad: gradient of the loss with respect to the rounded `x`, in its shape.
        x: any shape and floating dtype.
        scales: learned scales, floating, (n,).
        key: key of the number format.
        is_batch: see `lsq_fake_quantize`.
        kernel: rounds and computes `gradients` from a format, the gradient, `x` and scales in use;
            returns None if it cannot.
    """
    number_format, layout = _format_and_layout(key)
    wide = torch.promote_types(x.dtype, torch.float32)
    values, used, grad = x.to(wide), in_use(scales), grad.to(wide)
    both = None if kernel is None else kernel(number_format, grad, values, used)
    if both is None:
        rounded = torch.ops.chop.lsq_fake_quantize(values, scales, key, is_batch)
        both = gradients(layout, grad, values, rounded, used)
    x_gradient, scale_gradients = both
    samples = x.shape[0] if is_batch and x.ndim > 1 else 1
    count = x.numel() / max(samples, 1) / scales.numel()
    share = 1 / math.sqrt(max(count * layout.element.largest, 1.0))
    # Rounding uses |s|, so the gradient of a negative scale changes its sign.
    signs = torch.where(scales < 0, -share, share)
    scale_gradients = (scale_gradients * signs).to(scales.dtype)
    return None if x_gradient is None else _like(x, x_gradient), scale_gradients


def _gradients_like(
    grad: Tensor, x: Tensor, scales: Tensor, key: str, is_batch: bool
) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), torch.empty_like(scales)


def _no_second(ctx: Any, *grads: Tensor) -> None:
    raise DerivativeError(
        "Formats with learned scales have first derivatives only; use gradient 'identity' or "
        "'clip' for higher ones."
    )


def _save_for_backward(ctx: Any, inputs: tuple[Tensor, Tensor, str, bool], output: Tensor) -> None:
    x, scales, ctx.key, ctx.is_batch = inputs
    ctx.save_for_backward(x, scales)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None, None]:
    x, scales = ctx.saved_tensors
    given = grad, x, scales, ctx.key, ctx.is_batch
    is_traced = type(grad) is not Tensor or is_transformed() or is_dispatch_observed()
    if is_traced or not grad.is_cpu:
        return (*torch.ops.chop.lsq_gradients(*given), None, None)
    x_gradient, scale_gradients = torch.ops.chop.lsq_changed_gradients(*given)
    return grad if x_gradient.shape != x.shape else x_gradient, scale_gradients, None, None


SCHEMA = "Tensor x, Tensor scales, str key, bool is_batch"
"""Arguments of the operators."""
define_operator(
    f"lsq_fake_quantize({SCHEMA}) -> Tensor",
    _lsq_fake_quantize,
    lambda x, *rest: torch.empty_like(x),
    _backward,
    _save_for_backward,
)
GRADIENTS_SCHEMA = f"(Tensor grad, {SCHEMA}) -> (Tensor, Tensor)"
define_operator("lsq_gradients" + GRADIENTS_SCHEMA, _lsq_gradients, _gradients_like, _no_second)
define_operator(
    "lsq_changed_gradients" + GRADIENTS_SCHEMA, _lsq_changed_gradients, _gradients_like, _no_second
)


def lsq_fake_quantize(
    x: Tensor, scales: Tensor, number_format: NumberFormat, is_batch: bool
) -> Tensor:
    """Rounds `x` by learned scales; `x` and the scales get gradients.

    Args:
        x: any shape and floating dtype.
        scales: floating, (n,); see `in_use`.
        number_format: format with learnable scales.
        is_batch: True if the first of several axes counts samples, as in inputs.
    Returns: tensor of the shape and dtype of `x`.

    Raises:
        DerivativeError: inside `torch.func` or forward-mode differentiation.
    """
    refuse_transforms("a format with learned scales", "use gradient 'identity' or 'clip'")
    y: Tensor = torch.ops.chop.lsq_fake_quantize(x, scales, number_format.key, is_batch)
    return y
