"""SmoothQuant: the range of outlier channels of inputs moves into weights, the function stays.

Source: Xiao et al. 2022, arXiv:2211.10438, section 4, eq. 3 and 4; a factor on the residual branch:
Wei et al. 2022, arXiv:2209.13325, section 4.1.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from chop.ir.batches import Runs, observe_batches, run_layerwise
from chop.ir.graph import MaseGraph
from chop.ir.rows import Measured, finite_rows
from chop.quantization.folding.check import FoldCheck, warn_of_undone
from chop.quantization.folding.folding import UNREACHED, Site, find_sites, fold, representable

WHERE = "smoothquant_transform_pass"
STRENGTH = 0.5
"""Migration strength by default."""


@torch.no_grad()
def smooth(
    mg: MaseGraph, batches: Iterable[Mapping[str, Any]], strength: float, rescale: bool
) -> tuple[dict[str, list[str]], dict[str, str]]:
    """Divides the inputs of Linear layers by a scale per channel and multiplies their weights.

    Args:
        mg: the graph; it is changed.
        batches: from `select_inputs`.
        strength: migration strength, from 0 to 1, see `smoothing_scale`.
        rescale: whether other readers of a smoothed value get it multiplied by the scale.
    Returns: the paths of the readers for each source's path, and for every other Linear's node the
        reason.

    Raises:
        ConfigError: a batch brings NaN or infinite values to a layer.
    """
    sites, skipped = find_sites(mg, rescale)
    rows = list(batches)
    largest = _largest_inputs(mg, sites, rows) if sites else {}
    scales: dict[fx.Node, Tensor] = {}
    for site in sites:
        if site.value in largest:
            scale = smoothing_scale(largest[site.value], site.weights(mg), strength)
            scales[site.source] = representable(mg, site, scale, largest[site.value])
    undone = _undone(mg, [site for site in sites if site.source in scales], scales, rows)
    warn_of_undone(WHERE, {str(source.target): reason for source, reason in undone.items()})
    undone |= {site.source: UNREACHED for site in sites if site.source not in scales}
    smoothed: dict[str, list[str]] = {}
    for site in sites:
        if site.source in undone:
            skipped.update({reader.name: undone[site.source] for reader in site.readers})
            continue
        # Again: an earlier fold may have scaled the same weight along its other axis.
        fold(mg, site, representable(mg, site, scales[site.source], largest[site.value]))
        smoothed[str(site.source.target)] = site.paths()
    return smoothed, skipped


def _largest_inputs(
    mg: MaseGraph, sites: Sequence[Site], batches: Sequence[Mapping[str, Any]]
) -> dict[fx.Node, Tensor]:
    """(channels,) by the value of each site: the largest magnitude of each channel, no padding."""
    found: dict[fx.Node, Tensor] = {}
    measured = {site.value: Measured(f"{WHERE}.batches", site.paths()[0]) for site in sites}

    def visit(number: int, node: fx.Node, _: Mapping[fx.Node, Any], result: Any) -> None:
        if node not in measured:
            return
        x = finite_rows(node, result, batches[number], number, measured[node])
        if len(x):
            amax = x.abs().amax(0)
            found[node] = torch.maximum(found[node], amax) if node in found else amax

    observe_batches(mg, batches, visit)
    return found


def _undone(
    mg: MaseGraph,
    sites: Sequence[Site],
    scales: Mapping[fx.Node, Tensor],
    batches: Sequence[Mapping[str, Any]],
) -> dict[fx.Node, str]:
    """By source, why the readers do not compute what they did."""
    check, undone = FoldCheck(mg, sites), dict[fx.Node, str]()
    last = {site.readers[-1]: site for site in sites}

    def visit(node: fx.Node, runs: Runs) -> None:
        for number, values in enumerate(runs):
            check.note(node, number, values)
        if node in last:
            site = last[node]
            reason = check.why_undone(site, scales[site.source], range(len(runs)))
            if reason is not None:
                undone[site.source] = reason

    if sites:
        run_layerwise(mg, batches, visit)
    return undone


def smoothing_scale(amax: Tensor, weights: Sequence[Tensor], strength: float) -> Tensor:
    """s_j = amax_j^strength / max|w_j|^(1 - strength), 1 where either is zero or not finite.

    Args:
        amax: (inputs,), largest magnitude of each input channel.
        weights: (outputs, inputs) each, of all layers that read them.
        strength: from 0 to 1.
    Returns: (inputs,), float64.
    """
    largest = torch.stack([weight.abs().amax(0) for weight in weights]).amax(0).double()
    scale = amax.double() ** strength / largest ** (1 - strength)
    usable = scale.isfinite() & (amax > 0) & (largest > 0)
    return torch.where(usable, scale, 1)
