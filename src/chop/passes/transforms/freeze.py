"""Freezes a quantized graph for running: weights rounded once, and compiled where that is asked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from chop.ir.graph import MaseGraph
from chop.passes.base import graph_pass
from chop.quantization.freezing import freeze_layers


@dataclass(frozen=True)
class FreezeConfig:
    """Settings of `freeze_transform_pass`.

    Attributes:
        compile: gives the model as `torch.compile` makes it too; the first call then compiles,
            which takes seconds to minutes and needs a C++ compiler.
    """

    compile: bool = False


@graph_pass(config=FreezeConfig, takes_packed=True)
def freeze_transform_pass(mg: MaseGraph, config: FreezeConfig) -> dict[str, Any]:
    """Rounds the weights of quantized layers once: a graph that only runs rounds them no more.

    It answers as before, in evaluation, which it comes back in. A layer that rounds nothing else
    becomes a layer of torch; one that rounds inputs or results keeps to that. Without `compile`,
    packed linear layers stay packed where they multiply codes: of 65,536 weights or more, and of
    8-bit integers with inputs as such. The parameters of replaced layers get no gradients, and
    learned scales become part of the formats. Quantized calls of functions, and operators with a
    forward of one's own, stay as they are.

    Frozen weights are floats: a graph that is to be small is packed and not frozen. Compiled, the
    rounding of inputs to `integer` is fused with what is around it, where no gradient is wanted.

    Returns:
        frozen: paths of the layers that still round inputs or results.
        plain: paths of those that are layers of torch now.
        packed: paths of those that stayed packed.
        kept: paths of other quantized layers that stayed: they draw at random, shorten rows of a
            table, or have a forward of one's own.
        compiled: what to call instead of `mg.model`, compiled; None without `compile`.

    Raises:
        ConfigError: nothing is quantized, a format of a weight waits for data, or learned scales
            for a first batch.

    Example::

        frozen, info = freeze_transform_pass(mg, {"compile": True})
        y = info["compiled"](x)
    """
    mg.model.eval()
    found: dict[str, Any] = freeze_layers(mg, keeps_products=not config.compile)
    compiled = None
    if config.compile:
        from chop.quantization.compilation import compiled_model

        compiled = compiled_model(mg.model)
    return {**found, "compiled": compiled}
