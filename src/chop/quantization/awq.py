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
from chop.ir.rows import Measured, counted_rows, finite_rows
from chop.quantization.fold_check import FoldCheck, warn_of_undone
from chop.quantization.folding import Site, find_sites, fold, representable
from chop.quantization.row_weights import RowWeights, moderated, row_weights, second_moments

WHERE = "awq_transform_pass"

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
    largest: Tensor
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

    Raises:
        ConfigError: a batch brings NaN or infinite values to a layer.
    """
    sites, skipped = find_sites(mg, rescale=False)
    rows: Sequence[Mapping[str, Any]] = list(batches)
    readers = [reader for site in sites for reader in site.readers]
    is_weighed = weighs_rows and bool(readers)
    weights = moderated(row_weights(mg, readers, rows, f"{WHERE}.batches")) if is_weighed else {}
    last = {site.readers[-1]: site for site in sites}
    check, chosen, undone = FoldCheck(mg, sites), dict[fx.Node, _Choice](), dict[fx.Node, str]()

    def visit(node: fx.Node, runs: Runs) -> None:
        for number, values in enumerate(runs):
            check.note(node, number, values)
        if node not in last:
            return
        site = last[node]
        samples = _samples(site, runs, rows, weights)
        reason: str | None = "no row reaches it"
        if samples.inputs:
            chosen[site.source] = choice = _choose(mg, site, samples, weight, grid)
            reason = check.why_undone(site, choice.scale, range(len(runs)))
        if reason is not None:
            undone[site.source] = reason

    if sites:
        run_layerwise(mg, rows, visit)
    reasons = {str(s.target): reason for s, reason in undone.items() if s in chosen}
    warn_of_undone(WHERE, reasons)
    found: ScaledReaders = {}
    for site in sites:
        if site.source in undone:
            skipped.update({reader.name: undone[site.source] for reader in site.readers})
            continue
        choice = chosen[site.source]
        settings = {
            name: getattr(choice, name) for name in ("exponent", "factor", "before", "after")
        }
        if (choice.exponent, choice.factor) != (0.0, 1.0):
            fold(mg, site, representable(mg, site, choice.scale, choice.largest))
        found[str(site.source.target)] = {"readers": site.paths(), **settings}
    return found, skipped


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
        x, measured = values[site.value], Measured(f"{WHERE}.batches", site.paths()[0])
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


def _choose(
    mg: MaseGraph, site: Site, samples: _Samples, number_format: NumberFormat, grid: int
) -> _Choice:
    """What gives the least error of all readers, relative to their outputs."""
    moments = [samples.moments(reader) for reader in site.readers]
    layers = [(w.double(), h) for w, h in zip(site.weights(mg), moments, strict=True)]
    energy = sum(_energy(w, h) for w, h in layers) or 1.0
    magnitudes = torch.cat(samples.inputs).abs()
    magnitude, largest = magnitudes.double().mean(0), magnitudes.amax(0)
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
    return _Choice(
        exponent, factor, representable(mg, site, scale, largest), largest, before, after
    )


def _factors(number_format: NumberFormat) -> tuple[float, ...]:
    """Those that differ to a fitted format: scaled by floats, weights of any size round alike."""
    layout = number_format.layout()
    is_relative = (
        layout is not None
        and layout.scaling is not None
        and not isinstance(layout.scaling, SharedExponent | Unscaled)
    )
    return FACTORS[:1] if is_relative else FACTORS


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
