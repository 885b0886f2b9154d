"""`binary`: the sign, with or without a scale."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from chop.formats.base import check_range
from chop.formats.elements import Sign
from chop.formats.groups import Whole
from chop.formats.scaled import ScaledFormat
from chop.formats.scaling import FloatScale, Scaling, Unscaled


def mean_magnitude(groups: Tensor) -> Tensor:
    """Mean of the finite magnitudes of each group, (..., groups, 1)."""
    finite = groups.isfinite()
    total = groups.abs().masked_fill(~finite, 0).sum(-1, keepdim=True)
    return total / finite.sum(-1, keepdim=True).clamp(min=1)


@dataclass(frozen=True)
class Binary(ScaledFormat):
    """One bit.

    Values: {-1, +1} times a scale, or {0, 1} if not bipolar; the scale is 1, or the mean magnitude
    of a channel, an index of the first axis; a vector is one channel.
    Rounding: the upper value for x >= 0, -0 included; `stochastic`: with probability
    clip((x/scale + 1)/2, 0, 1), drawn from torch's global generator at every call, in evaluation
    too. Saturation: beyond the scale. Special values: NaN stays NaN, and is the lower value when
    stored; the scale is the mean of finite magnitudes.

    Attributes:
        width: 1.
        stochastic: draws instead of taking the sign.
        bipolar: False for {0, 1}.
        scaling_factor: takes the scale from the data instead of 1.

    Example:
        >>> import torch
        >>> Binary(scaling_factor=True).round(torch.tensor([0.5, -1.5, 0.0]))
        tensor([ 0.6667, -0.6667,  0.6667])

    Source: Courbariaux, Bengio and David 2015 (BinaryConnect), arXiv:1511.00363, section 2;
    the scale: Rastegari et al. 2016 (XNOR-Net), arXiv:1603.05279, section 3.1.
    """

    name: ClassVar[str] = "binary"
    module_keys: ClassVar[dict[str, str | None]] = {"binary_training": "scaling_factor"}
    search_space: ClassVar[dict[str, Sequence[Any]]] = {"scaling_factor": (False, True)}

    width: int = 1
    stochastic: bool = False
    bipolar: bool = True
    scaling_factor: bool = False

    def validate(self) -> None:
        """Raises ConfigError unless the width is 1."""
        check_range("binary.width", self.width, range(1, 2), "bit")

    @property
    def is_deterministic(self) -> bool:
        """False if signs are drawn."""
        return not self.stochastic

    @property
    def element(self) -> Sign:
        """Signs."""
        return Sign(self.bipolar, self.stochastic)

    @property
    def groups(self) -> Whole:
        """Channels."""
        return Whole("channel")

    @property
    def scaling(self) -> Scaling:
        """The mean magnitude, or none."""
        return FloatScale(mean_magnitude) if self.scaling_factor else Unscaled()
