"""Makes one graph of the recording in `eval()` and the recording in `train()`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch.nn.functional as F
from torch import fx, nn

from chop.ir.capture.runtime import ByMode

_DROPOUTS: Mapping[Callable[..., Any], type[nn.Module]] = {
    F.dropout: nn.Dropout,
    F.dropout1d: nn.Dropout1d,
    F.dropout2d: nn.Dropout2d,
    F.dropout3d: nn.Dropout3d,
    F.alpha_dropout: nn.AlphaDropout,
    F.feature_alpha_dropout: nn.FeatureAlphaDropout,
}


class ModesDifferError(Exception):
    """The two recordings have different nodes; `paths` are the modules that differ."""

    def __init__(self, paths: set[str], where: str) -> None:
        super().__init__("train() and eval() run different operators")
        self.paths = paths
        self.where = where


def owner_of(node: fx.Node) -> str:
    """The path of the innermost module whose Python made a node."""
    return next(reversed(node.meta.get("nn_module_stack") or {"": None}))


def merge_modes(graph: fx.Graph, training: fx.Graph) -> dict[str, nn.Module]:
    """Makes the `eval()` graph follow `train()` and `eval()`.

    A functional dropout that only works in training becomes an `nn.Dropout` module, any other
    constant that depends on the mode (attention's `dropout_p`) a `ByMode` module; both live below
    the module whose Python made the call.

    Args:
        graph: the recording in `eval()`; it is changed.
        training: the recording in `train()`.
    Returns: the new modules by path.

    Raises:
        ModesDifferError: the recordings do not have the same nodes in the same order.
    """
    twins = _align(graph, training)
    extras: dict[str, nn.Module] = {}
    for node, twin in twins.items():
        if node.op == "call_function" and node.target in _DROPOUTS:
            _dropout_module(graph, node, twin, extras)
            continue
        if node.op == "output":
            continue
        _switch_constants(graph, node, twin, extras)
    return extras


def _align(graph: fx.Graph, training: fx.Graph) -> dict[fx.Node, fx.Node]:
    ours, theirs = list(graph.nodes), list(training.nodes)
    twins: dict[fx.Node, fx.Node] = {}
    for node, twin in zip(ours, theirs, strict=False):
        if not _same_call(node, twin, twins):
            break
        twins[node] = twin
    if len(twins) == len(ours) == len(theirs):
        return twins
    stop = ours[min(len(twins), len(ours) - 1)]
    # Modules with the same calls may still differ in which results these read.
    paths = _differing_modules(graph, training) or {owner_of(stop)}
    raise ModesDifferError(paths, stop.meta.get("source", "the end of the model"))


def _same_call(node: fx.Node, twin: fx.Node, twins: Mapping[fx.Node, fx.Node]) -> bool:
    if (node.op, node.target) != (twin.op, twin.target):
        return False
    if len(node.all_input_nodes) != len(twin.all_input_nodes):
        return False
    pairs = zip(node.all_input_nodes, twin.all_input_nodes, strict=True)
    return all(twins.get(ours) is theirs for ours, theirs in pairs)


def _differing_modules(graph: fx.Graph, training: fx.Graph) -> set[str]:
    ours, theirs = _calls_by_owner(graph), _calls_by_owner(training)
    return {path for path in ours.keys() | theirs.keys() if ours.get(path) != theirs.get(path)}


def _calls_by_owner(graph: fx.Graph) -> dict[str, list[Any]]:
    calls: dict[str, list[Any]] = {}
    for node in graph.nodes:
        if "source" in node.meta:
            calls.setdefault(owner_of(node), []).append((node.op, node.target))
    return calls


# --- constants that depend on the mode ---------------------------------------------------------


def _dropout_module(
    graph: fx.Graph, node: fx.Node, twin: fx.Node, extras: dict[str, nn.Module]
) -> None:
    signature = inspect.signature(node.target)  # type: ignore[arg-type]
    in_eval = signature.bind(*node.args, **node.kwargs)
    in_train = signature.bind(*twin.args, **twin.kwargs)
    in_eval.apply_defaults()
    in_train.apply_defaults()
    ours, theirs = in_eval.arguments, in_train.arguments
    if ours["training"] or not theirs["training"]:
        _switch_constants(graph, node, twin, extras)
        return
    module = _DROPOUTS[node.target](theirs["p"], theirs["inplace"])  # type: ignore[index]
    path = _free_path(owner_of(node), "functional_dropout", extras)
    extras[path] = module
    with graph.inserting_before(node):
        call = graph.call_module(path, (ours["input"],))
    call.meta.update(node.meta)
    node.replace_all_uses_with(call)
    graph.erase_node(node)


def _switch_constants(
    graph: fx.Graph, node: fx.Node, twin: fx.Node, extras: dict[str, nn.Module]
) -> None:
    for place, when_eval, when_training in _differences((node.args, node.kwargs), twin):
        path = _free_path(owner_of(node), "by_mode", extras)
        extras[path] = ByMode(when_training, when_eval)
        with graph.inserting_before(node):
            switch = graph.call_module(path)
        switch.meta.update(node.meta)
        args, kwargs = _replaced((node.args, node.kwargs), place, switch)
        node.args, node.kwargs = tuple(args), kwargs


def _differences(ours: Any, twin: fx.Node) -> list[tuple[tuple[Any, ...], Any, Any]]:
    return list(_walk(ours, (twin.args, twin.kwargs), ()))


def _walk(
    ours: Any, theirs: Any, place: tuple[Any, ...]
) -> Iterator[tuple[tuple[Any, ...], Any, Any]]:
    if isinstance(ours, fx.Node):
        return
    if isinstance(ours, tuple | list) and len(ours) == len(theirs):
        for index, (a, b) in enumerate(zip(ours, theirs, strict=True)):
            yield from _walk(a, b, (*place, index))
    elif isinstance(ours, Mapping) and ours.keys() == theirs.keys():
        for key in ours:
            yield from _walk(ours[key], theirs[key], (*place, key))
    elif not isinstance(ours, slice) and ours != theirs and ours == ours:
        yield place, ours, theirs


def _replaced(value: Any, place: tuple[Any, ...], new: Any) -> Any:
    if not place:
        return new
    first, *rest = place
    if isinstance(value, Mapping):
        return {k: _replaced(v, tuple(rest), new) if k == first else v for k, v in value.items()}
    kind = tuple if isinstance(value, tuple) else list
    return kind(
        _replaced(item, tuple(rest), new) if index == first else item
        for index, item in enumerate(value)
    )


def _free_path(owner: str, name: str, taken: Mapping[str, Any]) -> str:
    prefix = f"{owner}." if owner else ""
    number = 0
    while f"{prefix}{name}_{number}" in taken:
        number += 1
    return f"{prefix}{name}_{number}"
