"""Unreached parameters of a graph, and the warning of passes whose formats do not cover them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import cast

from torch import Tensor, fx, nn

from chop.captured.specs import TensorSpec
from chop.ir.dotted import deepgetattr
from chop.ir.graph import MaseGraph
from chop.ir.ops import Kind
from chop.ir.parameters import stored_parameters
from chop.ir.unreached import Unreached, by_owner, is_of_table, unreached_sentence, warn_about_share
from chop.nn.quantized import QuantCall
from chop.quantization.rounding.experts import has_experts

_LOOK_UPS = ("getitem", "index_select", "gather")


def warn_about_unreached(
    mg: MaseGraph, where: str, means: Callable[[str], bool] = lambda path: True, packs: bool = False
) -> None:
    """Warns once per model if over a tenth of the intended weights have no format.

    Args:
        mg: graph after the pass.
        where: name of the pass.
        means: returns true if the settings apply to a path.
        packs: true if the pass stores weights as codes rather than only assigning formats.
    """
    text = describe_unreached(mg, where, means, packs)
    if text is not None:
        warn_about_share(mg.model, text, where)


def describe_unreached(
    mg: MaseGraph, where: str, means: Callable[[str], bool] = lambda path: True, packs: bool = False
) -> str | None:
    """Returns the message of `warn_about_unreached`, or None."""
    matrices = [x for x in stored_parameters(mg) if x.value.dim() > 1]
    reached = sum(
        x.value.numel()
        for x in matrices
        if (x.packed is not None if packs else not x.format.is_identity)
    )
    unreached = [x for x in unreached_matrices(mg, not packs) if means(x.path)]
    return unreached_sentence(unreached, reached, where)


def unreached_matrices(mg: MaseGraph, formats_count: bool = True) -> list[Unreached]:
    """Returns the matrices of a graph that no layer of the operator table holds.

    Matrices that are only added, looked up or used in norms, such as positions, are excluded.
    """
    matrices: dict[int, tuple[str, Tensor]] = {}
    for node in mg.nodes:
        module = mg.get_module(node)
        if module is not None and not is_of_table(module):
            for name, x in module.named_parameters(prefix=str(node.target)):
                matrices.setdefault(id(x), (name, x))
    for name in _read_by_products(mg, formats_count):
        parameter = deepgetattr(mg.model, name)
        matrices.setdefault(id(parameter), (name, parameter))
    return by_owner(mg.model, matrices.values())


def matrices_of_experts(mg: MaseGraph) -> list[Unreached]:
    """Returns the matrices of expert layers, which get formats and no adapters."""
    matrices = []
    for node in mg.nodes:
        if has_experts(mg, node):
            module = mg.get_module(node)
            assert module is not None
            matrices.append((f"{node.target}.weight", cast(Tensor, module.weight)))
    return by_owner(mg.model, matrices)


def _read_by_products(mg: MaseGraph, formats_count: bool) -> list[str]:
    """Returns the parameters by which functions multiply, by path."""
    carried: dict[fx.Node, frozenset[str]] = {}
    read: dict[str, None] = {}
    for node in mg.nodes:
        if node.op == "get_attr":
            if isinstance(deepgetattr(mg.model, str(node.target)), nn.Parameter):
                carried[node] = frozenset({str(node.target)})
            continue
        module = mg.get_module(node)
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
