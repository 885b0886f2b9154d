"""Fusion of decomposed RMSNorms: square, mean, inverse root and products."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeGuard

import torch
from torch import Tensor, fx, nn

from chop.fusion.matching import argument, erase_calls, get_result, is_cast, is_number, operation
from chop.ir.annotate import common_metadata
from chop.ir.graph import MaseGraph
from chop.ir.graph.rewrite import Match, NotRewritableError, rewrite
from chop.ir.metadata import MaseMetadata
from chop.private.modules import own_children, own_members, own_parameters


@dataclass(frozen=True, eq=False)
class _WrittenNorm:
    """Decomposed RMSNorm.

    Attributes:
        end: product with the weight.
        weight: `get_attr` node of the weight.
        read: normalized input.
        eps: number added to the mean square.
    """

    end: fx.Node
    weight: fx.Node
    read: fx.Node
    eps: float


def fuse_rms_norms(mg: MaseGraph) -> tuple[list[str], dict[str, str]]:
    """Replaces each decomposed RMSNorm by `nn.RMSNorm`, in place.

    Returns: the paths of new norms, and the reasons by name for the others.
    """

    def match(node: fx.Node) -> Match[_WrittenNorm] | None:
        norm = _written(mg, node)
        if norm is None:
            return None
        path = _owner(norm)
        reason = _why_infeasible(mg, norm)
        if reason is not None:
            raise NotRewritableError(reason, path)
        return Match(path, norm)

    return rewrite(mg, match, lambda norm: _fuse(mg, norm))


def _owner(norm: _WrittenNorm) -> str:
    """Returns the path of the module that has the weight."""
    return str(norm.weight.target).rpartition(".")[0]


def _written(mg: MaseGraph, node: fx.Node) -> _WrittenNorm | None:
    """Returns the norm that ends at a product: weight * (x * rsqrt(mean(x^2) + eps))."""
    for weight, normalized in _factors(mg, node):
        if isinstance(weight, fx.Node) and weight.op == "get_attr":
            for read, inverse in _factors(mg, _uncast(mg, normalized)):
                eps = _epsilon(mg, inverse, read)
                if eps is not None:
                    return _WrittenNorm(node, weight, _uncast(mg, read), eps)
    return None


def _factors(mg: MaseGraph, node: Any) -> list[tuple[Any, Any]]:
    """Yields both orders of the factors of a product of two; nothing for other nodes."""
    is_product = operation(mg, node) == "mul" and len(node.args) == 2 and not node.kwargs
    return [tuple(node.args), tuple(reversed(node.args))] if is_product else []


def _uncast(mg: MaseGraph, node: Any) -> Any:
    while is_cast(mg, node):
        node = node.args[0]
    return node


def _epsilon(mg: MaseGraph, node: Any, read: Any) -> float | None:
    """Returns eps of rsqrt(mean(x^2) + eps) for the given x; None for other nodes."""
    if operation(mg, node) != "rsqrt":
        return None
    total = node.all_input_nodes[0]
    if operation(mg, total) != "add" or len(total.args) != 2 or total.kwargs:
        return None
    mean, eps = total.args if is_number(total.args[1]) else reversed(total.args)
    if not is_number(eps) or operation(mg, mean) != "mean":
        return None
    dim = argument(mean, 1, "dim")
    is_of_rows = dim in (-1, [-1], (-1,)) and argument(mean, 2, "keepdim", False) is True
    squares = argument(mean, 0, "input")
    return float(eps) if is_of_rows and _is_square(mg, squares, read) else None


def _is_square(mg: MaseGraph, node: Any, read: Any) -> bool:
    """Returns true if a node is the square of `read`, possibly after a cast."""
    name = operation(mg, node)
    is_power = name == "pow" and argument(node, 1, "exponent") == 2
    if is_power:
        factors = node.args[:1]
    elif name == "square":
        factors = node.args
    else:
        factors = node.args if name == "mul" else ()
    return bool(factors) and all(_uncast(mg, x) is _uncast(mg, read) for x in factors)


def _why_infeasible(mg: MaseGraph, norm: _WrittenNorm) -> str | None:
    """Returns the reason that a norm cannot be fused, or None."""
    path, _, name = str(norm.weight.target).rpartition(".")
    owner: nn.Module = mg.model.get_submodule(path)
    weight = own_parameters(owner).get(name)
    if weight is None:
        return "its weight is not a parameter"
    dtypes = {get_result(node).torch_dtype for node in _steps(norm.end, norm.read)}
    if len(dtypes | {weight.dtype}) > 1:
        return "it computes in a different dtype than its input"
    if weight.dim() != 1 or get_result(norm.read).shape[-1:] != tuple(weight.shape):
        return "its weight does not have one element per feature"
    if not path or own_children(owner) or [*_members(owner)] != ["weight"]:
        return "its weight shares its module with other members"
    if _is_made(owner) and owner.eps != norm.eps:
        return "its weight belongs to a norm with another eps"
    return None


def _is_made(owner: nn.Module) -> TypeGuard[nn.RMSNorm]:
    """Returns true if a module computes the norm itself. Subclasses may compute something else."""
    return type(owner) is nn.RMSNorm


def _steps(node: fx.Node, read: fx.Node) -> set[fx.Node]:
    """Yields a node of a norm and its inputs up to `read`."""
    before = () if node is read else node.all_input_nodes
    return {node}.union(*(_steps(source, read) for source in before))


def _members(module: nn.Module) -> dict[str, Any]:
    """Returns parameters, buffers and submodules of a module itself, by name."""
    return {name: value for members in own_members(module) for name, value in members.items()}


def _fuse(mg: MaseGraph, written: _WrittenNorm) -> None:
    path = _owner(written)
    owner = mg.model.get_submodule(path)
    if not _is_made(owner):
        weight = mg.model.get_parameter(str(written.weight.target))
        norm = nn.RMSNorm(weight.numel(), eps=written.eps, device="meta")
        norm.weight = weight
        parent, _, name = path.rpartition(".")
        own_children(mg.model.get_submodule(parent))[name] = norm.train(owner.training)
    with mg.fx_graph.inserting_before(written.end):
        fused = mg.fx_graph.call_module(path, (written.read,))
    fused.meta.update(written.end.meta)
    written.end.replace_all_uses_with(fused)
    results = {written.read: _like(written.read), fused: _like(written.end)}
    fused.meta["mase"] = MaseMetadata(fused)
    fused.meta["mase"].common.update(common_metadata(mg, fused, results))
    _erase(mg, written.end, written.read)


def _like(node: fx.Node) -> Tensor:
    """Returns a tensor without data like the result of a node."""
    info = get_result(node)
    return torch.empty(info.shape, dtype=info.torch_dtype, device="meta")


def _erase(mg: MaseGraph, node: fx.Node, end: fx.Node) -> None:
    """Erases a node without readers, and inputs that only it has read, up to `end`."""
    if node.users or node is end or node.op == "placeholder":
        return
    sources = node.all_input_nodes
    erase_calls(mg, [node])
    for source in sources:
        if source in mg.nodes:
            _erase(mg, source, end)
