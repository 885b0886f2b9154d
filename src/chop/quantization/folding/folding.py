"""Folding: a scale per channel moves from a value into the weights around it, at no run-time cost.

Linear layers with weights W that read x can read x / s with weights W s instead. If the source of x
can be divided by s (a norm, a Linear, the gain of a decomposed norm), the model's function does not
change.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx

from chop.captured.nodes.modes import is_of_training
from chop.ir.annotate import common_metadata
from chop.ir.graph import MaseGraph, node_metadata
from chop.ir.metadata import MaseMetadata
from chop.ir.ops import Operator
from chop.ir.ownership import Ownership
from chop.nn.quantized import QuantizedOperator
from chop.nn.quantized.computed import why_computed
from chop.nn.quantized.masks import stored_weights
from chop.private.modules import has_forward_hooks
from chop.quantization.rounding.experts import has_experts

UNREACHED = "no row reaches it"
"""Reason for a site without a scale."""


@dataclass
class Site:
    """Linear layers that read one value, and the source whose parameters can be divided.

    Attributes:
        source: norm or linear layer whose parameters are divided, or the `get_attr` of a gain.
        value: input of the linear layers: the result of the source, of a ReLU or dropout after it,
            or its product with another value.
        readers: nodes of the linear layers.
        others: other readers of the value.
    """

    source: fx.Node
    value: fx.Node
    readers: list[fx.Node]
    others: list[fx.Node]

    def paths(self) -> list[str]:
        """Paths of the readers."""
        return [str(reader.target) for reader in self.readers]

    def region(self) -> list[fx.Node]:
        """Nodes from the source to the readers, in order; all before the value have one user."""
        chain = [self.source]
        while chain[-1] is not self.value:
            chain += chain[-1].users
        return [*chain, *self.readers]

    def weights(self, mg: MaseGraph) -> list[Tensor]:
        """Returns the readers' weights, each (outputs, inputs), masked."""
        readers: list[Any] = [mg.get_module(reader) for reader in self.readers]
        return [
            reader.effective("weight") if isinstance(reader, QuantizedOperator) else reader.weight
            for reader in readers
        ]


def find_sites(mg: MaseGraph, rescale: bool) -> tuple[list[Site], dict[str, str]]:
    """Finds Linear layers whose inputs can be divided.

    Args:
        mg: the graph.
        rescale: allows other readers of a value, which then multiply it by the scale.
    Returns: the sites, and reasons by node name for all other Linear layers.
    """
    owned = Ownership(mg)
    sites: list[Site] = []
    skipped: dict[str, str] = {}
    for value in mg.nodes:
        linears = [user for user in value.users if _reads(mg, user, value)]
        if not linears:
            continue
        reasons = {node: why_infeasible(mg, node, owned) for node in linears}
        readers = [node for node, reason in reasons.items() if reason is None]
        source, reason = _source(mg, value, owned)
        others = [user for user in value.users if user not in readers]
        if source is not None and others and not rescale:
            source, reason = None, f"'{others[0].name}' also reads its input and cannot be rescaled"
        if source is not None and readers:
            sites.append(Site(source, value, readers, others))
        reasons = {node: own or reason for node, own in reasons.items()}
        skipped.update({node.name: text for node, text in reasons.items() if text})
    for node in mg.nodes:
        if has_experts(mg, node):
            skipped[node.name] = "it has several experts, which need separate scales"
    return sites, skipped


def _reads(mg: MaseGraph, node: fx.Node, value: fx.Node) -> bool:
    """Returns true for a Linear whose input is `value`."""
    given = node.args[0] if node.args else node.kwargs.get("input")
    return mg.operator(node).name == "linear" and given is value


def why_infeasible(mg: MaseGraph, node: fx.Node, owned: Ownership) -> str | None:
    """Returns the reason that a module's parameters cannot be scaled, or ""."""
    if is_of_training(node):
        return "it is called in train() only"
    reason = owned.why_shared(node)
    if reason is not None:
        return f"it {reason}"
    module = mg.get_module(node)
    if isinstance(module, QuantizedOperator) and not module.spec.is_float:
        return "it is quantized already"
    computed = why_computed(module)
    return why_hooked(module) if computed is None else f"its weight is computed by {computed}"


def why_hooked(module: Any) -> str | None:
    """Returns the reason that hooks may change or observe a module's result, or ""."""
    hooks = module is not None and has_forward_hooks(module)
    return "it has forward hooks" if hooks else None


def _source(mg: MaseGraph, value: fx.Node, owned: Ownership) -> tuple[fx.Node | None, str | None]:
    """Returns the node whose parameters scale `value`, or the reason that there is none."""
    row = mg.operator(value)
    if row.is_bilinear:
        return _source_of_product(mg, value, owned)
    if not row.is_homogeneous:
        return _parameters(mg, value, owned)
    reason = why_hooked(mg.get_module(value))
    if reason is not None:
        return None, f"'{value.name}' comes before it: {reason}"
    (inner, *_) = value.all_input_nodes
    return _source_alone(mg, inner, owned)


def _source_alone(
    mg: MaseGraph, value: fx.Node, owned: Ownership
) -> tuple[fx.Node | None, str | None]:
    """Returns the source of a value with one user, or the reason that there is none."""
    if len(value.users) > 1:
        return None, f"'{value.name}', whose result reaches it, has other readers"
    return _source(mg, value, owned)


def _source_of_product(
    mg: MaseGraph, value: fx.Node, owned: Ownership
) -> tuple[fx.Node | None, str | None]:
    """Returns the source of a factor of a product: the gain of a norm, or another source."""
    reason = None
    for factor in reversed(value.all_input_nodes):
        if len(value.all_input_nodes) < 2:
            break
        if factor.op == "get_attr":
            source, reason = _gain(mg, factor, value, owned)
        else:
            source, reason = _source_alone(mg, factor, owned)
            if source is not None and not _has_shape_of(factor, value):
                source, reason = None, f"'{factor.name}' before it has no value per channel"
        if source is not None:
            return source, None
    return None, reason or f"'{value.name}' before it is not a product of two values"


def _has_shape_of(factor: fx.Node, value: fx.Node) -> bool:
    shapes = [node_metadata(n).common.results["data_out_0"].shape for n in (factor, value)]
    return bool(shapes[0] == shapes[1])


def _gain(
    mg: MaseGraph, factor: fx.Node, value: fx.Node, owned: Ownership
) -> tuple[fx.Node | None, str | None]:
    """Returns a `get_attr` node of a per-channel parameter that has no other user."""
    gain = mg.model.get_parameter(str(factor.target)) if is_parameter(mg, factor) else None
    shape = node_metadata(value).common.results["data_out_0"].shape
    if gain is None or gain.dim() != 1 or len(gain) != shape[-1] or len(gain) < 2:
        return None, f"'{factor.name}' before it has no weight per channel"
    if owned.is_parameter_shared(factor):
        return None, f"'{factor.name}' comes before it: it is used in several places"
    return factor, None


def is_parameter(mg: MaseGraph, node: fx.Node) -> bool:
    """Returns true if a `get_attr` node reads a parameter rather than a buffer."""
    return str(node.target) in dict(mg.model.named_parameters(remove_duplicate=False))


def _parameters(
    mg: MaseGraph, source: fx.Node, owned: Ownership
) -> tuple[fx.Node | None, str | None]:
    """Returns a norm or Linear whose parameters have an element per channel of its result."""
    row, module = mg.operator(source), mg.get_module(source)
    if row.features is None:
        return None, f"its input comes from '{source.name}', which is not a norm or Linear"
    reason = why_infeasible(mg, source, owned)
    if reason is not None:
        return None, f"'{source.name}' comes before it: {reason}"
    weight = getattr(module, "weight", None)
    shape = node_metadata(source).common.results["data_out_0"].shape
    if weight is None or shape[-1] != weight.shape[_channel_axis(row)]:
        return None, f"'{source.name}' before it has no weight per channel"
    if row.features % len(shape) != len(shape) - 1:
        return None, f"the channels of '{source.name}' are not the last axis"
    return source, None


def _channel_axis(row: Operator) -> int:
    """Returns the axis of a source's weight that corresponds to the last axis of its result.

    For a norm over several axes, this is the last axis of its weight.
    """
    return -1 if row.weight is None else row.weight.outputs


@dataclass(frozen=True, eq=False)
class Change:
    """Change of a tensor by a fold.

    Attributes:
        stored: parameter or buffer.
        apply: function that changes values of the tensor in place.
    """

    stored: Tensor
    apply: Callable[[Tensor], Any]


def fold_changes(mg: MaseGraph, site: Site, scale: Tensor) -> list[Change]:
    """Lists the changes of a fold, without other readers of the value."""
    changes = [Change(stored, lambda x: x.mul_(scale)) for stored in _multiplied(mg, site)]
    for stored, axis in _divided(mg, site):
        factor = scale.view(-1, *[1] * (stored.dim() - 1 - axis % stored.dim()))
        changes.append(Change(stored, partial(Tensor.div_, other=factor)))
    return changes


def _multiplied(mg: MaseGraph, site: Site) -> list[Tensor]:
    """Returns the readers' weights, each (outputs, inputs)."""
    readers: list[Any] = [mg.get_module(reader) for reader in site.readers]
    return [stored for reader in readers for stored in stored_weights(reader)]


def _divided(mg: MaseGraph, site: Site) -> list[tuple[Tensor, int]]:
    """Returns the source's parameters with the axes of their channels."""
    if site.source.op == "get_attr":
        return [(mg.model.get_parameter(str(site.source.target)), -1)]
    source: Any = mg.get_module(site.source)
    axis = _channel_axis(mg.operator(site.source))
    divided = [(stored, axis) for stored in stored_weights(source)]
    bias = getattr(source, "bias", None)
    return divided if bias is None else [*divided, (bias, -1)]


@torch.no_grad()
def representable(mg: MaseGraph, site: Site, scale: Tensor, largest: Tensor) -> Tensor:
    """Sets the scale to 1 for channels that would overflow a dtype or fall below its precision.

    Args:
        mg: the graph.
        site: from `find_sites`.
        scale: (channels,), above zero.
        largest: (channels,), largest magnitudes of the value.
    Returns: (channels,), float64.
    """
    scale = scale.double()
    parts = [
        *((stored, 1, scale) for stored in _multiplied(mg, site)),
        *((stored, axis, 1 / scale) for stored, axis in _divided(mg, site)),
    ]
    return representable_in(scale, largest, parts)


def representable_in(
    scale: Tensor, largest: Tensor, parts: Iterable[tuple[Tensor, int, Tensor]]
) -> Tensor:
    """Sets the scale to 1 for channels that would overflow a dtype or fall below its precision.

    Args:
        scale: (channels,), above zero.
        largest: (channels,), largest magnitudes of the divided value.
        parts: multiplied tensors, each with its channel axis and factor, (channels,).
    Returns: (channels,), float64.
    """
    scale = scale.double()
    usable = scale.isfinite() & (scale > 0)
    for stored, axis, factor in parts:
        info = torch.finfo(stored.dtype)
        usable &= largest.double() / scale < info.max / 2
        rows = stored.movedim(axis, 0).reshape(len(scale), -1)
        moved = (rows.double() * factor.double()[:, None]).to(stored.dtype).double()
        moved /= factor.double()[:, None]
        error, size = (moved - rows.double()).abs().amax(1), rows.double().abs().amax(1)
        usable &= error <= 2 * info.eps * size
    return torch.where(usable, scale, 1)


def rescale_others(mg: MaseGraph, site: Site, scale: Tensor) -> None:
    """Multiplies the scaled value for its other readers, which then read the original one."""
    path = str(site.source.target)
    path = path.rpartition(".")[0] if site.source.op == "get_attr" else path
    dtype = _multiplied(mg, site)[0].dtype
    scale = scale.to(dtype)
    mg.model.get_submodule(path).register_buffer("smoothing_scale", scale)
    graph, meta = mg.fx_graph, {k: v for k, v in site.value.meta.items() if k != "mase"}
    with graph.inserting_after(site.value):
        factor = graph.get_attr(f"{path}.smoothing_scale".removeprefix("."))
    with graph.inserting_after(factor):
        product = graph.call_function(operator.mul, (site.value, factor))
    shape = node_metadata(site.value).common.results["data_out_0"].shape
    values = {site.value: scale.new_empty(shape, device="meta"), factor: scale}
    values[product] = values[site.value]
    for node in (factor, product):
        node.meta.update(meta)
        node.meta["mase"] = MaseMetadata(node, common=common_metadata(mg, node, values))
    for other in site.others:
        other.replace_input_with(site.value, product)
