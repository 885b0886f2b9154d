"""Parts of a graph: the blocks of a decoder, what is before the first and after the last one.

Blocks are found by structure: the list of modules of one class that has most parameters. A graph
that cannot be cut between them raises `NoBlocksError`; the caller then works on the whole graph.
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
    """Nodes that run one after the other.

    Attributes:
        name: the path of a block, or "first" and "last"; "graph" of a whole one.
        nodes: of the graph.
    """

    name: str
    nodes: tuple[fx.Node, ...]


def block_paths(model: nn.Module) -> list[str]:
    """The paths of a decoder's blocks, of which there are two at least; empty where it has none."""
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
    """The graph cut at the first node of each block and after the last one's last.

    Raises:
        NoBlocksError: there are no blocks, or their nodes do not run one block after the other.
    """
    if not blocks:
        raise NoBlocksError("the model has no list of blocks of one class")
    nodes, places = list(mg.nodes), {path: list[int]() for path in blocks}
    for place, node in enumerate(nodes):
        path = _get_block(node, blocks)
        if path is not None:
            places[path].append(place)
    if not all(places.values()):
        missing = next(path for path, found in places.items() if not found)
        raise NoBlocksError(f"no module of '{missing}' is called in the graph")
    starts = [found[0] for found in places.values()]
    ends = [found[-1] + 1 for found in places.values()]
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
    # `layers.1` is no prefix of what is in `layers.10`.
    return next((path for path in blocks if f"{node.target}.".startswith(f"{path}.")), None)


def _check_apart(part: Part) -> None:
    """Refuses what the values at a cut do not tell: regions, and writes into earlier memory."""
    for node in part.nodes:
        if node.target in REGIONS:
            raise NoBlocksError(f"node '{node.name}' changes a mode for those that follow")
        if shared_writes(node):
            raise NoBlocksError(f"node '{node.name}' writes into the memory of another value")
