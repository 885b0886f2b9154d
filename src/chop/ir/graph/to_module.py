"""Conversion of a graph to a module: its operators in a model of the original class."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import fx, nn

from chop.base.notices import warn_each_time
from chop.captured.followed_calls import follow_calls
from chop.captured.huggingface.generation import build_generation_config
from chop.captured.layers.transformers_of_torch import single_operators
from chop.captured.leaves import tensors_in
from chop.captured.module import CapturedModule
from chop.captured.module_tree import member_at
from chop.captured.original import KEY, Original, arguments_digest, is_scope, node_digests
from chop.captured.record import CaptureWarning
from chop.captured.state.preserve_state import preserve_state
from chop.captured.wrappers import check_is_module
from chop.errors import GraphError
from chop.formats import Quantizer
from chop.ir.huggingface.attention import quantize_attention, why_not_attention
from chop.ir.huggingface.folder import note_formats
from chop.ir.huggingface.tying import pack_uncalled, settle_ties
from chop.ir.metadata import Provenance
from chop.ir.ops import dimensions as d
from chop.ir.ops import get_node_row, module_of_node
from chop.ir.propagate import example_inputs
from chop.nn.packed import PackedOperator
from chop.nn.quantized import QuantCall, QuantizedOperator
from chop.private.modules import own_parameters

HEAD_COUNTS = ("num_attention_heads", "num_key_value_heads", "head_dim")
"""Configuration fields with head counts, which pruning of whole heads changes."""
SIZES = (
    *("in_features", "out_features", "in_channels", "out_channels", "kernel_size"),
    *("num_embeddings", "embedding_dim", "normalized_shape", "num_features"),
)
"""Attributes of layers of torch with the sizes of their weights."""
MLP_WIDTH = "intermediate_size"
"""Configuration field with the MLP width, which pruning of channels changes."""


def to_module(
    captured: CapturedModule, provenance: Sequence[Provenance], like: nn.Module | None = None
) -> nn.Module:
    """Returns a model of the original class with the graph's operators.

    Args:
        captured: the graph; it is not changed.
        provenance: passes applied to it, for messages.
        like: model of the original class and settings, if the graph does not know it. Modules that
            are in eval mode there are in eval mode in the result.
    Returns: a model of the original class that shares the graph's tensors. A weight that the
        model's code passes to a quantized function is a rounded copy. Packed layers pass gradients
        on to adapters around them.

    Raises:
        GraphError: if the original class is unknown, or the class's `forward` cannot make a change
            of the graph. The message names the node.
    """
    original = _original(captured, like)
    if like is not None:
        _check_layers(like, captured, provenance)
    quantized, resized = _quantized_calls(captured, provenance)
    calls = _divided(captured, quantized, original)
    for node, reason in calls.refused.items():
        raise GraphError(
            f"to_module: node '{node.name}' quantizes a function that {reason}; leave it float, "
            "or run mg.model."
        )
    model = original.restore(captured)
    for path, nodes in calls.products.items():
        quantize_attention(model, path, _products(captured, path, nodes))
    for module in model.modules() if calls.rounded else ():
        for name, parameter in own_parameters(module).items():
            own_parameters(module)[name] = calls.rounded.get(id(parameter), parameter)
    for module in model.modules():
        if isinstance(module, PackedOperator):
            module.packed_trainable = ()
    if "transformers.modeling_utils" in sys.modules:
        note_formats(model)
        called = {str(x.target) for x in captured.graph.nodes if x.op == "call_module"}
        pack_uncalled(model, called)
        settle_ties(model)
    for name in (*HEAD_COUNTS, MLP_WIDTH):
        count = getattr(captured.record.config, name, None)
        # Some configurations compute one of them from the others.
        if count is not None and getattr(model.config, name, count) != count:
            setattr(model.config, name, count)
    modes = {} if like is None else {path: x.training for path, x in like.named_modules()}
    for path, module in model.named_modules():
        module.training = module.training and modes.get(path, modes.get("", True))
    _check_on_examples(captured, provenance, model, resized)
    follow_calls(model)
    return model


def list_unconvertible_calls(
    captured: CapturedModule, provenance: Sequence[Provenance]
) -> dict[fx.Node, str]:
    """Returns the quantized calls that `to_module` cannot convert, each with the reason.

    Args:
        captured: the graph; it is not changed.
        provenance: passes applied to it.

    Raises:
        GraphError: if the graph cannot be converted at all, see `to_module`.
    """
    quantized, _ = _quantized_calls(captured, provenance)
    return _divided(captured, quantized, _original(captured, None)).refused if quantized else {}


class _Divided(NamedTuple):
    """Quantized calls, grouped by how they are converted.

    Attributes:
        products: attention products, by the path of the module that calls them.
        rounded: id of a parameter -> parameter rounded once.
        refused: calls that the module's code cannot make -> reason.
    """

    products: dict[str, list[fx.Node]]
    rounded: dict[int, nn.Parameter]
    refused: dict[fx.Node, str]


def _divided(
    captured: CapturedModule, quantized: Mapping[str, list[fx.Node]], original: Original
) -> _Divided:
    calls = _Divided({}, {}, {})
    for path, nodes in quantized.items():
        weights = [_rounded_weights(captured, node) for node in nodes]
        for each in weights:
            calls.rounded.update(each)
        # The other calls must be attention products, which transformers looks up by name.
        products = [node for node, each in zip(nodes, weights, strict=True) if not each]
        cls = original.get_class(path)
        reason = (
            why_not_attention(cls, [*_products(captured, path, products)]) if products else None
        )
        if reason is not None:
            where = f"module '{path}' ({cls.__name__ if cls else 'a part of the graph'})"
            text = f"the forward of {where} calls itself, and {reason}"
            calls.refused.update(dict.fromkeys(products, text))
        elif products:
            calls.products[path] = products
    return calls


def _check_on_examples(
    captured: CapturedModule,
    provenance: Iterable[Provenance],
    model: nn.Module,
    resized: Sequence[str],
) -> None:
    """Compares both on examples if pruning changed sizes or the model's code may check classes."""
    is_of_library = type(model).__module__.startswith("transformers.")  # its code checks no classes
    if is_of_library and not resized:
        return
    is_same = _same_on_examples(captured, model)
    if resized and not is_same:
        raise _not_followed(captured, provenance, resized[0])
    if is_same is False:
        warn_each_time(
            f"to_module: on the example inputs the {type(model).__name__} and its graph differ. "
            "Its forward may check the class of a layer; run mg.model.",
            CaptureWarning,
        )


def _same_on_examples(captured: CapturedModule, model: nn.Module) -> bool | None:
    """Returns whether model and graph agree on the examples; None if the graph does not run."""
    if any(x.is_meta for x in captured.parameters()):
        return None
    expected = _outputs(captured, captured)
    if expected is None:
        return None
    outputs = _outputs(captured, model)  # None if the forward uses the old sizes
    if outputs is None:
        return False
    pairs = list(zip(outputs, expected, strict=False))  # only one of them may return caches
    if any(x.shape != y.shape for x, y in pairs):
        return False
    return all(torch.allclose(x, y, rtol=1e-4, atol=1e-5, equal_nan=True) for x, y in pairs)


@torch.no_grad()
def _outputs(captured: CapturedModule, model: nn.Module) -> list[torch.Tensor] | None:
    """Returns a model's outputs for the graph's example inputs in eval mode; None if it fails."""
    with preserve_state(model):
        torch.manual_seed(0)
        try:
            return [x.clone() for x in tensors_in(model.eval()(**example_inputs(captured)))]
        except Exception:
            return None


def _not_followed(
    captured: CapturedModule, provenance: Iterable[Provenance], change: str
) -> GraphError:
    passes = ", ".join(step.name for step in provenance) or "no pass"
    return GraphError(
        f"to_module: the graph {change}, which the forward of {captured.record.class_name} does "
        f"not follow (it went through: {passes}). Run mg.model, or apply the passes that change "
        "more than modules after to_module."
    )


def _original(captured: CapturedModule, like: nn.Module | None) -> Original:
    original: Original | None = vars(captured).get(KEY)
    if not captured.record.node_digests:
        raise GraphError(
            "to_module: the graph has no record of the captured model, because its file is of an "
            "earlier version; capture the model again."
        )
    name = captured.record.class_name
    if like is not None:
        check_is_module(like, "to_module: like")
        # torch names the class of each fx graph module anew.
        is_graph = isinstance(like, fx.GraphModule) and name == fx.GraphModule.__name__
        if type(like).__name__ != name and not is_graph:
            raise GraphError(f"to_module: like: expected {name}, got {type(like).__name__}.")
        return _get_original(like, captured)
    if original is not None:
        return original
    from chop.ir.huggingface.skeleton import empty_model

    made: Any = empty_model(name, captured.record.config)
    if made is None:
        raise GraphError(
            f"to_module: a checkpoint has no code, and {name} is not a transformers class; pass "
            f"a model of that class, mg.to_module(like={name}(...)). Its weights are not read."
        )
    if captured.record.generation_config is not None:
        made.generation_config = build_generation_config(captured.record)
    return _get_original(made, captured)


def _check_layers(
    like: nn.Module, captured: CapturedModule, provenance: Iterable[Provenance]
) -> None:
    """Raises GraphError if layers with weights are not those of the graph. Pruning changes sizes.

    The names of traced modules are compared later.
    """
    own, layers = dict(like.named_modules()), dict(captured.named_modules())
    is_pruned = any(step.name == "prune_transform_pass" for step in provenance)
    for path, module in own.items():
        layer = layers.get(path)
        if layer is None or is_scope(captured, path):
            continue
        if not own_parameters(module):
            is_plain = all(type(x).__module__.startswith("torch.nn") for x in (layer, module))
            if is_plain and type(layer) is not type(module):
                raise _unlike(path, f"{module} there and {layer} in the graph")
            continue
        sizes = {} if is_pruned else {n: x for n, x in vars(module).items() if n in SIZES}
        has_weights = any(True for _ in (*layer.parameters(), *layer.buffers()))
        if not has_weights or any(vars(layer).get(n, x) != x for n, x in sizes.items()):
            raise _unlike(path, f"{module} there and {layer} in the graph")
    for path, layer in layers.items():
        is_weighted = isinstance(layer, PackedOperator) or own_parameters(layer)
        is_traced = is_scope(captured, path.rpartition(".")[0]) or "." not in path
        if path not in own and is_weighted and is_traced and not isinstance(layer, QuantCall):
            raise _unlike(path, "only in the graph")


def _unlike(path: str, difference: str) -> GraphError:
    return GraphError(
        f"to_module: like: layer '{path}' is {difference}; pass a model of the class and the "
        "settings of the captured one. Its weights are not read."
    )


def _get_original(model: nn.Module, captured: CapturedModule) -> Original:
    """Returns the `Original` of a model, including records for replaced layers of torch."""
    with single_operators(model, lambda _, path: not is_scope(captured, path)) as recorded:
        return Original(recorded, captured)


def _quantized_calls(
    captured: CapturedModule, provenance: Iterable[Provenance]
) -> tuple[Mapping[str, list[fx.Node]], list[str]]:
    """Returns the functions that the graph quantizes, by path of the calling module.

    Also returns the changes of sizes by pruning, which the model's own code may make as well.

    Raises:
        GraphError: if a node is new, removed or calls something else.
    """
    before, now = captured.record.node_digests, node_digests(captured.graph)
    calls: defaultdict[str, list[fx.Node]] = defaultdict(list)
    resized: list[str] = []
    is_pruned = any(step.name == "prune_transform_pass" for step in provenance)
    changed = [f"lost node '{name}'" for name in before if name not in now]
    for node in captured.graph.nodes:
        if node.name not in before:
            changed.append(f"has a new node '{node.name}'")
        elif before[node.name] != now[node.name]:
            module = module_of_node(node, captured)
            same_arguments = before[node.name][8:] == arguments_digest(node)
            is_call = isinstance(module, QuantizedOperator) and module.function is not None
            if not (is_call and same_arguments):
                same_function = before[node.name][:8] == now[node.name][:8]
                is_size = same_function and get_node_row(node, captured).follow in (
                    d.viewed,
                    d.expanded,
                )
                changes = resized if is_pruned and is_size else changed
                changes.append(f"changed the call or the arguments of '{node.name}'")
            elif not module.spec.is_float:  # type: ignore[union-attr]
                calls[str(node.target).rpartition(".")[0]].append(node)
    if changed:
        raise _not_followed(captured, provenance, changed[0])
    return calls, resized


def _rounded_weights(captured: CapturedModule, node: fx.Node) -> dict[int, nn.Parameter]:
    """Returns id -> rounded parameter for a call that only quantizes parameters.

    The result is empty if it quantizes other operands, or if others read the parameter in another
    format.
    """
    module: Any = module_of_node(node, captured)
    if not isinstance(module, QuantCall):
        return {}
    given = {**dict(zip(module.arguments, node.args, strict=False)), **node.kwargs}
    operands = {operand for operand, fmt in module.spec.items() if not fmt.is_identity}
    rounded = {}
    for name, value in given.items():
        operand = module.arguments.get(name)
        if operand in operands and isinstance(value, fx.Node) and value.op == "get_attr":
            parameter = member_at(captured, str(value.target))
            if not isinstance(parameter, nn.Parameter):
                continue
            owners = captured.get_submodule(str(value.target).rpartition(".")[0]), module
            if _all_round(captured, parameter, getattr(module.spec, str(operand)), owners):
                with torch.no_grad():
                    made = module.quantize(operand, parameter)
                rounded[id(parameter)] = nn.Parameter(made, parameter.requires_grad)
                operands.discard(str(operand))
    return {} if operands else rounded


def _all_round(
    captured: CapturedModule, parameter: nn.Parameter, fmt: Quantizer, besides: Sequence[nn.Module]
) -> bool:
    """Returns whether every other module with a parameter rounds it to the same format."""
    if fmt.cache_key is None:
        return False
    called = {node.target for node in captured.graph.nodes if node.op == "call_module"}
    others = [
        getattr(module.spec, name, None) if isinstance(module, QuantizedOperator) else None
        for path, module in captured.named_modules()
        if path in called  # a module that only holds a tied weight does not read it
        for name, x in own_parameters(module).items()
        if x is parameter and module not in besides
    ]
    others += _formats_of_readers(captured, parameter, besides)
    # A layer has its weight from the start; a call gets it at run time.
    return all(x is not None and (x == fmt or _is_alike(x, fmt, parameter)) for x in others)


def _formats_of_readers(
    captured: CapturedModule, parameter: nn.Parameter, besides: Sequence[nn.Module]
) -> Iterator[Quantizer | None]:
    """Returns the formats in which function calls read a parameter; None for a float reader."""
    for node in captured.graph.nodes:
        if node.op != "get_attr" or member_at(captured, str(node.target)) is not parameter:
            continue
        for user in node.users:
            module: Any = module_of_node(user, captured)
            if module in besides:
                continue
            if not isinstance(module, QuantCall):
                yield None
                continue
            given = {**dict(zip(module.arguments, user.args, strict=False)), **user.kwargs}
            names = (module.arguments.get(name) for name, value in given.items() if value is node)
            yield from (getattr(module.spec, str(name), None) for name in names)


def _is_alike(one: Quantizer, other: Quantizer, parameter: nn.Parameter) -> bool:
    """Returns whether two formats are equal after resolving them for a parameter."""
    values = parameter.detach()
    return not values.is_meta and one.fitted(values) == other.fitted(values)


def _products(
    captured: CapturedModule, path: str, quantized: Sequence[fx.Node]
) -> dict[str, list[nn.Module | None]]:
    """Returns the calls of a module's forward to the operators that some of its nodes quantize.

    Returns: operator -> quantized call, or None, for each call in order.
    """
    names = {get_node_row(node, captured).name for node in quantized}
    calls: dict[str, list[nn.Module | None]] = {name: [] for name in sorted(names)}
    for node in captured.graph.nodes:
        name = get_node_row(node, captured).name
        if name in names and _owner(node) == path:
            module: Any = module_of_node(node, captured)
            calls[name].append(module if isinstance(module, QuantizedOperator) else None)
    return calls


def _owner(node: fx.Node) -> str:
    return str([*node.meta.get("nn_module_stack", ("",))][-1])
