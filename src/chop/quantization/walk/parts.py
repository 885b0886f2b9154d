"""Parts of a graph: the blocks of a decoder, the nodes before the first, and those after the last.

Blocks are identified by structure: the list of modules of one class with the most parameters. A
graph that cannot be cut between them raises `NoBlocksError`; the caller then uses the whole graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import fx, nn

from chop.captured.nodes.writes import shared_writes
from chop.captured.runtime import REGIONS
from chop.ir.graph import MaseGraph
from chop.quantization.walk.values import NoBlocksError


@dataclass(frozen=True)
class Part:
    """Nodes that run consecutively.

    Attributes:
        name: path of a block, "first", "last", or "graph" for a whole graph.
        nodes: nodes of the graph.
    """

    name: str
    nodes: tuple[fx.Node, ...]


def block_paths(model: nn.Module) -> list[str]:
    """Returns the paths of a decoder's blocks, at least two; empty if there are none."""
    lists = {
        path: module
        for path, module in model.named_modules()
        if isinstance(module, nn.ModuleList)
        and len(module) > 1
        and len({type(block) for block in module}) == 1
    }
    sizes = {path: sum(p.numel() for p in module.parameters()) for path, module in lists.items()}
    if not sizes:
        return []
    path = max(sizes, key=sizes.__getitem__)
    return [f"{path}.{name}" for name, _ in lists[path].named_children()]


def get_parts(mg: MaseGraph, blocks: Sequence[str]) -> list[Part]:
    """Cuts a graph at the first node of each block and after the last node of the last block.

    Raises:
        NoBlocksError: if there are no blocks, or their nodes do not run one block after the other.
    """
    if not blocks:
        raise NoBlocksError("the model has no list of blocks of one class")
    nodes, places = list(mg.nodes), {path: list[int]() for path in blocks}
    for place, node in enumerate(nodes):
        path = _get_block(node, blocks)
        if path is not None:
            places[path].append(place)
    if not all(places.values()):
        missing = next(path for path, positions in places.items() if not positions)
        raise NoBlocksError(f"no module of '{missing}' is called in the graph")
    starts = [positions[0] for positions in places.values()]
    ends = [positions[-1] + 1 for positions in places.values()]
    if any(end > start for end, start in zip(ends, starts[1:], strict=False)):
        raise NoBlocksError("the blocks do not run one after the other")
    cuts = [0, *starts, ends[-1], len(nodes)]
    names = ["first", *blocks, "last"]
    pairs = zip(names, cuts, cuts[1:], strict=False)
    parts = [Part(name, tuple(nodes[start:stop])) for name, start, stop in pairs]
    for part in parts[1:]:
        _check_apart(part)
    return parts


def _get_block(node: fx.Node, blocks: Sequence[str]) -> str | None:
    if node.op not in ("call_module", "get_attr"):
        return None
    # `layers.1` is not a prefix of what is in `layers.10`.
    return next((path for path in blocks if f"{node.target}.".startswith(f"{path}.")), None)


def _check_apart(part: Part) -> None:
    """Checks that values suffice at a cut: no open regions, no writes into earlier memory."""
    for node in part.nodes:
        if node.target in REGIONS:
            raise NoBlocksError(f"node '{node.name}' changes a mode for later nodes")
        if shared_writes(node):
            raise NoBlocksError(f"node '{node.name}' writes into the memory of another value")
