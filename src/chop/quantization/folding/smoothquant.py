"""SmoothQuant: moves the range of outlier input channels into weights, keeping the function.

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
"""Default migration strength."""


@torch.no_grad()
def smooth(
    walk: Walk, strength: float = STRENGTH, rescale: bool = False
) -> tuple[dict[str, list[str]], dict[str, str]]:
    """Divides the inputs of Linear layers by a scale per channel and multiplies their weights.

    Args:
        walk: walk without rounded parts; its graph is changed.
        strength: migration strength, from 0 to 1, see `smoothing_scale`.
        rescale: allows other readers of a smoothed value, which then multiply it by the scale.
    Returns: reader paths by source path, and the reason for each other Linear node.

    Raises:
        NoBlocksError: if a scale would move between parts.
        ConfigError: if a batch causes NaN or infinite inputs of a layer.
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
    scales, undone = move_scales(walk, sites, choose, WHERE)
    return {path: scaled["readers"] for path, scaled in scales.items()}, skipped | undone


def smoothing_scale(amax: Tensor, weights: Sequence[Tensor], strength: float) -> Tensor:
    """Returns s_j = amax_j^strength / max|w_j|^(1 - strength); 1 if a factor is 0 or not finite.

    Args:
        amax: (inputs,), largest magnitude of each input channel.
        weights: weights (outputs, inputs) of all layers that read the inputs.
        strength: from 0 to 1.
    Returns: (inputs,), float64.
    """
    largest = torch.stack([weight.abs().amax(0) for weight in weights]).amax(0).double()
    scale = amax.double() ** strength / largest ** (1 - strength)
    usable = scale.isfinite() & (amax > 0) & (largest > 0)
    return torch.where(usable, scale, 1)
