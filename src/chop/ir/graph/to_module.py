"""Conversion to a module: a graph's operators in a model of the original class."""

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
from chop.errors import GraphError
from chop.formats import Quantizer
from chop.ir.huggingface.attention import quantize_attention, why_not_attention
from chop.ir.huggingface.folder import note_formats
from chop.ir.huggingface.tying import pack_uncalled, settle_ties
from chop.ir.metadata import Provenance
from chop.ir.ops import dimensions as d
from chop.ir.ops import module_of_node, of_node
from chop.ir.propagate import example_inputs
from chop.nn.packed import PackedOperator
from chop.nn.quantized import QuantCall, QuantizedOperator
from chop.private.modules import own_parameters

HEAD_COUNTS = ("num_attention_heads", "num_key_value_heads", "head_dim")
"""What a configuration says of heads, and pruning of whole heads changes."""


def to_module(
    captured: CapturedModule, provenance: Sequence[Provenance], like: nn.Module | None = None
) -> nn.Module:
    """The original model with the operators that the graph has in the places of its own.

    Args:
        captured: the graph; it is not changed.
        provenance: the passes that it went through, for messages.
        like: a model of the original class and settings, where the graph does not know it.
    Returns: a model of the original class. Its tensors are those of the graph; where the graph
        quantizes a weight that the model's code hands to a function itself, a rounded copy. Packed
        layers hand gradients on, to adapters around them.

    Raises:
        GraphError: the original class is not known, or the graph has a change that the class's own
            `forward` would not make; the message names the node.
    """
    original = _original(captured, like)
    quantized, resized = _quantized_calls(captured, provenance)
    found = _divided(captured, quantized, original)
    for node, reason in found.refused.items():
        raise GraphError(
            f"to_module: node '{node.name}' quantizes a function that {reason}; quantize it not, "
            "or run mg.model."
        )
    model = original.restore(captured)
    for path, nodes in found.products.items():
        quantize_attention(model, path, _products(captured, path, nodes))
    for module in model.modules() if found.rounded else ():
        for name, parameter in own_parameters(module).items():
            own_parameters(module)[name] = found.rounded.get(id(parameter), parameter)
    for module in model.modules():
        if isinstance(module, PackedOperator):
            module.packed_trainable = ()
    if "transformers.modeling_utils" in sys.modules:
        note_formats(model)
        called = {str(x.target) for x in captured.graph.nodes if x.op == "call_module"}
        pack_uncalled(model, called)
        settle_ties(model)
    for name in HEAD_COUNTS:
        count = getattr(captured.record.config, name, None)
        # Some configurations compute one of them from the others.
        if count is not None and getattr(model.config, name, count) != count:
            setattr(model.config, name, count)
    _check_on_examples(captured, provenance, model, resized)
    follow_calls(model)
    return model


def calls_of_forwards(
    captured: CapturedModule, provenance: Sequence[Provenance]
) -> dict[fx.Node, str]:
    """The quantized calls that `to_module` cannot give back, each with the reason.

    Args:
        captured: the graph; it is not changed.
        provenance: the passes that it went through.

    Raises:
        GraphError: nothing of the graph can be given back, see `to_module`.
    """
    quantized, _ = _quantized_calls(captured, provenance)
    return _divided(captured, quantized, _original(captured, None)).refused if quantized else {}


class _Divided(NamedTuple):
    """Quantized calls by what becomes of them.

    Attributes:
        products: of attention, by the path of the module that calls them.
        rounded: parameters that are rounded once instead, by the id of each.
        refused: those that the code of a module cannot make, with the reason.
    """

    products: dict[str, list[fx.Node]]
    rounded: dict[int, nn.Parameter]
    refused: dict[fx.Node, str]


def _divided(
    captured: CapturedModule, quantized: Mapping[str, list[fx.Node]], original: Original
) -> _Divided:
    found = _Divided({}, {}, {})
    for path, nodes in quantized.items():
        weights = [_rounded_weights(captured, node) for node in nodes]
        for each in weights:
            found.rounded.update(each)
        kept = [node for node, each in zip(nodes, weights, strict=True) if not each]
        cls = original.get_class(path)
        reason = why_not_attention(cls, [*_products(captured, path, kept)]) if kept else None
        if reason is not None:
            where = f"module '{path}' ({cls.__name__ if cls else 'a part of the graph'})"
            text = f"the forward of {where} calls itself, and {reason}"
            found.refused.update(dict.fromkeys(kept, text))
        elif kept:
            found.products[path] = kept
    return found


def _check_on_examples(
    captured: CapturedModule,
    provenance: Iterable[Provenance],
    model: nn.Module,
    resized: Sequence[str],
) -> None:
    """Runs both where pruning has changed sizes, and where the model's code may ask for classes."""
    is_of_library = type(model).__module__.startswith("transformers.")  # it asks for none
    if is_of_library and not resized:
        return
    is_same = _same_on_examples(captured, model)
    if resized and not is_same:
        raise _not_followed(captured, provenance, resized[0])
    if is_same is False:
        warn_each_time(
            f"to_module: on the example inputs the {type(model).__name__} computes something else "
            "than its graph: its own forward runs again, which may ask for the class of a layer; "
            "run mg.model.",
            CaptureWarning,
        )


def _same_on_examples(captured: CapturedModule, model: nn.Module) -> bool | None:
    """Whether the model computes what the graph does; None where the graph does not run."""
    if any(x.is_meta for x in captured.parameters()):
        return None
    expected = _outputs(captured, captured)
    if expected is None:
        return None
    found = _outputs(captured, model)  # None where the forward has the sizes of before
    if found is None:
        return False
    pairs = list(zip(found, expected, strict=False))  # caches may be among those of one
    if any(x.shape != y.shape for x, y in pairs):
        return False
    return all(torch.allclose(x, y, rtol=1e-4, atol=1e-5, equal_nan=True) for x, y in pairs)


@torch.no_grad()
def _outputs(captured: CapturedModule, model: nn.Module) -> list[torch.Tensor] | None:
    """What a model returns for the graph's example inputs in evaluation; None where it fails."""
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
        f"to_module: the graph {change}, which the forward of {captured.record.class_name} would "
        f"not follow (it went through: {passes}). Run mg.model, or apply the passes that change "
        "more than modules after to_module."
    )


def _original(captured: CapturedModule, like: nn.Module | None) -> Original:
    found: Original | None = vars(captured).get(KEY)
    if not captured.record.node_digests:
        raise GraphError(
            "to_module: the graph does not know what was captured, because its file is of an "
            "earlier version; capture the model again."
        )
    name = captured.record.class_name
    if like is not None:
        if type(like).__name__ != name:
            raise GraphError(f"to_module: expected a {name} as like, got a {type(like).__name__}.")
        return _get_original(like, captured)
    if found is not None:
        return found
    from chop.ir.huggingface.skeleton import empty_model

    made: Any = empty_model(name, captured.record.config)
    if made is None:
        raise GraphError(
            f"to_module: a checkpoint has no code, and {name} is no class of transformers; give a "
            f"model of that class, mg.to_module(like={name}(...)). Its weights are not read."
        )
    if captured.record.generation_config is not None:
        made.generation_config = build_generation_config(captured.record)
    return _get_original(made, captured)


def _get_original(model: nn.Module, captured: CapturedModule) -> Original:
    """What `Original` knows of a model with what was recorded in the places of torch's layers."""
    with single_operators(model, lambda _, path: not is_scope(captured, path)) as recorded:
        return Original(recorded, captured)


def _quantized_calls(
    captured: CapturedModule, provenance: Iterable[Provenance]
) -> tuple[Mapping[str, list[fx.Node]], list[str]]:
    """The functions that the graph quantizes, by the path of the module that calls them.

    Also the changes of sizes that pruning has made, which the model's own code may make too.

    Raises:
        GraphError: a node is new, gone or calls something else.
    """
    before, now = captured.record.node_digests, node_digests(captured.graph)
    calls: defaultdict[str, list[fx.Node]] = defaultdict(list)
    resized: list[str] = []
    is_pruned = any(step.name == "prune_transform_pass" for step in provenance)
    changed = [f"has no node '{name}' any more" for name in before if name not in now]
    for node in captured.graph.nodes:
        if node.name not in before:
            changed.append(f"has a new node '{node.name}'")
        elif before[node.name] != now[node.name]:
            module = module_of_node(node, captured)
            same_arguments = before[node.name][8:] == arguments_digest(node)
            is_call = isinstance(module, QuantizedOperator) and module.function is not None
            if not (is_call and same_arguments):
                same_function = before[node.name][:8] == now[node.name][:8]
                is_size = same_function and of_node(node, captured).follow in (d.viewed, d.expanded)
                changes = resized if is_pruned and is_size else changed
                changes.append(f"calls something else, or with other arguments, at '{node.name}'")
            elif not module.spec.is_float:  # type: ignore[union-attr]
                calls[str(node.target).rpartition(".")[0]].append(node)
    if changed:
        raise _not_followed(captured, provenance, changed[0])
    return calls, resized


def _rounded_weights(captured: CapturedModule, node: fx.Node) -> dict[int, nn.Parameter]:
    """The rounded parameters, by the id of each, of a call that quantizes parameters alone.

    Empty where it quantizes anything else, or a parameter that others read in another format.
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
    """Whether every other module that has a parameter rounds it to a format."""
    if fmt.cache_key is None:
        return False
    called = {node.target for node in captured.graph.nodes if node.op == "call_module"}
    others = [
        getattr(module.spec, name, None) if isinstance(module, QuantizedOperator) else None
        for path, module in captured.named_modules()
        if path in called  # what only holds a tied weight reads none
        for name, x in own_parameters(module).items()
        if x is parameter and module not in besides
    ]
    others += _formats_of_readers(captured, parameter, besides)
    # A layer knows its weight from the start, and a call waits for it.
    return all(x is not None and (x == fmt or _is_alike(x, fmt, parameter)) for x in others)


def _formats_of_readers(
    captured: CapturedModule, parameter: nn.Parameter, besides: Sequence[nn.Module]
) -> Iterator[Quantizer | None]:
    """The formats in which calls of functions read a parameter; None where one reads it whole."""
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
    """Whether two formats are one once they know what they round."""
    values = parameter.detach()
    return not values.is_meta and one.fitted(values) == other.fitted(values)


def _products(
    captured: CapturedModule, path: str, quantized: Sequence[fx.Node]
) -> dict[str, list[nn.Module | None]]:
    """What a module's forward calls of the operators that some of its nodes quantize, in order.

    Returns: by operator, the quantized call or None for each call.
    """
    names = {of_node(node, captured).name for node in quantized}
    found: dict[str, list[nn.Module | None]] = {name: [] for name in sorted(names)}
    for node in captured.graph.nodes:
        name = of_node(node, captured).name
        if name in names and _owner(node) == path:
            module: Any = module_of_node(node, captured)
            found[name].append(module if isinstance(module, QuantizedOperator) else None)
    return found


def _owner(node: fx.Node) -> str:
    return str([*node.meta.get("nn_module_stack", ("",))][-1])
