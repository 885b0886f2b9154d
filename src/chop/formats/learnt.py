"""Learnt step sizes: formats whose scales may be given, and the operator that trains them.

y = s q(x/s) has a gradient for its scale s as well as for x. The sum over the values of a group is
divided by sqrt(N Q), N the values of one sample for each scale and Q the largest element, which
keeps the updates of scales and weights in proportion. Source: Esser et al. 2020 (LSQ),
arXiv:1902.08153, sections 2.1 and 2.2. What the formats add is told in their files.
"""

from __future__ import annotations

import dataclasses
import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Self

import torch
from torch import Tensor

from chop.errors import ConfigError
from chop.formats import reference
from chop.formats.base import NumberFormat, formats, from_key
from chop.formats.quantizer import Quantizer
from chop.formats.scaling import TINY
from chop.formats.transforms import refuse_transforms


class LearnableFormat(NumberFormat):
    """A format with float32 scales that may be given instead of measured, and so be learnt.

    Scales are one-dimensional: one for each group of the tensor, or one that all groups have; a
    format may know better what its scales are for.
    """

    scales: tuple[float, ...] | None
    """The given ones; None to measure them."""

    @property
    @abstractmethod
    def can_learn(self) -> bool:
        """Whether these settings leave a scale to learn."""

    @property
    @abstractmethod
    def largest_step(self) -> int:
        """The largest magnitude among the elements that a scale multiplies."""

    @abstractmethod
    def first_scales(self, x: Tensor) -> Tensor:
        """What learning starts from, float32 (n,), all above zero.

        Args:
            x: any shape and floating dtype: the weight, or inputs as one row.
        """

    @abstractmethod
    def gradients(
        self, grad: Tensor, x: Tensor, rounded: Tensor, scales: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Of the loss, with respect to `x` and, not yet divided, to `scales`.

        Args:
            grad: of the loss with respect to `rounded`.
            x: at least float32.
            rounded: `x` rounded by the scales, of its shape and dtype.
            scales: float32 (n,), all above zero.
        """

    def round_by(self, x: Tensor, scales: Tensor) -> Tensor:
        """`x` rounded by scales, float32 (n,), above zero, instead of those found or given."""
        return reference.round_by(self._layout.by(scales), x)

    def with_scales(self, scales: Tensor) -> Self:
        """This format with scales that were learnt."""
        # Nine digits tell float32 numbers apart; more would only make keys and files longer.
        settled = tuple(float(f"{scale:.9g}") for scale in in_use(scales.detach()).tolist())
        return dataclasses.replace(self, scales=settled)  # type: ignore[type-var]


def starting_scales(number_format: NumberFormat, x: Tensor) -> Tensor:
    """What learning starts from, float32 (n,): scales that are given, or those that suit `x`."""
    assert isinstance(number_format, LearnableFormat)
    if number_format.scales is not None:
        return torch.tensor(number_format.scales, dtype=torch.float32, device=x.device)
    return number_format.first_scales(x)


def learns(quantizer: Quantizer) -> bool:
    """True for formats with a scale to learn."""
    return isinstance(quantizer, LearnableFormat) and quantizer.can_learn


def learnable_names() -> list[str]:
    """The names of the formats that have a scale to learn, in some settings."""
    return [kind.name for kind in formats() if issubclass(kind, LearnableFormat)]


def in_use(scales: Tensor) -> Tensor:
    """Scales as they are used: float32 magnitudes, never zero, whatever a training step made."""
    return scales.float().abs().clamp(min=TINY)


def check_scales(scales: Sequence[float] | None, where: str) -> tuple[float, ...] | None:
    """Given scales as a tuple.

    Raises:
        ConfigError: there are none, or one is not finite.
    """
    if scales is None:
        return None
    if not scales or not all(map(math.isfinite, scales)):
        raise ConfigError(f"{where}: expected finite numbers, at least one, got {list(scales)}.")
    return tuple(scales)


def sums(terms: Tensor, count: int) -> Tensor:
    """float32 (count,): the sums of groups, (groups, group size), or of all of them."""
    per_group = terms.sum(-1).reshape(-1).float()
    return per_group if count > 1 else per_group.sum().reshape(1)


def _like(x: Tensor, y: Tensor) -> Tensor:
    """A new tensor `y` in the dtype and strides that fake implementations announce."""
    announced = torch.empty_like(x, device="meta").stride()
    return y if y.dtype == x.dtype and y.stride() == announced else torch.empty_like(x).copy_(y)


# One node for FX, torch.compile and export, forward and backward; kernels may implement it.
@torch.library.custom_op("chop::learnt_fake_quantize", mutates_args=())
def _learnt_fake_quantize(x: Tensor, scales: Tensor, key: str, is_batch: bool) -> Tensor:
    number_format = from_key(key)
    assert isinstance(number_format, LearnableFormat)
    return _like(x, number_format.round_by(x, in_use(scales)))


@_learnt_fake_quantize.register_fake
def _(x: Tensor, scales: Tensor, key: str, is_batch: bool) -> Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("chop::learnt_gradients", mutates_args=())
def _learnt_gradients(
    grad: Tensor, x: Tensor, scales: Tensor, key: str, is_batch: bool
) -> tuple[Tensor, Tensor]:
    number_format = from_key(key)
    assert isinstance(number_format, LearnableFormat)
    wide = torch.promote_types(x.dtype, torch.float32)
    values = x.to(wide)
    rounded = torch.ops.chop.learnt_fake_quantize(values, scales, key, is_batch)
    of_x, of_scales = number_format.gradients(grad.to(wide), values, rounded, in_use(scales))
    samples = x.shape[0] if is_batch and x.ndim > 1 else 1
    count = x.numel() / max(samples, 1) / scales.numel()
    share = 1 / math.sqrt(max(count * number_format.largest_step, 1.0))
    signs = torch.where(scales < 0, -share, share)
    return _like(x, of_x), (of_scales * signs).to(scales.dtype)


@_learnt_gradients.register_fake
def _(grad: Tensor, x: Tensor, scales: Tensor, key: str, is_batch: bool) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), torch.empty_like(scales)


def _save_for_backward(ctx: Any, inputs: tuple[Tensor, Tensor, str, bool], output: Tensor) -> None:
    x, scales, ctx.key, ctx.is_batch = inputs
    ctx.save_for_backward(x, scales)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None, None]:
    x, scales = ctx.saved_tensors
    of_both = torch.ops.chop.learnt_gradients(grad, x, scales, ctx.key, ctx.is_batch)
    return (*of_both, None, None)


_learnt_fake_quantize.register_autograd(_backward, setup_context=_save_for_backward)


def learnt_fake_quantize(
    x: Tensor, scales: Tensor, number_format: NumberFormat, is_batch: bool
) -> Tensor:
    """`x` rounded by learnt scales; `x` and the scales get gradients.

    Args:
        x: any shape and floating dtype.
        scales: floating, (n,); see `in_use`.
        number_format: one that can learn.
        is_batch: whether the first axis of several counts samples, as that of inputs does.
    Returns: same shape and dtype as `x`.

    Raises:
        DerivativeError: inside `torch.func` or forward-mode differentiation.
    """
    refuse_transforms("a format with learnt scales", "use gradient 'identity' or 'clip'")
    return torch.ops.chop.learnt_fake_quantize(x, scales, number_format.key, is_batch)
