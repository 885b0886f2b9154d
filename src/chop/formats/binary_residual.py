"""`binary_residual`: a sum of signs, each of what the ones before it left."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from chop.errors import ConfigError
from chop.formats.base import Encoded, check_range
from chop.formats.binary import mean_magnitude
from chop.formats.chunks import chunks
from chop.formats.elements import Sign
from chop.formats.learnt import LearnableFormat, check_scales, given
from chop.formats.packing import pack_bits, unpack_bits
from chop.formats.scaled import cast
from chop.formats.scaling import TINY

MAX_LEVELS = 8


@dataclass(frozen=True)
class BinaryResidual(LearnableFormat):
    """Residual binarisation with L levels.

    Values: the sum over l of scale_l s_l, s_l in {-1, +1}, or {0, 1} if not bipolar.
    Rounding: r_0 = x; s_l is the sign of r_l, +1 for zeros; r_(l+1) = r_l - scale_l s_l;
    `stochastic`: the upper value with probability clip((r_l/scale_l + 1)/2, 0, 1), drawn from
    torch's global generator. scale_l is float32(mean |r_l|) of the tensor, or given. Saturation:
    beyond the sum of the scales. Special values: NaN stays NaN, and has the lower bits when
    stored; scales are means of finite magnitudes.

    Attributes:
        width: 1, the bits of a level.
        stochastic: draws instead of taking the sign.
        bipolar: False for {0, 1}.
        residual_sign: False for one level, whatever `levels` is.
        levels: L, 1 to 8.
        scales: the L factors, or None to measure them.

    Learning: the factors start as they are measured; dy/dscale_l = s_l; dy/dx is 1, and 0 beyond
    the sum of the factors.

    Example:
        >>> BinaryResidual(levels=2).round(torch.tensor([3.0, 1.0, -1.0, -3.0]))
        tensor([ 3.,  1., -1., -3.])

    Source: Ghasemzadeh, Samragh and Koushanfar 2018 (ReBNet), arXiv:1711.01243, section III-A.
    """

    name: ClassVar[str] = "binary_residual"
    module_keys: ClassVar[dict[str, str | None]] = {"binary_training": None}
    search_space: ClassVar[dict[str, Sequence[Any]]] = {"levels": (1, 2, 3)}

    width: int = 1
    stochastic: bool = False
    bipolar: bool = True
    residual_sign: bool = True
    levels: int = 2
    scales: tuple[float, ...] | None = None

    @classmethod
    def ignores(cls, name: str, value: Any) -> bool:
        """True of widths but one bit, that of a level, and of the scale, which is measured."""
        return name in ("frac_width", "scaling_factor") or (name == "width" and value != 1)

    def validate(self) -> None:
        """Raises ConfigError where a number is out of range, or the scales are not L."""
        check_range("binary_residual.width", self.width, range(1, 2), "bit")
        check_range("binary_residual.levels", self.levels, range(1, MAX_LEVELS + 1), "levels")
        object.__setattr__(self, "scales", check_scales(self.scales, "binary_residual.scales"))
        if self.scales is not None and len(self.scales) != self._depth:
            raise ConfigError(
                f"binary_residual.scales: expected {self._depth}, one for each level, got "
                f"{len(self.scales)}."
            )

    @property
    def is_deterministic(self) -> bool:
        """False if signs are drawn."""
        return not self.stochastic

    @property
    def _depth(self) -> int:
        return self.levels if self.residual_sign else 1

    @property
    def _element(self) -> Sign:
        return Sign(self.bipolar, self.stochastic)

    def round(self, x: Tensor) -> Tensor:
        """The sum of the levels; a dtype that cannot hold it rounds once more.

        Args:
            x: any shape and floating dtype.
        Returns: same shape and dtype as `x`.
        """
        signs, scales = self._signs_and_scales(x)
        return self._sum(signs, scales, x.dtype)

    def _signs_and_scales(self, x: Tensor) -> tuple[list[Tensor], Tensor]:
        """Per level: s_l in the shape of `x`, NaN where it is; float32 factor."""
        element, rest = self._element, x.double()
        known = None if self.scales is None else given(self.scales, x)
        signs: list[Tensor] = []
        scales: list[Tensor] = []
        for level in range(self._depth):
            if level:
                rest = rest - scales[-1] * signs[-1]
            scales.append(_mean(rest) if known is None else known[level].double())
            signs.append(element.round(rest / scales[-1].masked_fill(scales[-1] == 0, 1.0)))
        return signs, torch.stack(scales).float()

    def _sum(self, signs: Sequence[Tensor], scales: Tensor, dtype: torch.dtype) -> Tensor:
        total = torch.zeros_like(signs[0])
        for level, scale in zip(signs, scales.double(), strict=True):
            total = total + scale * level
        return cast(total, dtype)

    def bits(self, shape: Sequence[int] = ()) -> float:
        """L, and 32 for each level's factor."""
        scale_bits = 32 * self._depth if shape else 0
        return self._depth + scale_bits / max(math.prod(shape), 1)

    def encode(self, x: Tensor) -> Encoded:
        """L bits for each value, the first level lowest, and the factors."""
        signs, scales = self._signs_and_scales(x)
        codes = sum(self._element.stored(level) << place for place, level in enumerate(signs))
        assert isinstance(codes, Tensor)
        return Encoded(pack_bits(codes, self._depth), x.shape, x.dtype, scales)

    def decode(self, encoded: Encoded) -> Tensor:
        """The sum of the levels."""
        assert encoded.scales is not None
        codes = unpack_bits(encoded.codes, self._depth, encoded.shape.numel())
        y = torch.empty(codes.shape, dtype=encoded.dtype, device=codes.device)
        for target, part in zip(chunks(y), chunks(codes), strict=True):
            signs = [
                self._element.values((part >> level & 1).long()) for level in range(self._depth)
            ]
            target.copy_(self._sum(signs, encoded.scales, y.dtype))
        return y.view(encoded.shape)

    def saturates(self, x: Tensor) -> Tensor:
        """True beyond the sum of the factors."""
        return x.double().abs() > self._signs_and_scales(x)[1].double().sum()

    @property
    def can_learn(self) -> bool:
        """True unless signs are drawn."""
        return not self.stochastic

    @property
    def largest_step(self) -> int:
        """1."""
        return 1

    def first_scales(self, x: Tensor) -> Tensor:
        """The measured factors; 1 for what is all zero."""
        scales = self._signs_and_scales(x)[1]
        return scales.masked_fill(scales < TINY, 1.0)

    def gradients(
        self, grad: Tensor, x: Tensor, rounded: Tensor, scales: Tensor
    ) -> tuple[Tensor, Tensor]:
        """None for values beyond the sum of the factors; sums with the signs of each level."""
        rest, of_scales = x, []
        for scale in scales:
            sign = torch.where(rest >= 0, 1.0, -1.0 if self.bipolar else 0.0)
            of_scales.append((grad * sign).sum())
            rest = rest - scale * sign
        return grad.masked_fill(x.abs() > scales.sum(), 0), torch.stack(of_scales).float()


def _mean(rest: Tensor) -> Tensor:
    """float64 scalar: the mean magnitude, as float32 rounds it."""
    return mean_magnitude(rest.reshape(-1)).float().double().squeeze()
