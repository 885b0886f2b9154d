"""Run-time rotations: nodes that transform the input of a layer or an attention."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import fx

from chop.captured.original import node_digest
from chop.ir.annotate import common_metadata
from chop.ir.graph import MaseGraph, node_metadata
from chop.ir.metadata import MaseMetadata
from chop.nn.hadamard import Hadamard, Rotated
from chop.quantization.rotation.stream import find_input, result_shape


def is_rotated(mg: MaseGraph, layer: fx.Node) -> bool:
    """Returns true if the input of a layer is rotated at run time."""
    source = find_input(layer)
    return isinstance(source, fx.Node) and isinstance(mg.get_module(source), Hadamard)


def insert_rotations(mg: MaseGraph, blocks: Mapping[fx.Node, int]) -> None:
    """Inserts rotations of the inputs of linear layers whose weights are already rotated.

    A layer becomes a `Rotated` module, which the model's own code can call.

    Args:
        mg: graph to change.
        blocks: block size by node; no other node calls the node's module.
    """
    model = mg.model  # asked for again, it would be compiled for each new node
    known = model.record.node_digests
    for layer, block in blocks.items():
        path, source = str(layer.target), find_input(layer)
        is_original = known.get(layer.name) == node_digest(layer)
        rotation = Hadamard(result_shape(source)[-1], block)
        mg.replace(layer, Rotated(rotation, model.get_submodule(path)))
        with mg.fx_graph.inserting_before(layer):
            node = mg.fx_graph.call_module(f"{path}.rotation", (source,))
        layer.target = f"{path}.linear"
        layer.replace_input_with(source, node)
        _annotate(mg, node, source, like=layer)
        if is_original:  # the original model's forward calls what is there now
            known.update({x.name: node_digest(x) for x in (node, layer)})


def _annotate(mg: MaseGraph, node: fx.Node, source: fx.Node, like: fx.Node) -> None:
    node.meta.update({name: x for name, x in like.meta.items() if name != "mase"})
    dtype = node_metadata(source).common.results["data_out_0"].torch_dtype
    value = torch.empty(result_shape(source), dtype=dtype, device="meta")
    values = {source: value, node: value}
    node.meta["mase"] = MaseMetadata(node, common=common_metadata(mg, node, values))
