"""GPTQ: column-by-column rounding of weights that minimizes the error of the layer's output.

Source: Frantar et al. 2022, arXiv:2210.17323, section 3.3 and algorithm 1.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx

from chop.captured.nodes.modes import is_of_training
from chop.errors import ConfigError
from chop.formats import Float
from chop.ir.batches import Runs
from chop.ir.graph import MaseGraph
from chop.ir.ops import get_called_row
from chop.ir.ownership import Ownership
from chop.ir.rows import Measured
from chop.nn.packed.encoding import parts_of_rows
from chop.nn.quantized import QuantExpertLinear, QuantizedOperator
from chop.private.modules import own_parameters, padding_before
from chop.quantization.rounding.columns import Solver, rounding_grid
from chop.quantization.rounding.experts import (
    Sample,
    few_rows,
    is_cut_by_experts,
    layer_of_expert,
    rows_in,
    samples_of_experts,
    weighed_samples,
)
from chop.quantization.rounding.row_weights import (
    RowWeights,
    moderated,
    row_weights,
    second_moments,
)
from chop.quantization.walk.values import Values
from chop.quantization.walk.walk import FloatBlock, Rounded, Walk

WHERE = "gptq_transform_pass.batches"
PART = 2**19
"""Number of weights solved at once, which takes about ten float64 numbers per weight."""


LayerErrors = dict[str, dict[str, float]]
"""Relative squared output error `before` and `after` correction, by path.

Experts are listed by the path of their layer with their number, `path[3]`.
"""


class Gptq:
    """`Rounder` that corrects the quantized weights of a part, layer by layer.

    Args:
        walk: walk over the graph.
        solver: solver of one matrix.
        weighs_rows: weighs rows by `row_weights` instead of equally.

    Attributes:
        skipped: reasons by node name for layers that are skipped independently of the rows.
    """

    def __init__(self, walk: Walk, solver: Solver, weighs_rows: bool) -> None:
        self._layers, self.skipped = correctable_layers(walk.mg)
        self._solver, self._weights = solver, RowWeights()
        if weighs_rows and self._layers:
            self._weights = moderated(row_weights(walk, self._layers, WHERE))

    def __call__(self, block: FloatBlock) -> Rounded:
        """Returns the errors of each layer by path, and the values after the part.

        Raises:
            ConfigError: if the corrected weights would change the scales of their format, or a
                batch has NaN or infinite values.
        """
        errors, few, values = correct_block(block, self._layers, self._weights, self._solver)
        return Rounded(dict(errors), few, values)


def correct_block(
    block: FloatBlock, layers: Mapping[fx.Node, Any], row_weights: RowWeights, solver: Solver
) -> tuple[LayerErrors, dict[str, str], Values]:
    """Corrects the layers of a part in order, each on the results of the corrected earlier ones.

    Args:
        block: the part.
        layers: from `correctable_layers`; layers of other parts are ignored.
        row_weights: row weights by layer; equal for other layers.
        solver: solver of one matrix.
    Returns: the errors of each layer by its path; the reasons by name for skipped experts; and the
    values after the part.
    """
    errors: LayerErrors = {}
    skipped: dict[str, str] = {}

    with rounded_weights() as settle:

        def visit(node: fx.Node, runs: Runs) -> None:
            def values(source: fx.Node) -> Iterator[Tensor]:
                return (values_by_node[source] for values_by_node in runs)

            weights = row_weights.get(node)
            layer_errors, few = correct_layer(
                block.mg, node, values, block.batches, weights, solver
            )
            errors.update(layer_errors)
            skipped.update(few)
            if not few:
                settle(layers[node])

        after = block.run(layers, visit)
    return errors, skipped, after


@contextlib.contextmanager
def rounded_weights() -> Iterator[Callable[[Any], None]]:
    """Yields a function that disables the weight quantizer of a layer within the context.

    Corrected weights are already rounded, so rounding them on each batch would waste time and
    memory.
    """
    specs = {}

    def settle(layer: Any) -> None:
        if not layer.is_pruned:
            specs[layer] = layer.spec
            layer.spec = layer.spec.with_quantizers(weight=Float())

    try:
        yield settle
    finally:
        for layer, spec in specs.items():
            layer.spec = spec


def correctable_layers(mg: MaseGraph) -> tuple[dict[fx.Node, Any], dict[str, str]]:
    """Returns correctable layers by node, and the reason for each other node."""
    skipped = _skipped(mg)
    layers = {node: _layer(mg, node) for node in mg.nodes if node.name not in skipped}
    return {node: layer for node, layer in layers.items() if layer is not None}, skipped


def correct_layer(
    mg: MaseGraph,
    node: fx.Node,
    values: Callable[[fx.Node], Iterable[Tensor]],
    batches: Sequence[Mapping[str, Any]],
    weights: Sequence[Tensor] | None,
    solver: Solver,
) -> tuple[LayerErrors, dict[str, str]]:
    """Replaces the weight of a layer by the rounded one with the least output error.

    Args:
        mg: the graph.
        node: node that calls the layer.
        values: returns the values of a node for each batch.
        batches: from `select_inputs`.
        weights: row weights for each batch; None for equal weights.
        solver: solver of one matrix.
    Returns: the errors, per expert if any, and the reasons by name for skipped experts.

    Raises:
        ConfigError: see `Gptq`.
    """
    source, *others = node.all_input_nodes
    layer, path = mg.get_module(node), str(node.target)
    samples = weighed_samples(
        source,
        values(source),
        batches,
        weights,
        Measured(WHERE, path),
        has_experts=isinstance(layer, QuantExpertLinear),
    )
    if not isinstance(layer, QuantExpertLinear):
        return {path: _correct(layer, samples, solver, path)}, {}
    errors, few = _correct_experts(layer, [*samples], [*values(others[0])], solver, path)
    return errors, {f"{node.name}[{number}]": why for number, why in few.items()}


def _layer(mg: MaseGraph, node: fx.Node) -> Any:
    """Returns the layer of a node if its weight is quantized and has a matrix per group."""
    row, module = mg.operator(node), mg.get_module(node)
    if row.weight is None or not row.is_product or row.weight.is_transposed:
        return None
    # `F.unfold` lays out the inputs of two dimensions.
    is_layer = isinstance(module, QuantizedOperator) and module.function is None
    is_quantized = is_layer and not module.spec.weight.is_identity  # type: ignore[union-attr]
    return module if is_quantized and row.spatial in (0, 2) else None


def _skipped(mg: MaseGraph) -> dict[str, str]:
    """Returns the reasons for nodes with quantized weights that are skipped."""
    owned = Ownership(mg)
    skipped: dict[str, str] = {}
    for node in mg.nodes:
        module = mg.get_module(node)
        if not isinstance(module, QuantizedOperator) or module.spec.weight.is_identity:
            continue
        only_trains = "is called in train() only" if is_of_training(node) else None
        reason = only_trains or owned.why_shared(node)
        if isinstance(module, QuantExpertLinear) and reason is None:
            is_cut = is_cut_by_experts(module.spec.number_format("weight"))
            reason = None if is_cut else "has a weight format with one scale for all experts"
        if _layer(mg, node) is None:
            if "weight" in own_parameters(module):
                skipped[node.name] = "it is not a Linear, a Conv2d or an expert layer"
        elif reason is not None:
            skipped[node.name] = f"it {reason}"
    return skipped


def _correct(layer: Any, samples: Iterable[Sample], solver: Solver, path: str) -> dict[str, float]:
    """Replaces the layer's weight. Returns the relative error before and after.

    Shapes: G groups of a convolution, O outputs per group, D weights per output.
    """
    columns = ((get_columns(layer, x), weights) for x, weights in samples)
    hessians = second_moments(columns)
    better = _idempotent(layer, _solved(layer, hessians, solver), path)
    nearest = layer.quantize("weight", layer.weight)
    before, after = _relative_errors(layer, (nearest, better), hessians)
    chosen = better if after < before else _idempotent(layer, nearest, path)
    if layer.is_pruned:
        chosen = torch.where(layer.weight_mask, chosen, layer.weight)
    layer.weight.copy_(chosen)
    return {"before": before, "after": min(before, after)}


def _solved(layer: Any, hessians: Tensor, solver: Solver) -> Tensor:
    """Returns the weight with rounded columns, in the layer's dtype.

    Rows are solved in parts, so only a part is stored in float64.
    """
    weight = layer.effective("weight").detach()
    number_format = layer.spec.number_format("weight")
    is_cut = parts_of_rows(number_format, weight, PART) < len(weight)
    whole = None if is_cut else rounding_grid(number_format, weight.double())
    solved = torch.empty_like(weight)
    for hessian, parts in zip(hessians, _parts_of_groups(weight, len(hessians)), strict=True):
        round_rows = solver.rounder(hessian)
        for part in parts:
            values = weight[part].double()
            grid = (
                rounding_grid(number_format, values)
                if whole is None
                else whole.each(lambda x, part=part: x[part])  # type: ignore[misc]
            )
            if layer.is_pruned:
                fixed = grid.fixed.masked_fill(~layer.weight_mask[part], 0)
                grid = grid._replace(fixed=fixed)
            flat = round_rows(values.flatten(1), grid.each(lambda x: x.flatten(1)))
            solved[part] = flat.view_as(values).to(solved)
    return solved


def _parts_of_groups(weight: Tensor, groups: int) -> Iterator[list[slice]]:
    """Yields the rows of the weight in parts, for each group of a convolution."""
    size, rows = len(weight) // groups, max(PART // max(weight[0].numel(), 1), 1)
    for start in range(0, len(weight), size):
        firsts = range(start, start + size, rows)
        yield [slice(first, min(first + rows, start + size)) for first in firsts]


def _correct_experts(
    layer: QuantExpertLinear,
    samples: Sequence[Sample],
    experts: Sequence[Tensor],
    solver: Solver,
    path: str,
) -> tuple[LayerErrors, dict[int, str]]:
    """Corrects each expert on the rows routed to it.

    Returns: the errors by path and number of the expert, and the reasons for skipped experts.
    """
    corrected: LayerErrors = {}
    few: dict[int, str] = {}
    parts = samples_of_experts(samples, experts, layer.num_experts)
    for number, part in enumerate(parts):
        reason = few_rows(rows_in(part), layer.in_features)
        if reason is not None:
            few[number] = f"{reason}: each weight is rounded to nearest"
            continue
        name = f"{path}[{number}]"
        corrected[name] = _correct(layer_of_expert(layer, number), part, solver, name)
    return corrected, few


def _idempotent(layer: Any, weight: Tensor, path: str) -> Tensor:
    """Returns a weight that rounds to itself and equals `weight` up to the last bits of its dtype.

    Raises:
        ConfigError: if rounding changes `weight`.
    """
    rounded: Tensor = layer.quantize("weight", weight)
    if torch.equal(rounded, weight):
        return rounded
    last_bits = 4 * torch.finfo(weight.dtype).eps
    is_near = torch.allclose(rounded, weight, rtol=last_bits, atol=0)
    if is_near and torch.equal(layer.quantize("weight", rounded), rounded):
        return rounded
    if weight.dtype in (torch.bfloat16, torch.float16):
        raise ConfigError(
            f"gptq_transform_pass: '{path}' has weights in {layer.spec.weight.label}, which "
            f"{str(weight.dtype).removeprefix('torch.')} cannot represent exactly, so they would "
            "be rounded again; convert the model to float32 (`model.float()`)."
        )
    raise ConfigError(
        f"gptq_transform_pass: '{path}' has weights in {layer.spec.weight.label}, whose scales "
        "follow the weights, so the corrected weights would be rounded again; use 'integer', or a "
        "format whose scales follow the largest weight, such as 'mxint' or 'scale_integer'."
    )


def get_columns(layer: Any, x: Tensor) -> Tensor:
    """Returns the columns that a batch multiplies by the weight, float32 (G, rows, D)."""
    x = layer.quantize("data_in", x).float()
    is_image = get_called_row(layer).spatial == 2
    return _im2col(layer, x) if is_image else x.reshape(1, -1, x.shape[-1])


def _im2col(layer: Any, x: Tensor) -> Tensor:
    """Returns the inputs of each output pixel of a convolution, (G, pixels, D)."""
    x = x.reshape(-1, *x.shape[-3:])  # an image without a batch is a batch of one
    mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
    x = F.pad(x, padding_before(layer), mode=mode)
    patches = F.unfold(x, layer.kernel_size, layer.dilation, 0, layer.stride)
    batch, _, pixels = patches.shape
    x_NGDP = patches.view(batch, layer.groups, -1, pixels)
    return x_NGDP.permute(1, 0, 3, 2).flatten(1, 2)


def _relative_errors(
    layer: Any, candidates: Sequence[Tensor], hessians: Tensor
) -> tuple[float, ...]:
    """Returns |(W - Q) X|^2 / |W X|^2 of each candidate Q from H = X X^T, summed over groups."""
    weight = layer.effective("weight").detach()
    energies = [0.0] * (1 + len(candidates))
    for hessian, parts in zip(hessians, _parts_of_groups(weight, len(hessians)), strict=True):
        for part in parts:
            exact = weight[part].flatten(1).double()
            errors = [exact - x[part].flatten(1).double() for x in candidates]
            for place, x in enumerate((exact, *errors)):
                energies[place] += _energy(x.to(hessian), hessian)
    energy = max(energies[0], torch.finfo(torch.float64).tiny)
    return tuple(error / energy for error in energies[1:])


def _energy(x: Tensor, hessian: Tensor) -> float:
    return ((x @ hessian).double() * x).sum().item()
