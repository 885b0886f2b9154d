"""Folding engine: chooses, checks and folds scales, part by part of a walk.

If a walk reads weights from files, changed weights are released with their part, and the change is
repeated after each reload. Each site lies within a part.
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
    """Chosen scales of a site."""

    @property
    def report(self) -> Mapping[str, dict[str, Any]]:
        """Entries of the report by the path of the divided source."""

    def divisor(self, given: Mapping[fx.Node, Any]) -> Tensor:
        """Computes the divisor of the site's value from the inputs of its region."""

    def changes(self, mg: MaseGraph) -> list[Change]:
        """Returns the parameter changes of the fold."""

    def fold(self, walk: Walk) -> None:
        """Folds the scales now and after each reload of the tensors."""


Chooser = Callable[[Any, Runs], Scales | None]
"""Function that chooses the scales of a site from its values per batch; None if no row reaches it.
"""


@dataclass(frozen=True, eq=False)
class SiteScale:
    """Scale of a `Site`.

    Attributes:
        site: the site.
        scale: (channels,), above zero.
        largest: (channels,), largest magnitudes of the value.
        settings: further entries of the report, in addition to the readers.
        is_one: true if nothing is folded.
    """

    site: Site
    scale: Tensor
    largest: Tensor
    settings: Mapping[str, Any]
    is_one: bool = False

    @property
    def report(self) -> dict[str, dict[str, Any]]:
        """The readers and the settings."""
        return {str(self.site.source.target): {"readers": self.site.paths(), **self.settings}}

    def divisor(self, _: Mapping[fx.Node, Any]) -> Tensor:
        """Returns the scale."""
        return self.scale

    def changes(self, mg: MaseGraph) -> list[Change]:
        """Returns the changes: multiplied readers and a divided source."""
        return [] if self.is_one else fold_changes(mg, self.site, self.scale)

    def fold(self, walk: Walk) -> None:
        """Folds the scale. Other readers of the value multiply it by the scale."""
        # Again: an earlier fold may have scaled the same weight along its other axis.
        scale = representable(walk.mg, self.site, self.scale, self.largest)
        for change in replace(self, scale=scale).changes(walk.mg):
            walk.change(change.stored, change.apply)
        if self.site.others:
            rescale_others(walk.mg, self.site, scale)


def sites_of_parts(
    mg: MaseGraph, parts: Sequence[Part], rescale: bool = False
) -> tuple[list[Site], dict[str, str]]:
    """Finds the sites of a graph and checks that each lies within a part.

    Args:
        mg: the graph.
        parts: parts of its walk.
        rescale: allows other readers of a value, which then multiply it by the scale.
    Returns: the sites, and reasons by the name of each other Linear node.

    Raises:
        NoBlocksError: if a site spans several parts.
    """
    sites, skipped = find_sites(mg, rescale)
    check_within(parts, sites)
    return sites, skipped


def check_within(parts: Sequence[Part], sites: Sequence[Checked]) -> None:
    """Checks that no site spans several parts.

    Raises:
        NoBlocksError: if a site spans several parts.
    """
    inside = [set(part.nodes) for part in parts]
    for site in sites:
        if not any(nodes.issuperset(site.region()) for nodes in inside):
            raise NoBlocksError(f"scales of '{site.source.target}' would move to another block")


@torch.no_grad()
def move_scales(
    walk: Walk, sites: Sequence[Checked], choose: Chooser, where: str
) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """Chooses scales from the values of the unchanged graph and folds them, part by part.

    Args:
        walk: walk without rounded parts.
        sites: sites that each lie within a part.
        choose: called before the last reader of a site runs.
        where: setting of the batches, for a warning.
    Returns: the report by source path, and the reasons by node of the other readers.
    """
    report: dict[str, dict[str, Any]] = {}
    undone, skipped = dict[str, str](), dict[str, str]()
    values, pending = Values(walk.mg.nodes, walk.scratch), list(sites)
    for number, part in enumerate(walk.parts):
        if not pending:
            break
        own = [site for site in pending if site.source in part.nodes]
        pending = [site for site in pending if site not in own]
        with walk.loaded(part):
            block = replace(walk.block(number, values), is_last=not pending)
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
                report |= choices.chosen[site.source].report
    warn_about_undone(where, undone)
    return report, skipped


class _Choices:
    """Scales of the sites of a part, and reasons for sites without one."""

    def __init__(self, mg: MaseGraph, sites: Sequence[Checked], choose: Chooser) -> None:
        self.check, self._choose = FoldCheck(mg, sites), choose
        self.last = {site.readers[-1]: site for site in sites}
        self.chosen: dict[fx.Node, Scales] = {}
        self.reasons: dict[fx.Node, str] = {}

    def visit(self, node: fx.Node, runs: Runs) -> None:
        """Chooses and checks a scale before the last reader of its site runs."""
        site = self.last[node]
        scales = self._choose(site, runs)
        reason: str | None = UNREACHED
        if scales is not None:
            self.chosen[site.source] = scales
            changes = scales.changes(self.check.mg)
            reason = self.check.why_undone(site, changes, scales.divisor, len(runs))
        if reason is not None:
            self.reasons[site.source] = reason
