"""GPTQ: rounding of weights column by column, by the error of the layer's output.

Source: Frantar et al. 2022, arXiv:2210.17323, section 3.3 and algorithm 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, fx

from chop.errors import ConfigError
from chop.formats import NumberFormat
from chop.ir.batches import Runs, run_layerwise
from chop.ir.graph import MaseGraph
from chop.ir.ops import of_called
from chop.ir.ownership import Ownership
from chop.ir.rows import Measured, check_finite, counted_rows
from chop.nn.quantized import QuantExpertLinear, QuantizedOperator
from chop.private.modules import padding_before, parameters_of
from chop.quantization.experts import (
    Sample,
    counted_rows_of_experts,
    few_rows,
    is_cut_by_experts,
    layer_of_expert,
    rows_in,
    samples_of_experts,
)
from chop.quantization.row_weights import moderated, row_weights, second_moments

WHERE = "gptq_transform_pass.batches"


class RoundingGrid(NamedTuple):
    """A format's rounding of a weight, taken apart: scale (round(w / scale + zero) - zero).

    Attributes:
        round: rounds single values.
        scale: of each weight, float64.
        zero: of each weight, its zero point; zeros where the format has none.
        fixed: the rounded values of the weights that must keep them for scales to stay; NaN for
            the others.
    """

    round: Callable[[Tensor], Tensor]
    scale: Tensor
    zero: Tensor
    fixed: Tensor

    def each(self, change: Callable[[Tensor], Tensor]) -> RoundingGrid:
        """With the three tensors changed alike."""
        return RoundingGrid(self.round, *(change(x) for x in self[1:]))

    def rounded(self, weight: Tensor, column: int) -> Tensor:
        """A column of a weight on the grid; here columns are the first index."""
        scale, zero, fixed = (x[column] for x in self[1:])
        found = (self.round(weight[column] / scale + zero) - zero) * scale
        return torch.where(fixed.isnan(), found, fixed)


@dataclass(frozen=True)
class Solver:
    """Hessian-based rounding of one matrix.

    Attributes:
        damp_percent: the share of the mean of the Hessian's diagonal that is added to it.
        block_size: columns of a block.
        actorder: rounds the columns with the largest inputs first.
    """

    damp_percent: float = 0.01
    block_size: int = 128
    actorder: bool = False

    def solve(self, weight: Tensor, hessian: Tensor, grid: RoundingGrid) -> Tensor:
        """Rounds a matrix column by column; the columns that follow make up for each error.

        With U the upper Cholesky factor of H^-1 and e = (w_j - q_j) / U_jj, the columns k > j
        become w_k - e U_jk. Within a block this is done at once, beyond it when the block is
        finished.

        Args:
            weight: float64 (outputs, D).
            hessian: H, float64 (D, D), before damping.
            grid: (outputs, D), what is rounded to.
        Returns: the rounded matrix, float64.
        """
        order = torch.arange(len(hessian), device=hessian.device)
        if self.actorder:
            order = hessian.diagonal().argsort(descending=True)
        # Columns as rows, which lie together in memory.
        weight = weight[:, order].T.contiguous()
        grid = grid.each(lambda x: x[:, order].T.contiguous())
        factor = _inverse_factor(hessian[order][:, order], self.damp_percent)
        rounded = torch.zeros_like(weight)
        for start in range(0, len(weight), self.block_size):
            stop = min(start + self.block_size, len(weight))
            errors = torch.zeros_like(weight[start:stop])
            for j in range(start, stop):
                rounded[j] = grid.rounded(weight, j)
                errors[j - start] = (weight[j] - rounded[j]) / factor[j, j]
                weight[j + 1 : stop].addr_(factor[j, j + 1 : stop], errors[j - start], alpha=-1)
            weight[stop:] -= factor[start:stop, stop:].T @ errors
        return rounded[order.argsort()].T.contiguous()


def _inverse_factor(hessian: Tensor, damp_percent: float) -> Tensor:
    """The upper Cholesky factor of the inverse of the damped Hessian."""
    mean = hessian.diagonal().mean()
    # Without any input all roundings are as good: the identity rounds each weight by itself.
    damp = damp_percent * mean if mean > 0 else torch.ones_like(mean)
    damped = hessian + damp * torch.eye(len(hessian), dtype=hessian.dtype, device=hessian.device)
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(damped))
    factor: Tensor = torch.linalg.cholesky(inverse, upper=True)
    return factor


LayerErrors = dict[str, dict[str, float]]
"""By path the squared output error `before` and `after` correction, relative to the output.

Experts have the path of their layer with their number, `path[3]`.
"""


def gptq_layers(
    mg: MaseGraph, batches: Iterable[Mapping[str, Any]], solver: Solver, weighs_rows: bool
) -> tuple[LayerErrors, dict[str, str]]:
    """Corrects the quantized weights of a graph, layer after layer.

    Args:
        mg: the graph; its weights change in place.
        batches: from `select_inputs`.
        solver: rounds one matrix.
        weighs_rows: whether rows count by `row_weights`, or all alike.
    Returns: the errors of each corrected layer, and the reason for each other node.

    Raises:
        ConfigError: a weight format takes scales from the weights that the result would change, or
            a batch brings NaN or infinite values.
    """
    skipped = _skipped(mg)
    corrected: LayerErrors = {}
    layers = {
        node: layer
        for node in mg.nodes
        if (layer := _layer(mg, node)) is not None and node.name not in skipped
    }
    rows: Sequence[Mapping[str, Any]] = list(batches)
    is_weighed = weighs_rows and bool(layers)
    weights = moderated(row_weights(mg, layers, rows, WHERE)) if is_weighed else {}

    def visit(node: fx.Node, runs: Runs) -> None:
        if node not in layers:
            return
        source, path = node.all_input_nodes[0], str(node.target)
        samples: list[tuple[Tensor, Tensor | None]] = []
        has_experts = isinstance(layers[node], QuantExpertLinear)
        tell = counted_rows_of_experts if has_experts else counted_rows
        for number, (values, batch) in enumerate(zip(runs, rows, strict=True)):
            counted = tell(source, values[source], batch)
            check_finite(values[source], counted, batch, number, Measured(WHERE, path))
            alike = None if counted is None else counted.float()
            samples.append((values[source], weights[node][number] if is_weighed else alike))
        if has_experts:
            experts = [values[node.all_input_nodes[1]] for values in runs]
            found, few = _correct_experts(layers[node], samples, experts, solver, path)
            corrected.update(found)
            skipped.update({f"{node.name}[{number}]": why for number, why in few.items()})
        else:
            corrected[path] = _correct(layers[node], samples, solver, path)

    run_layerwise(mg, rows, visit)
    return corrected, skipped


def _layer(mg: MaseGraph, node: fx.Node) -> Any:
    """The layer that a node calls, if its weight is quantized and is a matrix for each group."""
    row, module = mg.operator(node), mg.module_of(node)
    if row.weight is None or not row.is_product or row.weight.is_transposed:
        return None
    # `F.unfold` lays out the inputs of two dimensions.
    is_layer = isinstance(module, QuantizedOperator) and module.function is None
    is_quantized = is_layer and not module.spec.weight.is_identity  # type: ignore[union-attr]
    return module if is_quantized and row.spatial in (0, 2) else None


def _skipped(mg: MaseGraph) -> dict[str, str]:
    """Why nodes with quantized weights are left alone."""
    owned = Ownership(mg)
    skipped: dict[str, str] = {}
    for node in mg.nodes:
        module = mg.module_of(node)
        if not isinstance(module, QuantizedOperator) or module.spec.weight.is_identity:
            continue
        reason = owned.why_shared(node)
        if isinstance(module, QuantExpertLinear) and reason is None:
            is_cut = is_cut_by_experts(module.spec.number_format("weight"))
            reason = None if is_cut else "has a weight format with one scale for all experts"
        if _layer(mg, node) is None:
            if "weight" in parameters_of(module):
                skipped[node.name] = "it is neither a Linear nor a Conv2d, nor of experts"
        elif reason is not None:
            skipped[node.name] = f"it {reason}"
    return skipped


def _correct(
    layer: Any, samples: list[tuple[Tensor, Tensor | None]], solver: Solver, path: str
) -> dict[str, float]:
    """Replaces the layer's weight; its relative error before and after.

    Shapes: G groups of a convolution, O outputs of a group, D weights of each.
    """
    weight = layer.effective("weight").detach().double()
    shape = (getattr(layer, "groups", 1), -1, weight[0].numel())
    hessians = sum(_hessians(layer, x, weights) for x, weights in samples)
    assert isinstance(hessians, Tensor)
    grid = rounding_grid(layer.spec.number_format("weight"), weight)
    if layer.is_pruned:
        grid = grid._replace(fixed=grid.fixed.masked_fill(~layer.weight_mask, 0))
    grid = grid.each(lambda x: x.reshape(shape))
    solved = [
        solver.solve(w, h, RoundingGrid(grid.round, *parts))
        for w, h, *parts in zip(weight.view(shape), hessians, *grid[1:], strict=True)
    ]
    corrected = torch.stack(solved).view_as(weight).to(layer.weight)
    candidates = [
        _idempotent(layer, x, path) for x in (layer.quantize("weight", layer.weight), corrected)
    ]
    errors = [
        _relative_error(weight.view(shape), x.double().view(shape), hessians) for x in candidates
    ]
    masked = ~layer.weight_mask if layer.is_pruned else torch.zeros_like(weight, dtype=torch.bool)
    better = candidates[1] if errors[1] < errors[0] else candidates[0]
    layer.weight.copy_(torch.where(masked, layer.weight, better))
    return {"before": errors[0], "after": min(errors)}


def _correct_experts(
    layer: QuantExpertLinear,
    samples: Sequence[Sample],
    experts: Sequence[Tensor],
    solver: Solver,
    path: str,
) -> tuple[LayerErrors, dict[int, str]]:
    """Corrects each expert by the rows that it saw.

    Returns: the errors by path and number of the expert, and why each other one is left alone.
    """
    corrected: LayerErrors = {}
    few: dict[int, str] = {}
    parts = samples_of_experts(samples, experts, layer.num_experts)
    for number, part in enumerate(parts):
        reason = few_rows(rows_in(part), layer.in_features)
        if reason is not None:
            few[number] = reason
            continue
        name = f"{path}[{number}]"
        corrected[name] = _correct(layer_of_expert(layer, number), part, solver, name)
    return corrected, few


def rounding_grid(number_format: NumberFormat, weight: Tensor) -> RoundingGrid:
    """The grid of a weight, of its shape. A format without shared scales has scale 1.

    The weights that scales follow, the largest of a group or the ends of its range, must keep their
    rounded values for scales to stay.

    Args:
        number_format: the weight's.
        weight: float64, any shape.
    """
    ones, zeros = torch.ones_like(weight), torch.zeros_like(weight)
    free = torch.full_like(weight, torch.nan)
    layout = number_format.layout()
    if layout is None or layout.scaling is None or layout.levels is not None:
        return RoundingGrid(number_format.round, ones, zeros, free)
    if layout.element.threshold is not None:
        return RoundingGrid(number_format.round, ones, zeros, free)
    groups = layout.split(weight)
    found = layout.scaling.measure(groups)
    scale, zero, is_anchor = (
        layout.groups.join(x.expand_as(groups), weight.shape)
        for x in (
            found.values.masked_fill(found.values == 0, 1),
            torch.zeros_like(found.values) if found.zero_points is None else found.zero_points,
            layout.scaling.anchors(groups),
        )
    )
    rounded = (layout.element.round(weight / scale + zero) - zero) * scale
    fixed = torch.where(is_anchor, rounded, free)
    return RoundingGrid(layout.element.round, scale, zero, fixed)


def _idempotent(layer: Any, weight: Tensor, path: str) -> Tensor:
    """The weight that rounds to itself and equals `weight` but for the last bits of its dtype.

    Raises:
        ConfigError: rounding `weight` changes it.
    """
    rounded: Tensor = layer.quantize("weight", weight)
    last_bits = 4 * torch.finfo(weight.dtype).eps
    is_near = torch.allclose(rounded, weight, rtol=last_bits, atol=0)
    if is_near and torch.equal(layer.quantize("weight", rounded), rounded):
        return rounded
    if weight.dtype in (torch.bfloat16, torch.float16):
        raise ConfigError(
            f"gptq_transform_pass: '{path}' has weights in {layer.spec.weight.label}, of which "
            f"{str(weight.dtype).removeprefix('torch.')} does not hold all exactly, so that they "
            "would be rounded again; convert the model to float32 (`model.float()`)."
        )
    raise ConfigError(
        f"gptq_transform_pass: '{path}' has weights in {layer.spec.weight.label}, whose scales "
        "follow the weights, so that the corrected ones would be rounded again; use 'integer', or "
        "a format whose scales follow the largest weight, such as 'mxint' or 'scale_integer'."
    )


def _hessians(layer: Any, x: Tensor, weights: Tensor | None) -> Tensor:
    """Hessians of one batch, X diag(weights) X^T, float64 (G, D, D); GPTQ accumulates them."""
    x = layer.quantize("data_in", x).float()
    is_image = of_called(layer).spatial == 2
    columns = _im2col(layer, x) if is_image else x.reshape(1, -1, x.shape[-1])
    return second_moments(columns, weights)


def _im2col(layer: Any, x: Tensor) -> Tensor:
    """The inputs of each output pixel of a convolution, (G, pixels, D)."""
    x = x.reshape(-1, *x.shape[-3:])  # an image without a batch is a batch of one
    mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
    x = F.pad(x, padding_before(layer), mode=mode)
    patches = F.unfold(x, layer.kernel_size, layer.dilation, 0, layer.stride)
    batch, _, pixels = patches.shape
    x_NGDP = patches.view(batch, layer.groups, -1, pixels)
    return x_NGDP.permute(1, 0, 3, 2).flatten(1, 2)


def _relative_error(weight: Tensor, rounded: Tensor, hessians: Tensor) -> float:
    """|(W - Q) X|^2 / |W X|^2 from H = X X^T, summed over groups."""

    def energy(x: Tensor) -> Tensor:
        return ((x @ hessians) * x).sum()

    return (
        energy(weight - rounded) / energy(weight).clamp(min=torch.finfo(torch.float64).tiny)
    ).item()
