"""Graph verification: invariants that passes rely on."""

from __future__ import annotations

from torch import fx

from chop.captured.module_tree import member_at
from chop.captured.overrides import why_not_its_class
from chop.errors import GraphError
from chop.ir.graph import MaseGraph
from chop.ir.metadata import MaseMetadata, TensorInfo, get_operand
from chop.nn.quantized import QuantizedOperator


def verify(mg: MaseGraph) -> None:
    """Raises an error unless the graph is valid.

    A valid graph passes FX's checks, for instance that all modules and attributes of nodes exist.
    It has one output. Metadata, if present, has MASE's types, and agrees with the operators that
    nodes call and with the formats of quantized modules.

    Raises:
        GraphError: if the graph is not valid; the message has the node and the problem.
    """
    try:
        _lint(mg)
    except (RuntimeError, ValueError, AttributeError) as error:
        reason = str(error).removesuffix(" of ")  # FX names the owner, which has no name here
        raise GraphError(f"the graph is not well formed: {reason}") from error
    outputs = [node for node in mg.nodes if node.op == "output"]
    if len(outputs) != 1:
        raise GraphError(f"a graph has one output node, this one has {len(outputs)}.")
    for node in mg.nodes:
        if "mase" in node.meta:
            _verify_metadata(mg, node)


def _lint(mg: MaseGraph) -> None:
    """Runs FX's own checks."""
    graph, model = mg.fx_graph, mg.model
    if not any(model.shadowed_members()):
        graph.lint()
        return
    # FX looks paths up as attributes, and would find its own `graph` for a submodule's.
    graph.owning_module = None
    try:
        graph.lint()
    finally:
        graph.owning_module = model
    for node in graph.nodes:
        if node.op in ("call_module", "get_attr") and member_at(model, str(node.target)) is None:
            raise GraphError(f"node '{node.name}' names '{node.target}', which does not exist.")


def _verify_metadata(mg: MaseGraph, node: fx.Node) -> None:
    metadata = node.meta["mase"]
    if not isinstance(metadata, MaseMetadata):
        raise GraphError(f"node '{node.name}': metadata is a {type(metadata).__name__}.")
    common = metadata.common
    if not common.mase_op:
        return
    operator = mg.operator(node)
    if common.mase_op != operator.name:
        module = mg.get_module(node)
        reason = None if module is None else why_not_its_class(module)
        what = f"calls '{operator.name}'{'' if reason is None else f': {reason}'}"
        raise GraphError(f"node '{node.name}' is recorded as '{common.mase_op}' and {what}.")
    for name, info in common.results.items():
        if not isinstance(info, TensorInfo):
            raise GraphError(f"node '{node.name}': result '{name}' is not a TensorInfo: {info!r}.")
    module = mg.get_module(node)
    if isinstance(module, QuantizedOperator):
        _verify_formats(node, module, common.args)


def _verify_formats(node: fx.Node, module: QuantizedOperator, args: dict[str, object]) -> None:
    for name, info in args.items():
        if not (isinstance(info, TensorInfo) and info.is_floating):
            continue
        operand = get_operand(name, module)
        number_format = module.spec.number_format(operand)
        if info.type != number_format.name:
            raise GraphError(
                f"node '{node.name}': {name} is recorded as '{info.type}' and its {operand} is "
                f"quantized to '{number_format.name}'."
            )
