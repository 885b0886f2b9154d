"""`nvfp4`: NVIDIA's 4-bit floats with two levels of scales."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch

from chop.errors import ConfigError
from chop.formats.elements import Minifloat
from chop.formats.fitted_float_scale import FittedFloatScale
from chop.formats.scaled import BlockFormat
from chop.formats.scaling import ScaledFloatScale


@dataclass(frozen=True, kw_only=True)
class NVFP4(BlockFormat):
    """NVFP4: e2m1 numbers times an e4m3 scale per block and a float32 scale per tensor.

    Values: g s v, with v in {0, 0.5, 1, 1.5, 2, 3, 4, 6} of either sign. The scale of a block is s
    = e4m3(amax_block/6/g). The scale of the tensor is g = float32(amax_tensor/(448 6)), at least
    2^-126. Both amax are largest finite magnitudes.
    Fitting: with `scale="mse"`, 6 becomes the c of 4, 4.5, ..., 8 with which the block has the
    smallest sum of squared errors, except in blocks with s = 448. This is intended for weights.
    The stored numbers have the same form.
    Rounding: s and v are rounded to nearest, ties to even.
    Saturation: larger values become 6 g s, where s is at most 448.
    Special values: -0 is preserved. A block with a NaN or an infinity becomes NaN.

    Rounding twice can change the scale of a block far below the tensor's largest magnitude.

    Attributes:
        scale: rule for the scales of blocks: `largest` maps amax to 6, `mse` fits the scale.
        tensor_scale: static g, a float32 number of at least 2^-126, as engines need for inputs and
            for layers that they join. None to measure it.

    Example:
        >>> import torch
        >>> NVFP4(block_size=2).round(torch.tensor([6.0, 2.4, 1.0, 0.4]))
        tensor([6.0000, 2.0000, 0.9643, 0.3214])

    Source: NVIDIA 2025, "Pretraining Large Language Models with NVFP4", arXiv:2509.25149,
    section 2 and appendix C. Fitted scales: Cook et al. 2025 (Four Over Six), arXiv:2512.02010.
    """

    name: ClassVar[str] = "nvfp4"
    search_space: ClassVar[dict[str, Sequence[Any]]] = {"block_size": (16, 32)}

    scale: Literal["largest", "mse"] = "largest"
    tensor_scale: float | None = None

    def validate_element(self) -> None:
        """Raises ConfigError if the static scale is not a positive normal float32 number."""
        scale, limits = self.tensor_scale, torch.finfo(torch.float32)
        if scale is not None and not limits.tiny <= scale <= limits.max:
            raise ConfigError(
                f"{self.name}.tensor_scale: expected a number from {limits.tiny:.3g} to "
                f"{limits.max:.3g}, got {scale}."
            )

    @property
    def element(self) -> Minifloat:
        """e2m1."""
        return Minifloat(2, 1, 1, "finite")

    @property
    def scaling(self) -> ScaledFloatScale:
        """e4m3 times float32."""
        small, largest, given = Minifloat(4, 3, 7, "fn"), self.element.largest, self.tensor_scale
        if self.scale == "mse":
            return FittedFloatScale(small, largest, values=self.element, given=given)
        return ScaledFloatScale(small, largest, given=given)
