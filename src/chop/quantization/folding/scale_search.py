"""Scale search of AWQ: input-channel scales that minimize the error of rounded weights.

Source: Lin et al. 2023, arXiv:2306.00978, section 3.2, eq. 4 and 5.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from chop.formats import NumberFormat
from chop.formats.scaling import SharedExponent, Unscaled

FACTORS = (1.0, 2**0.25, 2**0.5, 2**0.75)
"""Factors of all scales, tried if the format's scales are powers of two or absent.

They are not tried if a Linear is divided, because its own weights would then round differently.
"""


class BestScale(NamedTuple):
    """Scale with the least error.

    Attributes:
        exponent: exponent of the input magnitudes.
        factor: factor of all scales.
        scale: (inputs,), float64.
        largest: (inputs,), largest magnitudes of inputs.
        before: relative squared error of the outputs without a scale.
        after: relative squared error with the scale.
    """

    exponent: float
    factor: float
    scale: Tensor
    largest: Tensor
    before: float
    after: float

    @property
    def is_changed(self) -> bool:
        """True if the scale is not 1."""
        return (self.exponent, self.factor) != (0.0, 1.0)

    @property
    def settings(self) -> dict[str, float]:
        """Entries of the report."""
        names = ("exponent", "factor", "before", "after")
        return {name: getattr(self, name) for name in names}


def search_scale(
    layers: Sequence[tuple[Tensor, Tensor]],
    inputs: Tensor,
    number_format: NumberFormat,
    grid: int,
    is_whole: bool = False,
) -> BestScale:
    """Returns the scale with the least error of all layers relative to their outputs.

    Args:
        layers: for each, the weight (outputs, inputs) and X diag(weights) X^T, float64.
        inputs: X^T, (rows, inputs).
        number_format: format of the weights.
        grid: number of tried exponents above 0, up to 1.
        is_whole: tries `FACTORS` as well.
    """
    layers = [(w.double(), h) for w, h in layers]
    energy = sum(_energy(w, h) for w, h in layers) or 1.0
    magnitudes = inputs.abs()
    magnitude, largest = magnitudes.double().mean(0), magnitudes.amax(0)
    factors = _factors(number_format.fitted(layers[0][0])) if is_whole else FACTORS[:1]
    errors: dict[tuple[float, float], float] = {}
    for exponent, factor in itertools.product((i / grid for i in range(grid + 1)), factors):
        scale = factor * awq_scale(magnitude, exponent)
        rounded = [number_format.round((w * scale).float()).double() / scale for w, _ in layers]
        pairs = zip(layers, rounded, strict=True)
        errors[exponent, factor] = sum(_energy(q - w, h) for (w, h), q in pairs) / energy
    exponent, factor = min(errors, key=errors.__getitem__)
    scale = factor * awq_scale(magnitude, exponent)
    return BestScale(exponent, factor, scale, largest, errors[0.0, 1.0], errors[exponent, factor])


def _factors(number_format: NumberFormat) -> tuple[float, ...]:
    """Returns the factors that matter: formats with float scales round alike at any magnitude."""
    layout = number_format.layout()
    is_relative = (
        layout is not None
        and layout.scaling is not None
        and not isinstance(layout.scaling, SharedExponent | Unscaled)
    )
    return FACTORS[:1] if is_relative else FACTORS


def _energy(x: Tensor, moments: Any) -> float:
    return float(((x @ moments) * x).sum())


def awq_scale(magnitude: Tensor, exponent: float) -> Tensor:
    """Returns s_j = m_j^exponent divided by the geometric mean of the smallest and largest of them.

    Args:
        magnitude: (inputs,), mean magnitude of each input channel; values of zero or not finite
            count as 1.
        exponent: from 0 (no scale) to 1.
    Returns: (inputs,), above zero.
    """
    usable = magnitude.isfinite() & (magnitude > 0)
    scale = torch.where(usable, magnitude, 1) ** exponent
    return scale / (scale.amin() * scale.amax()).sqrt()
