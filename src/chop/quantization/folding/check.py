"""Verification of folds: a fold is undone if a reader's output changes on any batch."""

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
"""Maximum change of outputs by rounding, relative to their root mean square; bfloat16: 0.06."""
COARSEST = 0.06


class Checked(Protocol):
    """Interface of sites between which a scale moves, see `Site`."""

    @property
    def source(self) -> fx.Node:
        """Node that is divided."""

    @property
    def value(self) -> fx.Node:
        """Value that the readers read."""

    @property
    def readers(self) -> list[fx.Node]:
        """Nodes that are multiplied."""

    def region(self) -> list[fx.Node]:
        """Nodes from the source to the readers, in order."""


class FoldCheck:
    """Runs the region of each site with and without a fold.

    Inputs of a site are stored from their computation until the site is checked.

    Args:
        mg: the graph, which is not changed.
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
        """Stores the inputs of a node that is about to run, if they enter a site.

        Args:
            number: number of the batch.
            node: the node.
            values: values of the nodes before it.
        """
        for site in self._readers.get(node, ()):
            region = self.regions[site.source]
            stored = self._given.setdefault((site.source, number), {})
            for source in node.all_input_nodes:
                if source not in region and source not in stored:
                    value = values[source]
                    stored[source] = value.clone() if isinstance(value, Tensor) else value
        for value in self._values.keys() & node.all_input_nodes:
            # Views share their base's version, so that a write through one shows. A value that was
            # read from a file has other memory, and a version of its own.
            seen = StorageWeakRef(values[value].untyped_storage()), write_count(values[value])
            first, site = self._versions.setdefault((value, number), seen), self._values[value]
            if seen[0] == first[0] and seen[1] != first[1] and node in site.readers:
                reason = f"'{node.target}' reads a value that was modified in place"
                self._written.setdefault(site.source, reason)

    def why_undone(
        self,
        site: Checked,
        changes: Sequence[Change],
        divisor: Callable[[Mapping[fx.Node, Any]], Tensor],
        count: int,
    ) -> str | None:
        """Returns the reader whose result changes after a fold, and by how much; None if none does.

        Args:
            site: a site whose inputs have all been stored.
            changes: changes of the fold.
            divisor: computes the divisor of the site's value from the inputs of the region.
            count: number of batches, whose stored inputs are released.
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
                    return f"'{node.target}' changes on batch {number}, by {off:.2g} of its size"
        return None

    def _results(self, site: Checked, given: Mapping[fx.Node, Any]) -> dict[fx.Node, Tensor]:
        """Computes the site's value and the results of its readers."""
        run = GraphRunner(self.mg.model)
        run.env = {n: x.clone() if isinstance(x, Tensor) else x for n, x in given.items()}
        results: dict[fx.Node, Tensor] = {}
        for node in self.regions[site.source]:
            run.env[node] = run.run_node(node)
            if node is site.value or node in site.readers:
                results[node] = run.env[node].clone()
        return results


@contextmanager
def _folded(changes: Sequence[Change]) -> Iterator[None]:
    saved = [(change.stored.detach(), change.stored.detach().clone()) for change in changes]
    try:
        for change in changes:
            change.apply(change.stored.detach())
        yield
    finally:
        for tensor, before in saved:
            tensor.copy_(before)


def _difference(actual: Tensor, expected: Tensor) -> float:
    """Returns the largest relative root mean square difference of a channel; may be NaN."""
    if not expected.numel():
        return 0.0
    rows, wanted = (x.double().reshape(-1, x.shape[-1]) for x in (actual, expected))
    known = wanted.isfinite()
    error = torch.where(known, rows - wanted, 0).square().mean(0).sqrt()
    energy = torch.where(known, wanted, 0).square().mean(0)
    size = energy.sqrt() + energy.mean().sqrt()
    off = torch.where(error == 0, 0, error / size)
    return float(off.amax()) if bool(off.isfinite().all()) else float("inf")


def warn_about_undone(where: str, undone: Mapping[str, str]) -> None:
    """Warns once about all folds that were undone, with reasons."""
    if undone:
        reasons = "; ".join(f"'{path}': {reason}" for path, reason in undone.items())
        warnings.warn(
            f"{where}: scales of {len(undone)} values were not moved, since they would change the "
            f"float model ({reasons}).",
            stacklevel=5,
        )
