"""Fusion of RMSNorms that are written out: square, mean, inverse root and products."""

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
    """An RMSNorm as nodes.

    Attributes:
        end: the product by the weight.
        weight: the `get_attr` node of the weight.
        read: what is normalized.
        eps: added to the mean of the squares.
    """

    end: fx.Node
    weight: fx.Node
    read: fx.Node
    eps: float


def fuse_rms_norms(mg: MaseGraph) -> tuple[list[str], dict[str, str]]:
    """Replaces each RMSNorm that is written out by `nn.RMSNorm`; the graph is changed.

    Returns: the path of each norm that was made, and by name the reason for each other.
    """

    def match(node: fx.Node) -> Match[_WrittenNorm] | None:
        found = _written(mg, node)
        if found is None:
            return None
        path = _owner(found)
        reason = _why_infeasible(mg, found)
        if reason is not None:
            raise NotRewritableError(reason, path)
        return Match(path, found)

    return rewrite(mg, match, lambda found: _fuse(mg, found))


def _owner(found: _WrittenNorm) -> str:
    """Path of the module that has the weight."""
    return str(found.weight.target).rpartition(".")[0]


def _written(mg: MaseGraph, node: fx.Node) -> _WrittenNorm | None:
    """The norm that ends at a product: weight * (x * rsqrt(mean(x^2) + eps))."""
    for weight, normalized in _factors(mg, node):
        if isinstance(weight, fx.Node) and weight.op == "get_attr":
            for read, inverse in _factors(mg, _uncast(mg, normalized)):
                eps = _epsilon(mg, inverse, read)
                if eps is not None:
                    return _WrittenNorm(node, weight, _uncast(mg, read), eps)
    return None


def _factors(mg: MaseGraph, node: Any) -> list[tuple[Any, Any]]:
    """Both orders of the factors of a product of two; nothing of another node."""
    is_product = operation(mg, node) == "mul" and len(node.args) == 2 and not node.kwargs
    return [tuple(node.args), tuple(reversed(node.args))] if is_product else []


def _uncast(mg: MaseGraph, node: Any) -> Any:
    while is_cast(mg, node):
        node = node.args[0]
    return node


def _epsilon(mg: MaseGraph, node: Any, read: Any) -> float | None:
    """Of rsqrt(mean(x^2) + eps) of what is read; None of any other node."""
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
    """Whether a node is the square of what is read, be it cast before."""
    name = operation(mg, node)
    is_power = name == "pow" and argument(node, 1, "exponent") == 2
    if is_power:
        factors = node.args[:1]
    elif name == "square":
        factors = node.args
    else:
        factors = node.args if name == "mul" else ()
    return bool(factors) and all(_uncast(mg, x) is _uncast(mg, read) for x in factors)


def _why_infeasible(mg: MaseGraph, found: _WrittenNorm) -> str | None:
    """Why a norm stays written out; None if it need not."""
    path, _, name = str(found.weight.target).rpartition(".")
    owner: nn.Module = mg.model.get_submodule(path)
    weight = own_parameters(owner).get(name)
    if weight is None:
        return "its weight is no parameter"
    dtypes = {get_result(node).torch_dtype for node in _steps(found.end, found.read)}
    if len(dtypes | {weight.dtype}) > 1:
        return "it computes in another dtype than that of what it reads"
    if weight.dim() != 1 or get_result(found.read).shape[-1:] != tuple(weight.shape):
        return "its weight has not one element for each feature"
    if not path or own_children(owner) or [*_members(owner)] != ["weight"]:
        return "its weight is not alone in a module of its own"
    if _is_made(owner) and owner.eps != found.eps:
        return "its weight is that of a norm with another eps"
    return None


def _is_made(owner: nn.Module) -> TypeGuard[nn.RMSNorm]:
    """Whether a module computes the norm itself; a subclass may compute something else."""
    return type(owner) is nn.RMSNorm


def _steps(node: fx.Node, read: fx.Node) -> set[fx.Node]:
    """A node of a norm with those that it is made of, up to what is read."""
    before = () if node is read else node.all_input_nodes
    return {node}.union(*(_steps(source, read) for source in before))


def _members(module: nn.Module) -> dict[str, Any]:
    """Parameters, buffers and modules of a module itself, by name."""
    return {name: value for members in own_members(module) for name, value in members.items()}


def _fuse(mg: MaseGraph, found: _WrittenNorm) -> None:
    path = _owner(found)
    owner = mg.model.get_submodule(path)
    if not _is_made(owner):
        weight = mg.model.get_parameter(str(found.weight.target))
        norm = nn.RMSNorm(weight.numel(), eps=found.eps, device="meta")
        norm.weight = weight
        parent, _, name = path.rpartition(".")
        own_children(mg.model.get_submodule(parent))[name] = norm.train(owner.training)
    with mg.fx_graph.inserting_before(found.end):
        fused = mg.fx_graph.call_module(path, (found.read,))
    fused.meta.update(found.end.meta)
    found.end.replace_all_uses_with(fused)
    results = {found.read: _like(found.read), fused: _like(found.end)}
    fused.meta["mase"] = MaseMetadata(fused)
    fused.meta["mase"].common.update(common_metadata(mg, fused, results))
    _erase(mg, found.end, found.read)


def _like(node: fx.Node) -> Tensor:
    """A tensor without data, as a node returns it."""
    info = get_result(node)
    return torch.empty(info.shape, dtype=info.torch_dtype, device="meta")


def _erase(mg: MaseGraph, node: fx.Node, kept: fx.Node) -> None:
    """Erases a node that nothing reads, and what only it has read, up to `kept`."""
    if node.users or node is kept or node.op == "placeholder":
        return
    sources = node.all_input_nodes
    erase_calls(mg, [node])
    for source in sources:
        if source in mg.nodes:
            _erase(mg, source, kept)
