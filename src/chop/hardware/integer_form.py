"""Integer form of a graph, the source of circuits."""

from __future__ import annotations

import torch
from torch import Tensor, fx

from chop.captured.specs import TensorSpec
from chop.config import with_checked_arguments
from chop.errors import ConfigError
from chop.ir.graph import MaseGraph
from chop.ir.settled import refuse_nested, settled_copy
from chop.nn.integer import Decode, Encode, IntegerOptions

SEED = 0
"""Seed of the lowering inputs. Only their sizes and types matter."""


@with_checked_arguments
def integer_form(mg: MaseGraph) -> MaseGraph:
    """Returns an integer graph: the graph itself, or the lowered copy of a quantized graph.

    Args:
        mg: a graph from `lower_to_integer_transform_pass`, or a quantized one.
    Raises:
        ConfigError: if it has no integer form, or no recorded example inputs.
    """
    if is_integer(mg):
        return mg
    # Imported here, because the engine loads slow parts of torch.fx.
    from chop.integer.grids import observed_grids
    from chop.integer.lower import lower

    quantized = settled_copy(mg)
    example = example_batch(quantized)
    grids = observed_grids(quantized, [example])
    return lower(quantized, example, grids, IntegerOptions()).mg


def is_integer(mg: MaseGraph) -> bool:
    """Returns whether the graph encodes its inputs to, or decodes its results from, integers."""
    return any(isinstance(mg.get_module(node), Encode | Decode) for node in mg.nodes)


def example_batch(mg: MaseGraph, seed: int = SEED) -> dict[str, Tensor]:
    """Returns random inputs by name, with the sizes and types of the graph's capture.

    Raises:
        ConfigError: if the graph has not recorded them.
    """
    generator = torch.Generator().manual_seed(seed)
    specs = mg.model.record.example_inputs
    names = [str(node.target) for node in mg.nodes if node.op == "placeholder"]
    missing = [name for name in names if name not in specs and not _is_optional(mg, name)]
    if missing:
        raise ConfigError(
            f"hardware: no example of the input '{missing[0]}' is recorded; run "
            "lower_to_integer_transform_pass with 'batches' first."
        )
    refuse_nested({name: specs[name] for name in names if name in specs}, "hardware")
    return {
        name: spec.dummy(generator) if isinstance(spec := specs[name], TensorSpec) else spec
        for name in names
        if name in specs
    }


def _is_optional(mg: MaseGraph, name: str) -> bool:
    return any(node.args for node in _placeholders(mg) if str(node.target) == name)


def _placeholders(mg: MaseGraph) -> list[fx.Node]:
    return [node for node in mg.nodes if node.op == "placeholder"]
