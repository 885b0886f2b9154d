"""Freezes a quantized graph for running: weights rounded once, and compiled where that is asked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from chop.errors import ConfigError
from chop.ir.graph import MaseGraph
from chop.passes.base import graph_pass
from chop.quantization.freezing import freeze_layers, multiplies_codes, multiplies_integers


@dataclass(frozen=True)
class FreezeConfig:
    """Settings of `freeze_transform_pass`.

    Attributes:
        compile: True gives the model as `torch.compile` makes it too; the first call then compiles,
            which takes seconds to minutes and needs a C++ compiler. "aot" compiles now, and writes
            a package that torch and C++ load without chop, on processors with the same
            instructions; inputs may then be rounded to `integer` alone, to nearest.
        path: the package to write, for "aot"; a missing suffix `.pt2` is added.
    """

    compile: bool | Literal["aot"] = False
    path: Path | None = None

    def __post_init__(self) -> None:
        if (self.compile == "aot") != (self.path is not None):
            raise ConfigError(
                'freeze_transform_pass: expected a path with compile = "aot", and with nothing '
                f"else; got compile = {self.compile!r} and path = {self.path!r}."
            )


@graph_pass(config=FreezeConfig, takes_packed=True)
def freeze_transform_pass(mg: MaseGraph, config: FreezeConfig) -> dict[str, Any]:
    """Rounds the weights of quantized layers once: a graph that only runs rounds them no more.

    It answers as before, in evaluation, which it comes back in. A layer that rounds nothing else
    becomes a layer of torch; one that rounds inputs or results keeps to that. Packed linear layers
    stay packed where they multiply codes: of 65,536 weights or more, and of 8-bit integers with
    inputs as such; compiled, where both hold, and not ahead of time. The parameters of replaced
    layers get no gradients, and learned scales become part of the formats. Quantized calls of
    functions, and operators with a forward of one's own, stay as they are.

    Frozen weights are floats: a graph that is to be small is packed and not frozen. Compiled, the
    rounding of inputs to `integer` is fused with what is around it, where no gradient is wanted.

    Returns:
        frozen: paths of the layers that still round inputs or results.
        plain: paths of those that are layers of torch now.
        packed: paths of those that stayed packed.
        kept: paths of other quantized layers that stayed: they draw at random, shorten rows of a
            table, or have a forward of one's own.
        compiled: what to call instead of `mg.model`, compiled; None without `compile`. A package
            takes the tensors of the inputs in the order of `inputs`, and gives a list of those of
            the outputs.
        path: of the package, with "aot" alone, as all below.
        inputs: names of its inputs.
        outputs: names of its outputs.
        varying: axes of each input that may have other sizes than the example; a package does not
            look at those of others.
        unchecked: conditions of the graph on sizes that it does not test.

    Raises:
        ConfigError: nothing is quantized, a format of a weight waits for data, or learned scales
            for a first batch.
        GraphError: torch cannot compile the graph ahead of time, or a part of it needs chop.
        VerificationError: the package computes something else.

    Example::

        frozen, info = freeze_transform_pass(mg, {"compile": True})
        y = info["compiled"](x)
        freeze_transform_pass(mg, {"compile": "aot", "path": "model.pt2"})
        # Elsewhere, with torch alone: torch._inductor.aoti_load_package("model.pt2")(x)
    """
    mg.model.eval()
    in_torch = multiplies_integers if config.compile else multiplies_codes
    found: dict[str, Any] = freeze_layers(mg, None if config.path else in_torch)
    if config.path is not None:
        # Registers operators with torch, which takes as long as importing all other engines.
        from chop.export import pt2

        return {**found, **pt2.write(mg, config.path, freeze_transform_pass.__name__)}
    compiled = None
    if config.compile:
        from chop.quantization.compilation import compiled_model

        compiled = compiled_model(mg.model)
    return {**found, "compiled": compiled}
