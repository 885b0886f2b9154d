"""AWQ: weights of large inputs are scaled up before rounding, and the inputs are scaled down.

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
"""Default number of tried exponents above 0."""

ScaledReaders = dict[str, dict[str, Any]]
"""Folded scales by source path: `readers`, `exponent`, `factor`, and error `before` and `after`."""


@torch.no_grad()
def awq(
    walk: Walk, weight: NumberFormat, weighs_rows: bool = True, grid: int = GRID
) -> tuple[ScaledReaders, dict[str, str]]:
    """Moves a scale per input channel from inputs into weights of Linear layers.

    Args:
        walk: walk over the float graph before rounding; the graph is changed.
        weight: future format of the weights.
        weighs_rows: weighs rows by `row_weights` instead of equally.
        grid: number of tried exponents above 0, up to 1.
    Returns: the chosen scales by source, and the reason for each other Linear node.

    Raises:
        NoBlocksError: if a scale would move between parts.
        ConfigError: if a batch causes NaN or infinite inputs of a layer.
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

    scales, undone = move_scales(walk, together, choose, WHERE)
    return scales, skipped | undone


def _choose_scale(
    walk: Walk,
    site: Site,
    runs: Runs,
    weights: RowWeights,
    number_format: NumberFormat,
    grid: int,
) -> SiteScale | None:
    """Returns the scale with the least error of a site's readers relative to their outputs.

    Args:
        walk: walk over the float graph.
        site: from `find_sites`.
        runs: values of each batch, including the site's.
        weights: row weights by reader; rows of other readers have equal weights.
        number_format: future format of the weights.
        grid: number of tried exponents above 0, up to 1.
    Returns: None if no row reaches the readers.
    """
    samples, mg = _samples(site, runs, walk.batches, weights), walk.mg
    if not samples.inputs:
        return None
    moments = [samples.moments(reader) for reader in site.readers]
    layers = [*zip(site.weights(mg), moments, strict=True)]
    is_whole = not mg.operator(site.source).is_product
    best = search_scale(layers, torch.cat(samples.inputs), number_format, grid, is_whole)
    scale = representable(mg, site, best.scale, best.largest)
    return SiteScale(site, scale, best.largest, best.settings, not best.is_changed)


@dataclass
class _Samples:
    """Inputs of a site's readers: (rows, channels) and row weights of each batch with rows."""

    inputs: list[Tensor]
    weights: dict[fx.Node, list[Tensor]]

    def moments(self, reader: fx.Node) -> Tensor:
        """Returns X diag(weights) X^T of a reader, float64."""
        none: list[Tensor | None] = [None] * len(self.inputs)
        pairs = zip(self.inputs, self.weights.get(reader) or none, strict=True)
        return second_moments((x[None], w) for x, w in pairs)[0].double()


def _samples(
    site: Site, runs: Runs, batches: Sequence[Mapping[str, Any]], weights: RowWeights
) -> _Samples:
    """Returns the rows that count, see `finite_rows`."""
    samples = _Samples([], {reader: [] for reader in site.readers})
    for number, (values, batch) in enumerate(zip(runs, batches, strict=True)):
        x, measured = values[site.value], Measured(BATCHES, site.paths()[0])
        rows = finite_rows(site.value, x, batch, number, measured)
        if not len(rows):
            continue
        counted = counted_rows(site.value, x, batch)
        samples.inputs.append(rows)
        for reader, own in weights.items():
            if reader in samples.weights:
                row_weights = own[number] if counted is None else own[number][counted]
                samples.weights[reader].append(row_weights)
    return samples
