"""Functionalization of in-place writes, since integer graphs only have values."""

from __future__ import annotations

from torch import fx

from chop.captured.nodes.writes import written_by
from chop.errors import ConfigError
from chop.integer.folding import Folded
from chop.ir.graph import MaseGraph
from chop.ir.ops import Kind
from chop.nn.quantized import QuantScaledDotProductAttention


def thread_writes(mg: MaseGraph, folded: Folded) -> bool:
    """Redirects later readers of written memory to the result of the writing node.

    Args:
        mg: the graph; it is changed.
        folded: its values on the example.
    Returns: whether any node writes.

    Raises:
        ConfigError: if a view or other name of that memory is read afterwards, or it is a parameter
            or buffer.
    """
    memory: dict[fx.Node, object] = {}
    has_written = False
    for place, node in enumerate(nodes := mg.nodes):
        memory[node] = _memory(mg, node, memory)
        targets = _targets(mg, node)
        if targets and folded.has_tensors(node):
            later = nodes[place + 1 :]
            for target in targets:
                _check(mg, node, target, later, memory, folded)
            _read_result(node, targets[0], later)
            has_written = True
    return has_written


def _memory(mg: MaseGraph, node: fx.Node, memory: dict[fx.Node, object]) -> object:
    """Returns an identifier of the memory of a node's result: the allocating node, or a path."""
    if node.op == "get_attr":
        return str(node.target)
    targets = _targets(mg, node)
    inputs = [memory[source] for source in targets or node.all_input_nodes]
    if not inputs or (not targets and _is_new(mg, node)):
        return node
    # A node may be a view of any of its inputs: from here on, all of them are one memory.
    named = next((each for each in inputs if isinstance(each, str)), inputs[0])
    memory.update({source: named for source, own in memory.items() if own in inputs})
    return named


def _is_new(mg: MaseGraph, node: fx.Node) -> bool:
    """Returns whether the result has newly allocated memory."""
    row = mg.operator(node)
    computes = row.integer is not None
    computes |= isinstance(mg.get_module(node), QuantScaledDotProductAttention)
    return row.joins(node) or computes


def _targets(mg: MaseGraph, node: fx.Node) -> list[fx.Node]:
    """Returns the inputs that a node writes into at inference."""
    module = mg.get_module(node)
    if module is None or getattr(module, "inplace", False) is True:
        drops = module is not None and mg.operator(node).kind is Kind.DROPOUT
        return [] if drops else written_by(node)
    writes = any(getattr(part, "inplace", False) is True for part in module.modules())
    return node.all_input_nodes[:1] if writes else []


def _check(
    mg: MaseGraph,
    node: fx.Node,
    target: fx.Node,
    later: list[fx.Node],
    memory: dict[fx.Node, object],
    folded: Folded,
) -> None:
    written = memory[target]
    where = f"node '{node.name}' ({mg.operator(node).name} in place, at {node.meta.get('source')})"
    if isinstance(written, str):
        raise ConfigError(f"{where} writes into '{written}', and integer graphs have no state.")
    for reader in later:
        if not (reader.op == "output" or folded.has_tensors(reader)):
            continue
        for read in reader.all_input_nodes:
            if read not in (target, node) and memory.get(read) == written:
                raise ConfigError(
                    f"{where} writes into memory that '{reader.name}' reads under another name, "
                    f"'{read.name}', and integer graphs only have values; compute a new tensor "
                    "instead."
                )


def _read_result(node: fx.Node, target: fx.Node, later: list[fx.Node]) -> None:
    readers = set(later)
    target.replace_all_uses_with(node, delete_user_cb=lambda user: user in readers)
