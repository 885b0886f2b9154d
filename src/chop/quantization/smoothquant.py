"""SmoothQuant: the range of inputs moves into weights, and the function stays.

Source: Xiao et al. 2022, arXiv:2211.10438, section 4, eq. 3 and 4; a factor on the residual branch:
Wei et al. 2022, arXiv:2209.13325, section 4.1.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from chop.ir.batches import observe_nodes
from chop.ir.graph import MaseGraph
from chop.quantization.folding import Site, find_sites, fold


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
    """
    sites, skipped = find_sites(mg, rescale)
    largest = _largest_inputs(mg, sites, batches) if sites else {}
    for site in sites:
        fold(mg, site, smoothing_scale(largest[site.value], site.weights(mg), strength))
    return {str(site.source.target): site.paths() for site in sites}, skipped


def _largest_inputs(
    mg: MaseGraph, sites: Sequence[Site], batches: Iterable[Mapping[str, Any]]
) -> dict[fx.Node, Tensor]:
    """(channels,) by the value of each site: the largest magnitude of each channel."""
    found: dict[fx.Node, Tensor] = {}
    values = {site.value for site in sites}

    def visit(node: fx.Node, _: Mapping[fx.Node, Any], result: Any) -> None:
        if node in values:
            amax = result.abs().flatten(0, -2).amax(0)
            found[node] = torch.maximum(found[node], amax) if node in found else amax

    observe_nodes(mg, batches, visit)
    return found


def smoothing_scale(amax: Tensor, weights: Sequence[Tensor], strength: float) -> Tensor:
    """s_j = amax_j^strength / max|w_j|^(1 - strength), 1 where either is zero or not finite.

    Args:
        amax: (inputs,), largest magnitude of each input channel.
        weights: (outputs, inputs) each, of all layers that read them.
        strength: from 0 to 1.
    Returns: (inputs,), the dtype of `amax`.
    """
    largest = torch.stack([weight.abs().amax(0) for weight in weights]).amax(0).double()
    scale = amax.double() ** strength / largest ** (1 - strength)
    usable = scale.isfinite() & (amax > 0) & (largest > 0)
    return torch.where(usable, scale, 1).to(amax.dtype)
