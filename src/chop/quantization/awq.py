"""AWQ: weights that multiply large inputs are scaled up before rounding, and the inputs down.

Source: Lin et al. 2023, arXiv:2306.00978, section 3.2, eq. 4 and 5.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from chop.formats import NumberFormat
from chop.formats.scaling import SharedExponent, Unscaled
from chop.ir.batches import Runs, run_layerwise
from chop.ir.graph import MaseGraph
from chop.quantization.folding import Site, find_sites, fold
from chop.quantization.row_weights import RowWeights, moderated, row_weights, second_moments

ScaledReaders = dict[str, dict[str, Any]]
"""By the path of a source: its `readers`, `exponent`, `factor`, the error `before` and `after`."""

FACTORS = (1.0, 2**0.25, 2**0.5, 2**0.75)
"""What scales are multiplied by, where those of the format are powers of two or there are none.

Not where a Linear is divided by them, whose own weights would round otherwise.
"""


@dataclass(frozen=True)
class _Choice:
    exponent: float
    factor: float
    scale: Tensor
    before: float
    after: float


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
    """
    sites, skipped = find_sites(mg, rescale=False)
    rows: Sequence[Mapping[str, Any]] = list(batches)
    readers = [reader for site in sites for reader in site.readers]
    weights = moderated(row_weights(mg, readers, rows)) if weighs_rows and readers else {}
    first = {site.readers[0]: site for site in sites}
    chosen: dict[fx.Node, _Choice] = {}

    def visit(node: fx.Node, runs: Runs) -> None:
        if node in first:
            site = first[node]
            inputs = [values[site.value].flatten(0, -2) for values in runs]
            chosen[site.source] = _choose(mg, site, inputs, weights, weight, grid)

    if sites:
        run_layerwise(mg, rows, visit)
    found: ScaledReaders = {}
    for site in sites:
        choice = chosen[site.source]
        told = {name: getattr(choice, name) for name in ("exponent", "factor", "before", "after")}
        if (choice.exponent, choice.factor) != (0.0, 1.0):
            fold(mg, site, choice.scale)
        found[str(site.source.target)] = {"readers": site.paths(), **told}
    return found, skipped


def _choose(
    mg: MaseGraph,
    site: Site,
    inputs: list[Tensor],
    weights: RowWeights,
    number_format: NumberFormat,
    grid: int,
) -> _Choice:
    """What gives the least error of all readers, relative to their outputs."""
    moments = [
        sum(second_moments(x[None], w)[0] for x, w in _samples(inputs, weights.get(reader)))
        for reader in site.readers
    ]
    layers = [(w.double(), h) for w, h in zip(site.weights(mg), moments, strict=True)]
    energy = sum(_energy(w, h) for w, h in layers) or 1.0
    magnitude = torch.cat(inputs).abs().mean(0).double()
    is_whole = not mg.operator(site.source).is_product
    factors = _factors(number_format.fitted(layers[0][0])) if is_whole else FACTORS[:1]
    errors: dict[tuple[float, float], float] = {}
    for exponent, factor in itertools.product((i / grid for i in range(grid + 1)), factors):
        scale = factor * awq_scale(magnitude, exponent)
        rounded = [number_format.round((w * scale).float()).double() / scale for w, _ in layers]
        pairs = zip(layers, rounded, strict=True)
        errors[exponent, factor] = sum(_energy(q - w, h) for (w, h), q in pairs) / energy
    exponent, factor = min(errors, key=errors.__getitem__)
    scale = factor * awq_scale(magnitude, exponent)
    before, after = errors[0.0, 1.0], errors[exponent, factor]
    return _Choice(exponent, factor, scale.to(inputs[0].dtype), before, after)


def _factors(number_format: NumberFormat) -> tuple[float, ...]:
    """Those that differ to a fitted format: scaled by floats, weights of any size round alike."""
    layout = number_format.layout()
    is_relative = (
        layout is not None
        and layout.scaling is not None
        and not isinstance(layout.scaling, SharedExponent | Unscaled)
    )
    return FACTORS[:1] if is_relative else FACTORS


def _samples(
    inputs: list[Tensor], weights: list[Tensor] | None
) -> Iterable[tuple[Tensor, Tensor | None]]:
    return zip(inputs, itertools.repeat(None) if weights is None else weights, strict=False)


def _energy(x: Tensor, moments: Any) -> float:
    return float(((x @ moments) * x).sum())


def awq_scale(magnitude: Tensor, exponent: float) -> Tensor:
    """s_j = m_j^exponent over the geometric mean of the smallest and the largest of them.

    Args:
        magnitude: (inputs,), mean magnitude of each input channel; 1 counts where it is zero or not
            finite.
        exponent: from 0, no scale, to 1.
    Returns: (inputs,), above zero.
    """
    usable = magnitude.isfinite() & (magnitude > 0)
    scale = torch.where(usable, magnitude, 1) ** exponent
    return scale / (scale.amin() * scale.amax()).sqrt()
