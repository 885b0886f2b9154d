"""Proof of a fold: on every batch the readers compute what they did, or the fold is undone."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor, fx

from chop.ir.graph import MaseGraph
from chop.ir.propagate import GraphRunner
from chop.private.torch_api import StorageWeakRef, write_count
from chop.quantization.folding.folding import Change

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 1e-2}
"""How far outputs may move by rounding, of their root mean square; bfloat16: 0.06."""
COARSEST = 0.06


class Checked(Protocol):
    """Where a scale moves: what `Site` has."""

    @property
    def source(self) -> fx.Node:
        """What is divided."""

    @property
    def value(self) -> fx.Node:
        """What the readers read."""

    @property
    def readers(self) -> list[fx.Node]:
        """What is multiplied."""

    def region(self) -> list[fx.Node]:
        """The nodes from the source to the readers, in order."""


class FoldCheck:
    """Runs what lies between the sources and the readers of sites with a fold and without it.

    What goes into a site is kept from where it is computed until the site is checked.

    Args:
        mg: the graph; it is left as it was.
        sites: from `find_sites` or `find_expert_sites`.
    """

    def __init__(self, mg: MaseGraph, sites: Sequence[Checked]) -> None:
        self.mg = mg
        self.regions = {site.source: site.region() for site in sites}
        self._readers: dict[fx.Node, list[Checked]] = {}
        for site in sites:
            for node in self.regions[site.source]:
                self._readers.setdefault(node, []).append(site)
        self._given: dict[tuple[fx.Node, int], dict[fx.Node, Any]] = {}
        self._values = {site.value: site for site in sites}
        self._versions: dict[tuple[fx.Node, int], tuple[StorageWeakRef, int]] = {}
        self._written: dict[fx.Node, str] = {}

    def note(self, number: int, node: fx.Node, values: Mapping[fx.Node, Any]) -> None:
        """Keeps what a node that is about to run reads, where a site has it.

        Args:
            number: of the batch.
            node: the node.
            values: of the nodes before it.
        """
        for site in self._readers.get(node, ()):
            region = self.regions[site.source]
            kept = self._given.setdefault((site.source, number), {})
            for source in node.all_input_nodes:
                if source not in region and source not in kept:
                    value = values[source]
                    kept[source] = value.clone() if isinstance(value, Tensor) else value
        for value in self._values.keys() & node.all_input_nodes:
            # Views share their base's version, so that a write through one shows. A value that was
            # read from a file has other memory, and a version of its own.
            seen = StorageWeakRef(values[value].untyped_storage()), write_count(values[value])
            first, site = self._versions.setdefault((value, number), seen), self._values[value]
            if seen[0] == first[0] and seen[1] != first[1] and node in site.readers:
                reason = f"'{node.target}' reads what was written into it in place"
                self._written.setdefault(site.source, reason)

    def why_undone(
        self,
        site: Checked,
        changes: Sequence[Change],
        divisor: Callable[[Mapping[fx.Node, Any]], Tensor],
        count: int,
    ) -> str | None:
        """Returns which reader computes something else after a fold; None if none does.

        Args:
            site: the site, all of whose nodes have been noted.
            changes: what the fold changes.
            divisor: what the site's value is divided by, of what the region reads.
            count: of batches; what is kept of them is dropped.
        """
        given = [self._given.pop((site.source, number)) for number in range(count)]
        if site.source in self._written:
            return self._written[site.source]
        for number, values in enumerate(given):
            before = self._results(site, values)
            with _folded(changes):
                after = self._results(site, values)
            after[site.value] = after[site.value] * divisor(values)
            for node, expected in before.items():
                off = _difference(after[node], expected)
                if not off <= TOLERANCE.get(expected.dtype, COARSEST):
                    return (
                        f"'{node.target}' computes something else on batch {number}, by "
                        f"{off:.2g} of its size"
                    )
        return None

    def _results(self, site: Checked, given: Mapping[fx.Node, Any]) -> dict[fx.Node, Tensor]:
        """The site's value and what its readers compute."""
        run = GraphRunner(self.mg.model)
        run.env = {n: x.clone() if isinstance(x, Tensor) else x for n, x in given.items()}
        found: dict[fx.Node, Tensor] = {}
        for node in self.regions[site.source]:
            run.env[node] = run.run_node(node)
            if node is site.value or node in site.readers:
                found[node] = run.env[node].clone()
        return found


@contextmanager
def _folded(changes: Sequence[Change]) -> Iterator[None]:
    kept = [(change.stored.detach(), change.stored.detach().clone()) for change in changes]
    try:
        for change in changes:
            change.apply(change.stored.detach())
        yield
    finally:
        for tensor, before in kept:
            tensor.copy_(before)


def _difference(found: Tensor, expected: Tensor) -> float:
    """The largest of the channels' root mean square differences, of their size; NaN is one."""
    if not expected.numel():
        return 0.0
    rows, wanted = (x.double().reshape(-1, x.shape[-1]) for x in (found, expected))
    known = wanted.isfinite()
    error = torch.where(known, rows - wanted, 0).square().mean(0).sqrt()
    energy = torch.where(known, wanted, 0).square().mean(0)
    size = energy.sqrt() + energy.mean().sqrt()
    off = torch.where(error == 0, 0, error / size)
    return float(off.amax()) if bool(off.isfinite().all()) else float("inf")


def warn_about_undone(where: str, undone: Mapping[str, str]) -> None:
    """One warning that names all folds that were undone, and why."""
    if undone:
        reasons = "; ".join(f"'{path}': {reason}" for path, reason in undone.items())
        warnings.warn(
            f"{where}: scales were not moved out of {len(undone)} of the values, since the float "
            f"model would not compute what it did ({reasons}).",
            stacklevel=5,
        )
