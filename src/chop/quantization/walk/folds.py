"""Folds of a block walk: AWQ and SmoothQuant move scales while one float block is in memory.

The float parts run one after the other, before any is rounded. What a fold changes is let go with
its block, and is changed again whenever it is read. All sites lie within a part.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from chop.captured.runtime import exit_open_regions
from chop.formats import NumberFormat
from chop.ir.batches import Runs
from chop.ir.graph import MaseGraph
from chop.ir.rows import Measured, finite_rows
from chop.quantization.folding import awq, smoothquant
from chop.quantization.folding.check import FoldCheck, warn_of_undone
from chop.quantization.folding.folding import (
    UNREACHED,
    Site,
    find_sites,
    fold_changes,
    representable,
)
from chop.quantization.rounding.row_weights import moderated, quantizers_off
from chop.quantization.walk.gptq import block_row_weights
from chop.quantization.walk.values import NoBlocksError, Values
from chop.quantization.walk.walk import Batch, BlockWalk, Part, run_nodes


@dataclass(frozen=True, eq=False)
class Scale:
    """The scale of a site.

    Attributes:
        scale: (channels,), above zero.
        largest: (channels,), the largest magnitudes of the value.
        told: of it.
        is_one: whether nothing is folded.
    """

    scale: Tensor
    largest: Tensor
    told: Mapping[str, Any]
    is_one: bool = False


Folded = tuple[dict[str, Any], dict[str, str]]
"""What is told of each source by its path, and the reason for each other Linear's node."""
Chooser = Callable[[Site, Runs], Scale | None]
"""Chooses the scale of a site of the values on each batch; None where no row reaches it."""


def block_awq(walk: BlockWalk, weight: NumberFormat, weighs_rows: bool = True) -> Folded:
    """Scales weights as `awq` does those of a graph, block by block.

    Args:
        walk: none of whose parts is rounded.
        weight: the format that the weights are going to have.
        weighs_rows: whether rows count by `row_weights`, or all alike.
    Returns: what was chosen for each source, and for every other Linear's node the reason.

    Raises:
        NoBlocksError: a scale would move from one part to another.
        ConfigError: a batch brings NaN or infinite values to a layer.
    """
    sites, skipped = sites_of_parts(walk.mg, walk.parts)
    readers = [reader for site in sites for reader in site.readers]
    where = f"{awq.WHERE}.batches"
    is_weighed = weighs_rows and bool(readers)
    weights = moderated(block_row_weights(walk, readers, where)) if is_weighed else {}

    def choose(site: Site, runs: Runs) -> Scale | None:
        own = {node: found for node, found in weights.items() if node in site.readers}
        found = awq.choose(walk.mg, site, runs, walk.batches, own, weight, awq.GRID)
        if found is None:
            return None
        return Scale(found.scale, found.largest, found.settings, not found.is_changed)

    told, undone = _fold_parts(walk, sites, choose, awq.WHERE)
    return told, skipped | undone


def block_smooth(walk: BlockWalk) -> Folded:
    """Smooths inputs as `smooth` does those of a graph, block by block, where nothing else reads.

    Args:
        walk: none of whose parts is rounded.
    Returns: the readers of each source, and for every other Linear's node the reason.

    Raises:
        NoBlocksError: a scale would move from one part to another.
        ConfigError: a batch brings NaN or infinite values to a layer.
    """

    def choose(site: Site, runs: Runs) -> Scale | None:
        measured = Measured(f"{smoothquant.WHERE}.batches", site.paths()[0])
        rows = [
            finite_rows(site.value, values[site.value], batch, number, measured)
            for number, (values, batch) in enumerate(zip(runs, walk.batches, strict=True))
        ]
        largest = [x.abs().amax(0) for x in rows if len(x)]
        if not largest:
            return None
        amax = torch.stack(largest).amax(0)
        scale = smoothquant.smoothing_scale(amax, site.weights(walk.mg), smoothquant.STRENGTH)
        return Scale(representable(walk.mg, site, scale, amax), amax, {})

    sites, skipped = sites_of_parts(walk.mg, walk.parts)
    told, undone = _fold_parts(walk, sites, choose, smoothquant.WHERE)
    return told, skipped | undone


def sites_of_parts(mg: MaseGraph, parts: Sequence[Part]) -> tuple[list[Site], dict[str, str]]:
    """The sites of the graph as floats, each of which lies within a part.

    Returns: the sites, and reasons by the name of every other Linear's node.

    Raises:
        NoBlocksError: one does not.
    """
    with quantizers_off(mg.model):
        sites, skipped = find_sites(mg, rescale=False)
    for site in sites:
        if not any(set(site.region()) <= set(part.nodes) for part in parts):
            raise NoBlocksError(f"scales of '{site.source.target}' would move to another block")
    return sites, skipped


@torch.no_grad()
def _fold_parts(walk: BlockWalk, sites: Sequence[Site], choose: Chooser, where: str) -> Folded:
    """Folds the sites of each part by the values of the float model."""
    told: dict[str, Any] = {}
    undone, skipped = dict[str, str](), dict[str, str]()
    values, left = Values(walk.mg.nodes, walk.files.scratch), list(sites)
    with quantizers_off(walk.mg.model), exit_open_regions():
        walk.mg.model.eval()
        for part in walk.parts:
            if not left:
                break
            own = [site for site in left if site.source in part.nodes]
            left = [site for site in left if site not in own]
            with walk.loaded(part):
                runs, after = _measured(walk, part, own, values, bool(left))
                chosen = ((site, choose(site, runs)) for site in own)
                scales = {site.source: scale for site, scale in chosen if scale is not None}
                known = [site for site in own if site.source in scales]
                reasons = _why_undone(walk, part, known, scales, values)
                undone |= {str(source.target): reason for source, reason in reasons.items()}
                for site in own:
                    reason = reasons.get(site.source)
                    if site.source not in scales:
                        reason = UNREACHED
                    if reason is None:
                        told[str(site.source.target)] = _fold(walk, site, scales[site.source])
                    else:
                        skipped |= {reader.name: reason for reader in site.readers}
                values = after
    warn_of_undone(where, undone)
    return told, skipped


def _measured(
    walk: BlockWalk, part: Part, sites: Sequence[Site], values: Values, is_followed: bool
) -> tuple[Runs, Values]:
    """The values of sites on each batch before their last reader runs, and those after the part.

    Nothing follows where no later part has a site: nodes run up to the last reader.
    """
    last = {site.readers[-1]: site.value for site in sites}
    runs: Runs = []
    after = Values(walk.mg.nodes, walk.files.scratch)
    nodes = part.nodes if is_followed else _up_to(part, sites)
    for number, batch in enumerate(walk.batches):
        own: dict[fx.Node, Tensor] = {}

        def before(node: fx.Node, found: Mapping[fx.Node, Any], own: Any = own) -> None:
            if node in last:
                own[last[node]] = found[last[node]].clone()

        left = run_nodes(walk.mg, nodes, batch, values.get(number), before=before)
        runs.append(own)
        if is_followed:
            after.put(number, left)
    return runs, after


def _up_to(part: Part, sites: Sequence[Site]) -> Sequence[fx.Node]:
    """The nodes of a part before the last reader of its sites, and that one."""
    places = [part.nodes.index(reader) for site in sites for reader in site.readers]
    return part.nodes[: max(places, default=-1) + 1]


def _why_undone(
    walk: BlockWalk,
    part: Part,
    sites: Sequence[Site],
    scales: Mapping[fx.Node, Scale],
    values: Values,
) -> dict[fx.Node, str]:
    """By source, why the readers would not compute what they do; one batch at a time."""
    check, undone = FoldCheck(walk.mg, sites), dict[fx.Node, str]()
    last = {site.readers[-1]: site for site in sites}

    def check_batch(number: int, batch: Batch) -> None:
        def before(node: fx.Node, found: Mapping[fx.Node, Any]) -> None:
            check.note(node, number, found)
            site = last.get(node)
            if site is not None:
                reason = check.why_undone(site, scales[site.source].scale, [number])
                if reason is not None:
                    undone.setdefault(site.source, reason)

        run_nodes(walk.mg, _up_to(part, sites), batch, values.get(number), before=before)

    if sites:
        for number, batch in enumerate(walk.batches):
            check_batch(number, batch)
    return undone


def _fold(walk: BlockWalk, site: Site, chosen: Scale) -> dict[str, Any]:
    """Folds a scale, now and whenever the tensors are read; what is told of it."""
    if not chosen.is_one:
        # Again: an earlier fold may have scaled the same weight along its other axis.
        scale = representable(walk.mg, site, chosen.scale, chosen.largest)
        for change in fold_changes(walk.mg, site, scale):
            walk.weights.change(change.stored, change.apply)
    return {"readers": site.paths(), **chosen.told}
