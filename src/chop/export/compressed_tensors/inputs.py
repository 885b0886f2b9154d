"""compressed-tensors inputs: rounding of layer inputs, the setting `input_activations`.

Scales of tokens or groups are dynamic. A scale per tensor is dynamic or stored as `input_scale`.

Engines compute a dynamic scale of 8-bit integers as amax/127, like `scale_integer`. The library
itself, which transformers calls, uses amax/127.5 with k from -128 to 127, so its steps are smaller
by 1/255. It computes quotients, scales and products in the model's dtype, and one scale for all
rows of a matrix, because a matrix has no tokens. For e4m3 both divide by 448. A quotient that
float32 rounds to a tie may become the neighbor of chop's code.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from chop.errors import ConfigError
from chop.export.coded import E4M3
from chop.export.foreign.stored import checked_scales
from chop.formats import FP8, NumberFormat, Quantizer, ScaleInteger
from chop.formats.elements import Fixed
from chop.formats.groups import WHOLE_TENSOR, Blocks, Groups, Whole
from chop.formats.layout import Layout
from chop.formats.scaling import ConstantScale, FloatScale
from chop.formats.statistic import LARGEST

SCALE = "input_scale"
GRANULARITIES = {"tensor": "tensor", "token": "row", "group": "group"}
"""Granularities of chop's formats by strategy."""
WIDEST = 8


@dataclass(frozen=True)
class InputScheme:
    """Scheme for rounding inputs.

    Attributes:
        bits: bits of a code.
        kind: `int`, or `float` for e4m3.
        strategy: granularity of scales: `tensor`, `token` for a row of the last axis, or `group`.
        group_size: columns that share a scale with strategy `group`.
        is_dynamic: True for scales measured at run time; False for one stored scale.
    """

    bits: int
    kind: str
    strategy: str
    group_size: int | None
    is_dynamic: bool

    @property
    def finds_integers(self) -> bool:
        """True for dynamic integer scales, which the library computes differently from engines."""
        return self.is_dynamic and self.kind == "int"

    @property
    def plain(self) -> dict[str, Any]:
        """Returns `input_activations`."""
        return {
            "num_bits": self.bits,
            "type": self.kind,
            "symmetric": True,
            "strategy": self.strategy,
            "group_size": self.group_size,
            "dynamic": self.is_dynamic,
        }

    def number_format(self, scale: Tensor | None) -> NumberFormat:
        """Returns the number format of inputs.

        Args:
            scale: `input_scale` of a static scheme.

        Raises:
            ValueError: if a static scale is missing or not a positive number.
        """
        settings: dict[str, Any] = {"granularity": GRANULARITIES[self.strategy]}
        if self.group_size is not None:
            settings["group_size"] = self.group_size
        if not self.is_dynamic:
            settings["scales"] = (one_scale(scale),)
        if self.kind == "float":
            return FP8(**settings)
        return ScaleInteger(self.bits, is_symmetric=self.is_dynamic, **settings)


def one_scale(scale: Tensor | None) -> float:
    """Returns the stored scale of a tensor.

    Raises:
        ValueError: if it is missing or not a positive number.
    """
    if scale is None:
        raise ValueError(f"it lacks {SCALE}")
    if scale.numel() != 1 or scale.ndim > 1 or not bool((checked_scales(scale) > 0).all()):
        raise ValueError(f"{SCALE} is {scale.dtype} {tuple(scale.shape)}, not a positive number")
    return float(scale.float().item())


def parse_inputs(plain: Any, where: str) -> InputScheme | None:
    """Parses the input rounding of a group in `quantization_config`; None for float inputs.

    Args:
        plain: `input_activations`.
        where: folder and group, for messages.

    Raises:
        ConfigError: if chop has no format for the scheme.
    """
    if plain is None:
        return None
    if not isinstance(plain, Mapping):
        raise ConfigError(f"{where}: expected input_activations, got {plain!r:.80}.")
    bits, kind = plain.get("num_bits", 8), plain.get("type", "int")
    widths = {"int": range(2, WIDEST + 1), "float": (WIDEST,)}.get(str(kind), ())
    if type(bits) is not int or bits not in widths:
        raise ConfigError(
            f"{where}: expected inputs as integers of up to 8 bits or 8-bit floats, got "
            f"{bits!r:.20} bits of type {kind!r:.20}."
        )
    if plain.get("symmetric") is False:
        raise ConfigError(f"{where}: expected symmetric inputs; zero points are not supported.")
    if plain.get("scale_dtype") is not None:
        raise ConfigError(
            f"{where}: expected float scales of inputs, got {plain['scale_dtype']!r:.40}."
        )
    return _with_strategy(plain, bits, str(kind), where)


def _with_strategy(plain: Mapping[str, Any], bits: int, kind: str, where: str) -> InputScheme:
    dynamic, size, strategy = (plain.get(x) for x in ("dynamic", "group_size", "strategy"))
    strategy = strategy or ("group" if size else "tensor")
    is_group = strategy == "group"
    is_size = type(size) is int and 0 < size < 2**20
    allowed = [*GRANULARITIES] if dynamic else ["tensor"]
    if (type(dynamic) is not bool and dynamic is not None) or strategy not in allowed:
        raise ConfigError(
            f"{where}: expected a dynamic input scale per tensor, token or group, or a static one "
            f"per tensor, got strategy {strategy!r:.40} and dynamic {dynamic!r:.20}."
        )
    if is_group != is_size:
        raise ConfigError(
            f"{where}: expected a group_size for strategy 'group' only, got {size!r:.20}."
        )
    return InputScheme(bits, kind, strategy, size if is_group else None, bool(dynamic))


def list_inputs(quantizer: Quantizer) -> tuple[InputScheme, float | None] | str:
    """Returns the library's scheme for an input format and the static scale, or why it has none.

    Static integers of a symmetric format saturate at the library's second lowest code.

    Args:
        quantizer: quantizer of inputs, not float.
    """
    layout = quantizer.layout() if isinstance(quantizer, NumberFormat) else None
    kind = None if layout is None else _kind(layout)
    if layout is None or kind is None:
        return (
            f"it rounds its inputs to {quantizer.label}: expected integers of up to 8 bits, or "
            "e4m3, with float scales"
        )
    element, scaling = layout.element, layout.scaling
    step = 2.0**-element.frac_width if isinstance(element, Fixed) else 1.0
    if scaling is None:
        return InputScheme(element.width, kind, "tensor", None, False), step
    if isinstance(scaling, ConstantScale) and len(scaling.given) == 1 and scaling.given[0] > 0:
        in_float32 = scaling.known(torch.device("cpu")).item()
        return InputScheme(element.width, kind, "tensor", None, False), in_float32 * step
    strategy, dynamic = _strategy(layout.groups), FloatScale(LARGEST, element.highest, True)
    if strategy is None or step != 1 or scaling != dynamic:
        return (
            f"it rounds its inputs to {quantizer.label}: expected a dynamic absmax scale per row, "
            "group of a row or tensor, or a static scale per tensor"
        )
    return InputScheme(element.width, kind, *strategy, True), None


def _kind(layout: Layout) -> str | None:
    element = layout.element
    if layout.levels is not None or layout.has_zero_points:
        return None
    if element == E4M3:
        return "float"
    if not isinstance(element, Fixed) or element.width > WIDEST:
        return None
    is_int = element.code == "twos_complement" and element.rounding == "nearest_even"
    return "int" if is_int else None


def _strategy(groups: Groups) -> tuple[str, int | None] | None:
    if groups == WHOLE_TENSOR:
        return "tensor", None
    if groups == Whole("row"):
        return "token", None
    if isinstance(groups, Blocks) and len(groups.sizes) == 1 and groups.dim == -1:
        return "group", groups.sizes[0]
    return None
