"""AWQ: weights that multiply large inputs are scaled up before rounding, and the inputs down.

Source: Lin et al. 2023, arXiv:2306.00978, section 3.2, eq. 4 and 5.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from chop.formats import NumberFormat
from chop.ir.batches import Runs
from chop.ir.rows import Measured, counted_rows, finite_rows
from chop.quantization.folding.awq_experts import (
    ExpertSite,
    choose_for_experts,
    find_expert_sites,
)
from chop.quantization.folding.check import Checked
from chop.quantization.folding.engine import (
    Scales,
    SiteScale,
    check_within,
    move_scales,
    sites_of_parts,
)
from chop.quantization.folding.folding import Site, representable
from chop.quantization.folding.scale_search import search_scale
from chop.quantization.rounding.row_weights import (
    RowWeights,
    moderated,
    row_weights,
    second_moments,
)
from chop.quantization.walk.walk import Walk

WHERE = "awq_transform_pass"
BATCHES = f"{WHERE}.batches"
GRID = 20
"""Exponents that are tried above 0 by default."""

ScaledReaders = dict[str, dict[str, Any]]
"""By the path of a source: its `readers`, `exponent`, `factor`, the error `before` and `after`."""


@torch.no_grad()
def awq(
    walk: Walk, weight: NumberFormat, weighs_rows: bool = True, grid: int = GRID
) -> tuple[ScaledReaders, dict[str, str]]:
    """Multiplies weights of Linear layers by a scale per input channel, where inputs are divided.

    Args:
        walk: of the float graph, none of whose parts is rounded; it is changed.
        weight: the format that the weights are going to have.
        weighs_rows: whether rows count by `row_weights`, or all alike.
        grid: exponents that are tried above 0, up to 1.
    Returns: what was chosen for each source, and for every other Linear's node the reason.

    Raises:
        NoBlocksError: a scale would move from one part to another.
        ConfigError: a batch brings NaN or infinite values to a layer.
    """
    sites, skipped = sites_of_parts(walk.mg, walk.parts)
    pairs, reasons_of_experts = find_expert_sites(walk.mg, weight)
    check_within(walk.parts, pairs)
    skipped = {**skipped, **reasons_of_experts}
    for pair in pairs:
        skipped.pop(pair.down.name, None)
    together: Sequence[Checked] = [*sites, *pairs]
    readers = [reader for site in together for reader in site.readers]
    is_weighed = weighs_rows and bool(readers)
    weights = moderated(row_weights(walk, readers, BATCHES)) if is_weighed else {}

    def choose(site: Site | ExpertSite, runs: Runs) -> Scales | None:
        if isinstance(site, Site):
            return _choose_scale(walk, site, runs, weights, weight, grid)
        scales, few = choose_for_experts(walk, site, runs, weights, (weight, grid), BATCHES)
        skipped.update({f"{site.down.name}[{number}]": why for number, why in few.items()})
        return scales

    found, undone = move_scales(walk, together, choose, WHERE)
    return found, skipped | undone


def _choose_scale(
    walk: Walk,
    site: Site,
    runs: Runs,
    weights: RowWeights,
    number_format: NumberFormat,
    grid: int,
) -> SiteScale | None:
    """The scale with the least error of a site's readers, relative to their outputs.

    Args:
        walk: of the float graph.
        site: from `find_sites`.
        runs: values of each batch, that of the site among them.
        weights: of the rows, by reader; rows of others count alike.
        number_format: that the weights are going to have.
        grid: exponents that are tried above 0, up to 1.
    Returns: None where no row reaches the readers.
    """
    samples, mg = _samples(site, runs, walk.batches, weights), walk.mg
    if not samples.inputs:
        return None
    moments = [samples.moments(reader) for reader in site.readers]
    layers = [*zip(site.weights(mg), moments, strict=True)]
    is_whole = not mg.operator(site.source).is_product
    found = search_scale(layers, torch.cat(samples.inputs), number_format, grid, is_whole)
    scale = representable(mg, site, found.scale, found.largest)
    return SiteScale(site, scale, found.largest, found.settings, not found.is_changed)


@dataclass
class _Samples:
    """What the readers of a site read: (rows, channels) and weights of each batch with rows."""

    inputs: list[Tensor]
    weights: dict[fx.Node, list[Tensor]]

    def moments(self, reader: fx.Node) -> Tensor:
        """X diag(weights) X^T of a reader, float64."""
        none: list[Tensor | None] = [None] * len(self.inputs)
        pairs = zip(self.inputs, self.weights.get(reader) or none, strict=True)
        return second_moments((x[None], w) for x, w in pairs)[0].double()


def _samples(
    site: Site, runs: Runs, batches: Sequence[Mapping[str, Any]], weights: RowWeights
) -> _Samples:
    """The rows that count, see `finite_rows`."""
    samples = _Samples([], {reader: [] for reader in site.readers})
    for number, (values, batch) in enumerate(zip(runs, batches, strict=True)):
        x, measured = values[site.value], Measured(BATCHES, site.paths()[0])
        rows = finite_rows(site.value, x, batch, number, measured)
        if not len(rows):
            continue
        counted = counted_rows(site.value, x, batch)
        samples.inputs.append(rows)
        for reader, found in weights.items():
            if reader in samples.weights:
                of_rows = found[number] if counted is None else found[number][counted]
                samples.weights[reader].append(of_rows)
    return samples
