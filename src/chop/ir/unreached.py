"""Unreached parameters: matrices that no layer of the operator table holds, and their share.

A format, an adapter or codes go to layers of the table. A matrix in a module that the graph does
not look into, or one that a function multiplies by, has no such layer: fused experts, `nn.LSTM`,
`F.linear(x, self.weight)`. It stays as it is whatever a config says, which is worth a sentence
where it is more than a tenth of what could have been changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor, fx, nn

from chop.captured.module import CapturedModule
from chop.captured.original import sources_of
from chop.captured.specs import TensorSpec
from chop.ir.dotted import deepgetattr
from chop.ir.ops import Kind, of_module, stand_in_for
from chop.nn.quantized import QuantCall, QuantizedOperator
from chop.notices import warn_once, warn_once_of
from chop.private.modules import class_label

if TYPE_CHECKING:
    from chop.ir.graph import MaseGraph

LARGE_SHARE = 0.1
"""Share of the matrices from which on they are spoken of."""
NAMED = 2
"""Classes in a sentence."""
_LOOK_UPS = ("getitem", "index_select", "gather")


class UnreachedWarning(UserWarning):
    """More than a tenth of the weights are in no layer that a pass can change."""


@dataclass(frozen=True)
class Unreached:
    """The unreached matrices of one module, or one of the model itself.

    Attributes:
        path: of the module, or of the parameter.
        kind: its class.
        elements: of the matrices.
    """

    path: str
    kind: str
    elements: int


def unreached_matrices(mg: MaseGraph, formats_count: bool = True) -> list[Unreached]:
    """The matrices of a graph that no layer of the table holds.

    Matrices that are added, looked up or normalized by, as positions are, are none.

    Args:
        mg: the graph.
        formats_count: a function that has a format for the matrix reaches it.
    """
    found: dict[int, tuple[str, Tensor]] = {}
    for node in mg.nodes:
        module = mg.module_of(node)
        if module is not None and not _is_of_table(module):
            for name, x in module.named_parameters(prefix=str(node.target)):
                found.setdefault(id(x), (name, x))
    for name in _read_by_products(mg, formats_count):
        parameter = deepgetattr(mg.model, name)
        found.setdefault(id(parameter), (name, parameter))
    return _by_owner(mg.model, found.values())


def unreached_matrices_of(model: nn.Module, is_left: Callable[[str], bool]) -> list[Unreached]:
    """The same for a model that is no graph: matrices that are in no module of the table.

    A tensor with one row, a position or a class token, is none.

    Args:
        model: any module.
        is_left: says by path which modules were to be left as they are.
    """
    found: dict[int, tuple[str, Tensor]] = {}
    for path, module in model.named_modules():
        if not _is_of_table(module) and not is_left(path):
            for name, x in module.named_parameters(prefix=path, recurse=False):
                if len(x) > 1:
                    found.setdefault(id(x), (name, x))
    return _by_owner(model, found.values())


def unreached_sentence(
    unreached: Iterable[Unreached], reached: int, where: str, outcome: str = "stay float"
) -> str | None:
    """One sentence where the share of the unreached matrices exceeds a tenth; None elsewhere.

    Args:
        unreached: they.
        reached: elements of the matrices that were changed.
        where: the pass, or what else did it.
        outcome: what the unreached ones do.
    """
    groups: dict[str, list[Unreached]] = {}
    for one in unreached:
        groups.setdefault(one.kind, []).append(one)
    counts = {kind: sum(one.elements for one in group) for kind, group in groups.items()}
    total = sum(counts.values())
    if not reached or total <= LARGE_SHARE * (reached + total):
        return None
    largest = sorted(groups, key=lambda kind: -counts[kind])
    names = [_named(kind, groups[kind]) for kind in largest[:NAMED]]
    others = len(largest) - NAMED
    names += [f"{others} more class{'es' * (others > 1)}"] if others > 0 else []
    way_out = (
        "a MaseGraph reaches torch's attention where it is no leaf; write others as nn.Linear"
        if nn.MultiheadAttention.__name__ in groups
        else "write them as nn.Linear layers to reach them, or count them at their float size"
    )
    return (
        f"{where}: {total:,} of {reached + total:,} weights ({total / (reached + total):.0%}) "
        f"{outcome}, because no layer that has formats holds them: {' and '.join(names)}; "
        f"{way_out}."
    )


def warn_of_share(model: nn.Module, text: str, where: str) -> None:
    """Warns once for each model and pass; copies of a graph, as trials make, are one model.

    Args:
        model: any module, or the one of a graph. Graphs of files do not know their model: of them
            the same text is said once.
        text: of `unreached_sentence`.
        where: the pass.
    """
    sources = sources_of(model)
    if isinstance(model, CapturedModule) and model in sources:
        warn_once(text, UnreachedWarning)
    else:
        warn_once_of(sources, text, UnreachedWarning, where)


def _named(kind: str, group: list[Unreached]) -> str:
    more = f" and {len(group) - 1} more" if len(group) > 1 else ""
    return f"{kind} ('{group[0].path}'{more})"


def _is_of_table(module: nn.Module) -> bool:
    if isinstance(module, QuantizedOperator) or stand_in_for(module) is not None:
        return True
    return of_module(type(module)).quantized is not None


def _by_owner(root: nn.Module, found: Iterable[tuple[str, Tensor]]) -> list[Unreached]:
    elements: dict[str, int] = {}
    for name, x in found:
        if x.dim() > 1:
            path = name.rpartition(".")[0] or name
            elements[path] = elements.get(path, 0) + x.numel()
    modules = dict(root.named_modules())
    return [
        Unreached(path, class_label(modules[path]) if path in modules else "Parameter", count)
        for path, count in elements.items()
    ]


# --- matrices that functions take --------------------------------------------------------------


def _read_by_products(mg: MaseGraph, formats_count: bool) -> list[str]:
    """The parameters by which functions multiply, by path."""
    carried: dict[fx.Node, frozenset[str]] = {}
    read: dict[str, None] = {}
    for node in mg.nodes:
        if node.op == "get_attr":
            if isinstance(deepgetattr(mg.model, str(node.target)), nn.Parameter):
                carried[node] = frozenset({str(node.target)})
            continue
        module = mg.module_of(node)
        if node.op in ("placeholder", "output") or not isinstance(module, QuantCall | None):
            continue
        inputs = [x for x in node.all_input_nodes if _is_real(x)]
        row = mg.operator(node)
        if inputs and all(x in carried for x in inputs):
            carried[node] = frozenset().union(*(carried[x] for x in inputs))
        elif row.name in _LOOK_UPS and inputs and inputs[0] in carried:
            carried[node] = carried[inputs[0]]
        elif row.kind is Kind.PRODUCT or (row.kind is Kind.OTHER and not row.layout):
            given = [x for x in inputs if x in carried]
            if formats_count and module is not None:
                given = [x for x in given if not _has_format(module, node, x)]
            read.update(dict.fromkeys(name for x in given for name in sorted(carried[x])))
    return list(read)


def _has_format(module: QuantCall, node: fx.Node, argument: fx.Node) -> bool:
    given: Mapping[str, object] = {
        **dict(zip(module.arguments, node.args, strict=False)),
        **node.kwargs,
    }
    operands = [module.arguments.get(name) for name, value in given.items() if value is argument]
    return any(name and not module.spec.number_format(name).is_identity for name in operands)


def _is_real(node: fx.Node) -> bool:
    spec = node.meta.get("spec")
    specs = spec if isinstance(spec, tuple) else (spec,)
    return any(isinstance(x, TensorSpec) and x.dtype.is_floating_point for x in specs)
