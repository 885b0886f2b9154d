"""Batch norm folding into the preceding convolutions and linear layers."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

import torch
from torch import Tensor, fx, nn

from chop.base.notices import AdjustedWarning, warn_each_time
from chop.captured.overrides import has_hooks
from chop.captured.specs import TensorSpec
from chop.formats import (
    Binary,
    BinaryResidual,
    Integer,
    LearnableFormat,
    Quantizer,
    QuantSpec,
    Ternary,
    initial_scales,
)
from chop.ir.annotate import record_formats
from chop.ir.graph import MaseGraph
from chop.ir.graph.rewrite import Match, NotRewritableError, rewrite
from chop.ir.metadata import TensorInfo
from chop.ir.ownership import Ownership
from chop.nn.quantized import QuantizedOperator, QuantLinear
from chop.nn.quantized.computed import why_computed
from chop.nn.quantized.masks import FULL, stored_weights
from chop.nn.quantized.state import SCALE_NAMES
from chop.private.modules import own_parameters
from chop.private.torch_api import BatchNorm, Convolution

FracWidth = Literal["keep", "minmax", "mse", "percentile"]
Layer = Convolution | nn.Linear
LINEAR = (nn.Linear, QuantLinear)
"""Linear layers whose rows are output channels. Subclasses may compute more."""


def fold_batch_norms(mg: MaseGraph, frac_width: FracWidth) -> tuple[list[str], dict[str, str]]:
    """Folds every batch norm that is the only reader of a convolution or linear layer.

    Args:
        mg: graph to change.
        frac_width: `"keep"`, or the rule that derives a new fraction width of integer weights.
    Returns: the paths of folded norms, and the reasons by node for the others.
    """
    owned = Ownership(mg)

    def match(node: fx.Node) -> Match[fx.Node] | None:
        if not mg.operator(node).is_affine:
            return None
        reason = _why_infeasible(mg, node, owned)
        if reason is not None:
            raise NotRewritableError(reason)
        return Match(str(node.target), node)

    return rewrite(mg, match, lambda node: _fuse(mg, node, frac_width))


def _why_infeasible(mg: MaseGraph, node: fx.Node, owned: Ownership) -> str | None:
    """Returns the reason that a norm cannot be folded, or None."""
    norm = mg.get_module(node)
    if not isinstance(norm, BatchNorm):
        return "it is a function call, not a module"
    if norm.running_mean is None or norm.running_var is None:
        return "it has no running statistics"
    if len(node.all_input_nodes) != 1:
        return "it has several inputs"
    before = node.all_input_nodes[0]
    layer = mg.get_module(before)
    if not isinstance(layer, Convolution) and type(layer) not in LINEAR:
        return "its input is not computed by a convolution module or a linear layer"
    kind = "linear layer" if isinstance(layer, nn.Linear) else "convolution"
    if not _is_by_channel(before, layer):
        return f"it normalizes another dimension than the output channels of the {kind}"
    if len(before.users) > 1:
        return f"the {kind} has other readers"
    if isinstance(layer, QuantizedOperator) and isinstance(
        layer.spec.weight, Binary | BinaryResidual | Ternary
    ):
        return f"a factor per channel changes what {layer.spec.weight.label} weights compute"
    for name, module_node in (("norm", node), (kind, before)):
        reason = owned.why_shared(module_node)
        if reason is not None:
            return f"the {name} {reason}"
        module = mg.modules[str(module_node.target)]
        computed = why_computed(module)
        if computed is not None:
            return f"the weight of the {name} is computed by {computed}"
        if has_hooks(module):
            return f"the {name} has hooks"
    if isinstance(norm, QuantizedOperator) and not isinstance(layer, QuantizedOperator):
        return f"the norm is quantized and the {kind} is not"
    return None


def _is_by_channel(node: fx.Node, layer: nn.Module | None) -> bool:
    """Returns whether dimension 1 of a layer's output, which a norm reads, has its channels.

    A linear layer's channels are the last dimension, and those of an unbatched convolution the
    first one.
    """
    spec, dims = node.meta.get("spec"), 2 + len(getattr(layer, "kernel_size", ()))
    # Without a recorded shape, only norms of one spatial dimension or none are ambiguous.
    return len(spec.shape) == dims if isinstance(spec, TensorSpec) else dims > 3


def _fuse(mg: MaseGraph, node: fx.Node, frac_width: FracWidth) -> None:
    before, norm = node.all_input_nodes[0], mg.get_module(node)
    layer = mg.get_module(before)
    assert isinstance(norm, BatchNorm) and isinstance(layer, Layer)
    largest = _largest(layer)
    _fold(layer, norm)
    mg.erase(node)
    mg.model.delete_submodule(str(node.target))
    mg.model.record.always_eval = tuple(
        path for path in mg.model.record.always_eval if path != node.target
    )
    if isinstance(layer, QuantizedOperator):
        spec = _merged(_rescaled(layer, norm, largest), norm, frac_width)
        _warn_about_saturation(str(before.target), layer, spec)
        mg.replace(before, layer.with_spec(spec))
    _update_metadata(mg, before)


def _fold(layer: Layer, norm: BatchNorm) -> None:
    stored, bias = stored_weights(layer), layer.bias
    trains, bias = stored[0].requires_grad, None if bias is None else bias.detach().double()
    # Linear layers have neither attribute.
    settings = norm, getattr(layer, "transposed", False), getattr(layer, "groups", 1)
    new = [folded(weight.detach().double(), bias, *settings) for weight in stored]
    weights = [weight.to(before) for (weight, _), before in zip(new, stored, strict=True)]
    layer.weight = nn.Parameter(weights[0], requires_grad=trains)
    layer.bias = nn.Parameter(new[0][1].to(weights[0]), requires_grad=trains)
    if len(weights) > 1:
        layer.register_buffer(FULL, weights[1])


def folded(
    weight: Tensor, bias: Tensor | None, norm: BatchNorm, transposed: bool, groups: int
) -> tuple[Tensor, Tensor]:
    """Returns weight and bias of the layer that computes `norm(layer(x))`.

    Args:
        weight: (out, in), (out, in / groups, *kernel), or (in, out / groups, *kernel) if
            `transposed`.
        bias: (out,) or None.
        norm: norm with running statistics.
        transposed: true for transposed convolutions.
        groups: groups of the layer.
    Returns: tensors of the same shapes, the bias (out,).
    """
    mean, scale = norm.running_mean.to(weight), _factors(norm).to(weight)  # type: ignore[union-attr]
    new_bias = ((0 if bias is None else bias) - mean) * scale
    if norm.bias is not None:
        new_bias = new_bias + norm.bias.detach().to(weight)
    if not transposed:
        return (weight.flatten(1) * scale[:, None]).view_as(weight), new_bias
    # Output channels of a transposed convolution are the second axis, counted within each group.
    by_group = weight.view(groups, -1, *weight.shape[1:]).flatten(3)
    return (by_group * scale.view(groups, 1, -1, 1)).view_as(weight), new_bias


def _factors(norm: BatchNorm) -> Tensor:
    """Returns the factor of each channel in a norm, float64."""
    assert norm.running_var is not None
    factors = (norm.running_var.double() + norm.eps).rsqrt()
    return factors if norm.weight is None else factors * norm.weight.detach().double()


@torch.no_grad()
def _rescaled(layer: QuantizedOperator, norm: BatchNorm, largest: float) -> QuantSpec:
    """Returns the formats of a layer with a folded weight, with scales folded too.

    Scales within a channel are multiplied by its factor, so codes do not change. A single learned
    scale is initialized again from the new weight, and a static one grows with the largest weight.

    Args:
        layer: with the folded weight.
        norm: the folded norm.
        largest: magnitude of the largest weight before.
    """
    weight: Any = layer.weight
    factors, name = _factors(norm).abs().float(), SCALE_NAMES["weight"]
    is_by_output = not getattr(layer, "transposed", False) and len(factors) > 1
    learned, spec = own_parameters(layer).get(name), layer.spec
    if learned is not None and is_by_output and learned.numel() == len(factors):
        scaled = learned.detach() * factors.to(learned.device)
        setattr(layer, name, nn.Parameter(scaled, learned.requires_grad))
    elif learned is not None and "weight" not in layer.waiting:
        start = initial_scales(spec.number_format("weight"), weight)
        setattr(layer, name, nn.Parameter(start.to(learned.dtype), learned.requires_grad))
    given = spec.weight.scales if isinstance(spec.weight, LearnableFormat) else None
    if given is not None:
        is_exact = is_by_output and len(given) % len(factors) == 0
        growth = factors.cpu() if is_exact else torch.tensor([_largest(layer) / (largest or 1.0)])
        steps = torch.tensor(given) * growth.repeat_interleave(len(given) // len(growth))
        spec = spec.with_quantizers(weight=spec.weight.with_scales(steps))  # type: ignore[attr-defined]
    return spec


def _largest(layer: nn.Module) -> float:
    return float(stored_weights(layer)[0].detach().abs().max())


def _merged(spec: QuantSpec, norm: nn.Module, frac_width: FracWidth) -> QuantSpec:
    """Returns the formats of the fused layer."""
    after = norm.spec if isinstance(norm, QuantizedOperator) else QuantSpec()
    bias = after.bias if spec.bias.is_identity else spec.bias
    spec = spec.with_quantizers(bias=bias, data_out=after.data_out)
    if frac_width == "keep":
        return spec
    return spec.with_quantizers(
        weight=_waiting(spec.weight, frac_width), bias=_waiting(spec.bias, frac_width)
    )


def _warn_about_saturation(path: str, layer: Layer, spec: QuantSpec) -> None:
    """Warns if folding has moved a parameter out of the range of its integers."""
    for name in ("weight", "bias"):
        fmt, value = getattr(spec, name), getattr(layer, name)
        if not isinstance(fmt, Integer) or not fmt.is_fitted or value is None:
            continue
        largest, held = float(value.detach().abs().max()), float(fmt(value.detach()).abs().max())
        if largest > held + 2.0 ** -int(fmt.frac_width):
            warn_each_time(
                f"conv_bn_fusion_transform_pass: the folded {name} of '{path}' reaches "
                f"{largest:.3g} and saturates at {held:.3g} in {fmt.label}; "
                '{"frac_width": "mse"} derives the fraction again.',
                AdjustedWarning,
            )


def _waiting(quantizer: Quantizer, rule: Any) -> Quantizer:
    """Returns an integer format with a pending fraction width; other formats unchanged."""
    if isinstance(quantizer, Integer):
        return dataclasses.replace(quantizer, frac_width=rule)
    return quantizer


def _update_metadata(mg: MaseGraph, node: fx.Node) -> None:
    if "mase" not in node.meta or not node.meta["mase"].common.mase_op:
        return
    layer: Any = mg.get_module(node)
    node.meta["mase"].common.args["bias"] = TensorInfo.of(layer.bias)
    if isinstance(layer, QuantizedOperator):
        record_formats(node, layer)
