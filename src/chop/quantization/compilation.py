"""Compilation of quantized models: rounding as operations that Inductor fuses."""

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
"""Bits of the whole numbers that float32 holds."""
LARGEST_SHIFT = 100
"""Fraction bits, of either sign, with which steps and their inverses are normal in float32."""
ROUNDING = (torch.ops.chop.fake_quantize, torch.ops.chop.fake_quantize.default)


def compiled_model(model: nn.Module) -> Any:
    """`torch.compile(model)` whose rounding to whole steps is fused with what is around it.

    Where gradients are wanted it stays one operator, which hands them on.
    """
    return torch.compile(model, backend=inductor_after(with_steps))


def with_steps(graph: fx.GraphModule, inputs: Sequence[Any]) -> fx.GraphModule:
    """The graph with `round_in_steps` in the place of the operator, where the format allows it.

    Args:
        graph: is changed.
        inputs: its examples, parameters among them.
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
    """Whether `round_in_steps` gives what a format does: whole steps of one power of two."""
    layout = get_layout(number_format) if number_format.is_fitted else None
    element = None if layout is None else layout.element
    return isinstance(layout, Layout) and isinstance(element, Fixed) and _is_plain(layout, element)


def round_in_steps(x: Tensor, key: str) -> Tensor:
    """Rounds to whole steps of a power of two, bit for bit as the format, without a gradient.

    Args:
        x: any shape, floating.
        key: of a format that `takes_steps`.
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
