"""AWQ: weights that multiply large inputs are scaled up before rounding, and the inputs down.

Source: Lin et al. 2023, arXiv:2306.00978, section 3.2, eq. 4 and 5.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from chop.formats import NumberFormat
from chop.ir.batches import Runs, run_layerwise
from chop.ir.graph import MaseGraph
from chop.ir.rows import Measured, counted_rows, finite_rows
from chop.quantization.folding.awq_experts import (
    ExpertSite,
    choose_for_experts,
    find_expert_sites,
    fold_experts,
    why_experts_change,
)
from chop.quantization.folding.check import FoldCheck, warn_of_undone
from chop.quantization.folding.folding import UNREACHED, Site, find_sites, fold, representable
from chop.quantization.folding.scale_search import Found, search_scale
from chop.quantization.rounding.row_weights import (
    RowWeights,
    moderated,
    row_weights,
    second_moments,
)

WHERE = "awq_transform_pass"
BATCHES = f"{WHERE}.batches"
GRID = 20
"""Exponents that are tried above 0 by default."""

ScaledReaders = dict[str, dict[str, Any]]
"""By the path of a source: its `readers`, `exponent`, `factor`, the error `before` and `after`."""


@torch.no_grad()
def awq(
    mg: MaseGraph,
    batches: Iterable[Mapping[str, Any]],
    weight: NumberFormat,
    grid: int,
    weighs_rows: bool,
) -> tuple[ScaledReaders, dict[str, str]]:
    """Multiplies weights of Linear layers by a scale per input channel, where inputs are divided.

    Args:
        mg: the float graph; it is changed.
        batches: from `select_inputs`.
        weight: the format that the weights are going to have.
        grid: exponents that are tried above 0, up to 1.
        weighs_rows: whether rows count by `row_weights`, or all alike.
    Returns: what was chosen for each source, and for every other Linear's node the reason.

    Raises:
        ConfigError: a batch brings NaN or infinite values to a layer.
    """
    sites, skipped = find_sites(mg, rescale=False)
    pairs, reasons_of_experts = find_expert_sites(mg, weight)
    skipped = {**skipped, **reasons_of_experts}
    second = {pair.down: pair for pair in pairs}
    for pair in pairs:
        skipped.pop(pair.down.name, None)
    of_experts = dict[ExpertSite, Mapping[int, Found]]()
    rows: Sequence[Mapping[str, Any]] = list(batches)
    readers = [reader for site in sites for reader in site.readers] + [*second]
    is_weighed = weighs_rows and bool(readers)
    weights = moderated(row_weights(mg, readers, rows, BATCHES)) if is_weighed else {}
    last = {site.readers[-1]: site for site in sites}
    check, chosen = FoldCheck(mg, [*sites, *pairs]), dict[fx.Node, Found]()
    undone = dict[fx.Node, str]()

    def visit(node: fx.Node, runs: Runs) -> None:
        for number, values in enumerate(runs):
            check.note(node, number, values)
        if node in second:
            pair, searched = second[node], (weight, grid)
            chosen_here, few = choose_for_experts(mg, pair, runs, rows, weights, searched, BATCHES)
            skipped.update({f"{node.name}[{number}]": why for number, why in few.items()})
            change = why_experts_change(check, pair, chosen_here, len(runs))
            if change is None:
                of_experts[pair] = chosen_here
            else:
                undone[pair.up], skipped[node.name] = change, change
        if node not in last:
            return
        site = last[node]
        reason: str | None = UNREACHED
        choice = choose(mg, site, runs, rows, weights, weight, grid)
        if choice is not None:
            chosen[site.source] = choice
            reason = check.why_undone(site, choice.scale, range(len(runs)))
        if reason is not None:
            undone[site.source] = reason

    if readers:
        run_layerwise(mg, rows, visit)
    reasons = {str(s.target): why for s, why in undone.items() if why != UNREACHED}
    warn_of_undone(WHERE, reasons)
    found: ScaledReaders = {}
    for site in sites:
        if site.source in undone:
            skipped.update({reader.name: undone[site.source] for reader in site.readers})
            continue
        choice = chosen[site.source]
        if choice.is_changed:
            fold(mg, site, representable(mg, site, choice.scale, choice.largest))
        found[str(site.source.target)] = {"readers": site.paths(), **choice.settings}
    for pair, one in of_experts.items():
        fold_experts(mg, pair, one)
        for number, each in one.items():
            source, reader = pair.names(number)
            found[source] = {"readers": [reader], **each.settings}
    return found, skipped


def choose(
    mg: MaseGraph,
    site: Site,
    runs: Runs,
    batches: Sequence[Mapping[str, Any]],
    weights: RowWeights,
    number_format: NumberFormat,
    grid: int,
) -> Found | None:
    """The scale with the least error of a site's readers, relative to their outputs.

    Args:
        mg: the float graph.
        site: from `find_sites`.
        runs: values of each batch, that of the site among them.
        batches: from `select_inputs`.
        weights: of the rows, by reader; rows of others count alike.
        number_format: that the weights are going to have.
        grid: exponents that are tried above 0, up to 1.
    Returns: None where no row reaches the readers.
    """
    samples = _samples(site, runs, batches, weights)
    if not samples.inputs:
        return None
    moments = [samples.moments(reader) for reader in site.readers]
    layers = [*zip(site.weights(mg), moments, strict=True)]
    is_whole = not mg.operator(site.source).is_product
    found = search_scale(layers, torch.cat(samples.inputs), number_format, grid, is_whole)
    return found._replace(scale=representable(mg, site, found.scale, found.largest))


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
