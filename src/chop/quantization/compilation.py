"""Compilation of quantized models: rounding in operations that Inductor fuses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn

from chop.formats import NumberFormat, from_key
from chop.formats.elements import Fixed
from chop.formats.layout import Layout
from chop.kernels.plan import get_layout
from chop.private.compile_api import inductor_after

EXACT_WIDTH = 24
"""Width of the integers that float32 represents exactly."""
LARGEST_SHIFT = 100
"""Maximum number of fraction bits of either sign for which steps and their inverses are normal
float32.
"""
ROUNDING = (torch.ops.chop.fake_quantize, torch.ops.chop.fake_quantize.default)


def compiled_model(model: nn.Module) -> Any:
    """Returns `torch.compile(model)` with rounding fused into the surrounding operations.

    If gradients are needed, rounding stays an operator with a straight-through gradient.
    """
    return torch.compile(model, backend=inductor_after(with_steps))


def with_steps(graph: fx.GraphModule, inputs: Sequence[Any]) -> fx.GraphModule:
    """Replaces the rounding operator by `round_in_steps` where the format allows it.

    Args:
        graph: graph to change.
        inputs: example inputs, including parameters.
    """
    if torch.is_grad_enabled() and any(getattr(x, "requires_grad", False) for x in inputs):
        return graph
    for node in graph.graph.nodes:
        key = node.args[1] if node.target in ROUNDING and len(node.args) > 1 else None
        if isinstance(key, str) and takes_steps(from_key(key)):
            node.target = round_in_steps
    graph.recompile()
    return graph


def takes_steps(number_format: NumberFormat) -> bool:
    """Returns true if `round_in_steps` is exact for a format: integers times one power of two."""
    layout = get_layout(number_format) if number_format.is_fitted else None
    element = None if layout is None else layout.element
    return isinstance(layout, Layout) and isinstance(element, Fixed) and _is_plain(layout, element)


def round_in_steps(x: Tensor, key: str) -> Tensor:
    """Rounds to multiples of a power of two, bit-identical to the format, without a gradient.

    Args:
        x: floating tensor of any shape.
        key: key of a format for which `takes_steps` is true.
    """
    layout = get_layout(from_key(key))
    assert layout is not None and isinstance(layout.element, Fixed)
    element = layout.element
    real = x if x.dtype == torch.float64 else x.float()
    whole = (real * 2.0**element.frac_width).round()
    whole = whole.clamp(element.lowest_code, element.largest_code)
    # Adding zero makes -0 the 0 that two's complement has.
    return ((whole + 0.0) * 2.0**-element.frac_width).to(x.dtype)


def _is_plain(layout: Layout, element: Fixed) -> bool:
    return (
        layout.scaling is None
        and layout.levels is None
        and not layout.has_zero_points
        and (element.rounding, element.code) == ("nearest_even", "twos_complement")
        and element.width <= EXACT_WIDTH
        and abs(element.frac_width) <= LARGEST_SHIFT
    )
