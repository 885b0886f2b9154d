"""SmoothQuant: the range of outlier channels of inputs moves into weights, the function stays.

Source: Xiao et al. 2022, arXiv:2211.10438, section 4, eq. 3 and 4; a factor on the residual branch:
Wei et al. 2022, arXiv:2209.13325, section 4.1.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from chop.ir.batches import Runs
from chop.ir.rows import Measured, finite_rows
from chop.quantization.folding.engine import SiteScale, move_scales, sites_of_parts
from chop.quantization.folding.folding import Site, representable
from chop.quantization.walk.walk import Walk

WHERE = "smoothquant_transform_pass"
STRENGTH = 0.5
"""Migration strength by default."""


@torch.no_grad()
def smooth(
    walk: Walk, strength: float = STRENGTH, rescale: bool = False
) -> tuple[dict[str, list[str]], dict[str, str]]:
    """Divides the inputs of Linear layers by a scale per channel and multiplies their weights.

    Args:
        walk: none of whose parts is rounded; its graph is changed.
        strength: migration strength, from 0 to 1, see `smoothing_scale`.
        rescale: whether other readers of a smoothed value get it multiplied by the scale.
    Returns: the paths of the readers for each source's path, and for every other Linear's node the
        reason.

    Raises:
        NoBlocksError: a scale would move from one part to another.
        ConfigError: a batch brings NaN or infinite values to a layer.
    """

    def choose(site: Site, runs: Runs) -> SiteScale | None:
        measured = Measured(f"{WHERE}.batches", site.paths()[0])
        largest = []
        for number, (values, batch) in enumerate(zip(runs, walk.batches, strict=True)):
            rows = finite_rows(site.value, values[site.value], batch, number, measured)
            if len(rows):
                largest.append(rows.abs().amax(0))
        if not largest:
            return None
        amax = torch.stack(largest).amax(0)
        scale = smoothing_scale(amax, site.weights(walk.mg), strength)
        return SiteScale(site, representable(walk.mg, site, scale, amax), amax, {})

    sites, skipped = sites_of_parts(walk.mg, walk.parts, rescale)
    found, undone = move_scales(walk, sites, choose, WHERE)
    return {path: scaled["readers"] for path, scaled in found.items()}, skipped | undone


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
