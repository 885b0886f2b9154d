"""Folding engine: scales are chosen, checked and folded, one part of a walk after the other.

What a fold changes is let go with the part where a walk reads weights from files, and is changed
again whenever it is read. All sites lie within a part.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor, fx

from chop.ir.batches import Runs
from chop.ir.graph import MaseGraph
from chop.quantization.folding.check import Checked, FoldCheck, warn_about_undone
from chop.quantization.folding.folding import (
    UNREACHED,
    Change,
    Site,
    find_sites,
    fold_changes,
    representable,
    rescale_others,
)
from chop.quantization.walk.parts import Part
from chop.quantization.walk.values import NoBlocksError, Values
from chop.quantization.walk.walk import Walk


class Scales(Protocol):
    """Scales that were chosen for a site."""

    @property
    def told(self) -> Mapping[str, dict[str, Any]]:
        """Entries of the report, by the path of the divided source."""

    def divisor(self, given: Mapping[fx.Node, Any]) -> Tensor:
        """Divisors of the site's value, computed from the inputs of its region."""

    def changes(self, mg: MaseGraph) -> list[Change]:
        """Parameters that a fold changes."""

    def fold(self, walk: Walk) -> None:
        """Folds them, now and whenever the tensors are read."""


Chooser = Callable[[Any, Runs], Scales | None]
"""Chooses the scales of a site by the values on each batch; None where no row reaches it."""


@dataclass(frozen=True, eq=False)
class SiteScale:
    """The scale of a `Site`.

    Attributes:
        site: the site.
        scale: (channels,), above zero.
        largest: (channels,), the largest magnitudes of the value.
        settings: what a report has of it, beside the readers.
        is_one: whether nothing is folded.
    """

    site: Site
    scale: Tensor
    largest: Tensor
    settings: Mapping[str, Any]
    is_one: bool = False

    @property
    def told(self) -> dict[str, dict[str, Any]]:
        """The readers and the settings."""
        return {str(self.site.source.target): {"readers": self.site.paths(), **self.settings}}

    def divisor(self, _: Mapping[fx.Node, Any]) -> Tensor:
        """The scale."""
        return self.scale

    def changes(self, mg: MaseGraph) -> list[Change]:
        """Multiplied readers and a divided source."""
        return [] if self.is_one else fold_changes(mg, self.site, self.scale)

    def fold(self, walk: Walk) -> None:
        """Folds the scale; other readers of the value get it multiplied by the scale."""
        # Again: an earlier fold may have scaled the same weight along its other axis.
        scale = representable(walk.mg, self.site, self.scale, self.largest)
        for change in replace(self, scale=scale).changes(walk.mg):
            walk.change(change.stored, change.apply)
        if self.site.others:
            rescale_others(walk.mg, self.site, scale)


def sites_of_parts(
    mg: MaseGraph, parts: Sequence[Part], rescale: bool = False
) -> tuple[list[Site], dict[str, str]]:
    """The sites of a graph, each of which lies within a part.

    Args:
        mg: the graph.
        parts: of its walk.
        rescale: whether other readers of a value may get it multiplied by the scale.
    Returns: the sites, and reasons by the name of every other Linear's node.

    Raises:
        NoBlocksError: one does not.
    """
    sites, skipped = find_sites(mg, rescale)
    check_within(parts, sites)
    return sites, skipped


def check_within(parts: Sequence[Part], sites: Sequence[Checked]) -> None:
    """Refuses sites that lie in several parts.

    Raises:
        NoBlocksError: one does.
    """
    inside = [set(part.nodes) for part in parts]
    for site in sites:
        if not any(nodes.issuperset(site.region()) for nodes in inside):
            raise NoBlocksError(f"scales of '{site.source.target}' would move to another block")


@torch.no_grad()
def move_scales(
    walk: Walk, sites: Sequence[Checked], choose: Chooser, where: str
) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """Folds the scales of each part's sites, which the values of the graph as it was choose.

    Args:
        walk: none of whose parts is rounded.
        sites: each within a part.
        choose: is called before the last reader of a site runs.
        where: the setting that the batches come from, for a warning.
    Returns: what is told of each source by its path, and for the nodes of the other readers the
        reason.
    """
    told: dict[str, dict[str, Any]] = {}
    undone, skipped = dict[str, str](), dict[str, str]()
    values, left = Values(walk.mg.nodes, walk.scratch), list(sites)
    for number, part in enumerate(walk.parts):
        if not left:
            break
        own = [site for site in left if site.source in part.nodes]
        left = [site for site in left if site not in own]
        with walk.loaded(part):
            block = replace(walk.block(number, values), is_last=not left)
            choices = _Choices(walk.mg, own, choose)
            with walk.at_work():
                values = block.run(choices.last, choices.visit, choices.check.note)
            for site in own:
                reason = choices.reasons.get(site.source)
                if reason is not None:
                    skipped |= {reader.name: reason for reader in site.readers}
                    undone |= {} if reason == UNREACHED else {str(site.source.target): reason}
                    continue
                choices.chosen[site.source].fold(walk)
                told |= choices.chosen[site.source].told
    warn_about_undone(where, undone)
    return told, skipped


class _Choices:
    """Scales of the sites of a part, and the reasons of those that have none."""

    def __init__(self, mg: MaseGraph, sites: Sequence[Checked], choose: Chooser) -> None:
        self.check, self._choose = FoldCheck(mg, sites), choose
        self.last = {site.readers[-1]: site for site in sites}
        self.chosen: dict[fx.Node, Scales] = {}
        self.reasons: dict[fx.Node, str] = {}

    def visit(self, node: fx.Node, runs: Runs) -> None:
        """Chooses and checks before the last reader of a site runs."""
        site = self.last[node]
        scales = self._choose(site, runs)
        reason: str | None = UNREACHED
        if scales is not None:
            self.chosen[site.source] = scales
            changes = scales.changes(self.check.mg)
            reason = self.check.why_undone(site, changes, scales.divisor, len(runs))
        if reason is not None:
            self.reasons[site.source] = reason
