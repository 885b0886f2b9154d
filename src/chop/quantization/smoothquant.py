"""SmoothQuant: the range of inputs moves into weights, and the function stays.

Source: Xiao et al. 2022, arXiv:2211.10438, section 4, eq. 3 and 4; a factor on the residual branch:
Wei et al. 2022, arXiv:2209.13325, section 4.1.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from chop.ir.annotate import common_metadata
from chop.ir.batches import observe_nodes
from chop.ir.graph import MaseGraph, metadata_of
from chop.ir.metadata import MaseMetadata
from chop.ir.ops import Weight
from chop.ir.ownership import Ownership
from chop.nn.quantized import QuantizedOperator
from chop.nn.quantized.masks import stored_weights


@dataclass
class _Site:
    """Linear layers that read one value, and what can be divided so that the value is.

    Attributes:
        source: the norm or linear layer whose parameters are divided.
        value: what the linear layers read: the result of the source, of a ReLU or dropout after it.
        readers: the linear layers' nodes.
        others: what else reads the value.
        amax: largest magnitude of each channel of the value.
    """

    source: fx.Node
    value: fx.Node
    readers: list[fx.Node]
    others: list[fx.Node]
    amax: Tensor | None = None


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
    sites, skipped = _sites(mg, rescale)
    if sites:
        _measure(mg, sites, batches)
    for site in sites:
        _smooth(mg, site, strength)
    readers = {str(site.source.target): [str(r.target) for r in site.readers] for site in sites}
    return readers, skipped


def _sites(mg: MaseGraph, rescale: bool) -> tuple[list[_Site], dict[str, str]]:
    """Where inputs can be smoothed, and why not for every other Linear."""
    owned = Ownership(mg)
    sites: list[_Site] = []
    skipped: dict[str, str] = {}
    for value in mg.nodes:
        linears = [user for user in value.users if _reads(mg, user, value)]
        if not linears:
            continue
        reasons = {node: _why_infeasible(mg, node, owned) for node in linears}
        readers = [node for node, reason in reasons.items() if reason is None]
        source, reason = _source(mg, value, owned)
        others = [user for user in value.users if user not in readers]
        if source is not None and others and not rescale:
            source, reason = None, f"'{others[0].name}' reads the same and cannot be rescaled"
        if source is not None and readers:
            sites.append(_Site(source, value, readers, others))
        reasons = {node: own or reason for node, own in reasons.items()}
        skipped.update({node.name: text for node, text in reasons.items() if text})
    return sites, skipped


def _reads(mg: MaseGraph, node: fx.Node, value: fx.Node) -> bool:
    """True for a Linear whose input is `value`."""
    given = node.args[0] if node.args else node.kwargs.get("input")
    return mg.operator(node).name == "linear" and given is value


def _why_infeasible(mg: MaseGraph, node: fx.Node, owned: Ownership) -> str | None:
    """Why a module's parameters cannot be scaled."""
    reason = owned.why_shared(node)
    if reason is not None:
        return f"it {reason}"
    module = mg.module_of(node)
    if isinstance(module, QuantizedOperator) and not module.spec.is_float:
        return "it is quantized already"
    return None


def _source(mg: MaseGraph, value: fx.Node, owned: Ownership) -> tuple[fx.Node | None, str | None]:
    """The norm or Linear whose parameters scale `value`, or the reason why there is none."""
    source = value
    while mg.operator(source).is_homogeneous:
        source = source.all_input_nodes[0]
        if len(source.users) > 1:
            return None, f"'{source.name}', whose result reaches it, has other readers"
    row, module = mg.operator(source), mg.module_of(source)
    if row.features is None:
        return None, f"what it reads comes from '{source.name}', no norm or Linear"
    reason = _why_infeasible(mg, source, owned)
    if reason is not None:
        return None, f"'{source.name}' comes before it: {reason}"
    weight = getattr(module, "weight", None)
    shape = metadata_of(source).common.results["data_out_0"].shape
    if weight is None or shape[-1] != weight.shape[(row.weight or Weight()).outputs]:
        return None, f"'{source.name}' before it has no weight for each channel"
    if row.features % len(shape) != len(shape) - 1:
        return None, f"the channels of '{source.name}' are not the last axis"
    return source, None


def _measure(mg: MaseGraph, sites: Sequence[_Site], batches: Iterable[Mapping[str, Any]]) -> None:
    """Finds `amax` of every site."""
    by_value = {site.value: site for site in sites}

    def visit(node: fx.Node, values: Mapping[fx.Node, Any], result: Any) -> None:
        site = by_value.get(node)
        if site is not None:
            amax = result.abs().flatten(0, -2).amax(0)
            site.amax = amax if site.amax is None else torch.maximum(site.amax, amax)

    observe_nodes(mg, batches, visit)


@torch.no_grad()
def _smooth(mg: MaseGraph, site: _Site, strength: float) -> None:
    readers: list[Any] = [mg.module_of(reader) for reader in site.readers]
    weights = [
        reader.effective("weight") if isinstance(reader, QuantizedOperator) else reader.weight
        for reader in readers
    ]
    assert site.amax is not None
    scale = smoothing_scale(site.amax, weights, strength)
    for reader in readers:
        for stored in stored_weights(reader):
            stored *= scale
    source: Any = mg.module_of(site.source)
    axis = (mg.operator(site.source).weight or Weight()).outputs
    for stored in stored_weights(source):
        stored /= scale.view(-1, *[1] * (stored.dim() - 1 - axis))
    if getattr(source, "bias", None) is not None:
        source.bias /= scale
    if site.others:
        _rescale(mg, site, scale)


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


def _rescale(mg: MaseGraph, site: _Site, scale: Tensor) -> None:
    """Gives the other readers of a smoothed value what they read before."""
    source: Any = mg.module_of(site.source)
    source.register_buffer("smoothing_scale", scale)
    graph, kept = mg.fx_graph, {k: v for k, v in site.value.meta.items() if k != "mase"}
    with graph.inserting_after(site.value):
        factor = graph.get_attr(f"{site.source.target}.smoothing_scale")
    with graph.inserting_after(factor):
        product = graph.call_function(operator.mul, (site.value, factor))
    shape = metadata_of(site.value).common.results["data_out_0"].shape
    values = {site.value: scale.new_empty(shape, device="meta"), factor: scale}
    values[product] = values[site.value]
    for node in (factor, product):
        node.meta.update(kept)
        node.meta["mase"] = MaseMetadata(common_metadata(mg, node, values))
    for other in site.others:
        other.replace_input_with(site.value, product)
