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


# Where in (args, kwargs) a constant is, its value in eval() and its value in train().
_Difference = tuple[tuple[Any, ...], Any, Any]


class _UnlikeError(Exception):
    """Two calls differ in more than constants."""


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
    extras: dict[str, nn.Module] = {}
    for node, twin, differences in _align(graph, training):
        if node.op == "call_function" and node.target in _DROPOUTS:
            _dropout_module(graph, node, twin, differences, extras)
        else:
            _switch_constants(graph, node, differences, extras)
    return extras


def _align(graph: fx.Graph, training: fx.Graph) -> list[tuple[fx.Node, fx.Node, list[_Difference]]]:
    ours, theirs = list(graph.nodes), list(training.nodes)
    twins: dict[fx.Node, fx.Node] = {}
    pairs: list[tuple[fx.Node, fx.Node, list[_Difference]]] = []
    for node, twin in zip(ours, theirs, strict=False):
        differences = _differences(node, twin, twins)
        if differences is None:
            break
        twins[node] = twin
        pairs.append((node, twin, differences))
    if len(twins) == len(ours) == len(theirs):
        return pairs
    stop = ours[min(len(twins), len(ours) - 1)]
    # Modules with the same calls may still differ in which results these read.
    paths = _differing_modules(graph, training) or {owner_of(stop)}
    raise ModesDifferError(paths, stop.meta.get("source", "the end of the model"))


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
    graph: fx.Graph,
    node: fx.Node,
    twin: fx.Node,
    differences: list[_Difference],
    extras: dict[str, nn.Module],
) -> None:
    signature = inspect.signature(node.target)  # type: ignore[arg-type]
    in_eval = signature.bind(*node.args, **node.kwargs)
    in_train = signature.bind(*twin.args, **twin.kwargs)
    in_eval.apply_defaults()
    in_train.apply_defaults()
    ours, theirs = in_eval.arguments, in_train.arguments
    if ours["training"] or not theirs["training"]:
        _switch_constants(graph, node, differences, extras)
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
    graph: fx.Graph,
    node: fx.Node,
    differences: list[_Difference],
    extras: dict[str, nn.Module],
) -> None:
    for place, when_eval, when_training in differences:
        path = _free_path(owner_of(node), "by_mode", extras)
        extras[path] = ByMode(when_training, when_eval)
        with graph.inserting_before(node):
            switch = graph.call_module(path)
        switch.meta.update(node.meta)
        args, kwargs = _replaced((node.args, node.kwargs), place, switch)
        node.args, node.kwargs = tuple(args), kwargs


def _differences(
    node: fx.Node, twin: fx.Node, twins: Mapping[fx.Node, fx.Node]
) -> list[_Difference] | None:
    """The constants in which two calls differ; None: they differ in more than constants."""
    if (node.op, node.target) != (twin.op, twin.target):
        return None
    try:
        return list(_walk((node.args, node.kwargs), (twin.args, twin.kwargs), (), twins))
    except _UnlikeError:
        return None


def _walk(
    ours: Any, theirs: Any, place: tuple[Any, ...], twins: Mapping[fx.Node, fx.Node]
) -> Iterator[_Difference]:
    if isinstance(ours, fx.Node) or isinstance(theirs, fx.Node):
        if not isinstance(ours, fx.Node) or twins.get(ours) is not theirs:
            raise _UnlikeError
        return
    inside, inside_theirs = _parts(ours), _parts(theirs)
    if inside is None and inside_theirs is None:
        if not _same_constant(ours, theirs):
            yield place, ours, theirs
        return
    if inside is None or inside_theirs is None or type(ours) is not type(theirs):
        raise _UnlikeError
    # The order of keys is part of a result too.
    if list(inside) != list(inside_theirs):
        raise _UnlikeError
    for key, item in inside.items():
        yield from _walk(item, inside_theirs[key], (*place, key), twins)


def _parts(value: Any) -> dict[Any, Any] | None:
    if isinstance(value, slice):
        return {"start": value.start, "stop": value.stop, "step": value.step}
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, tuple | list):
        return dict(enumerate(value))
    return None


def _same_constant(ours: Any, theirs: Any) -> bool:
    both_nan = ours != ours and theirs != theirs
    return type(ours) is type(theirs) and (both_nan or bool(ours == theirs))


def _replaced(value: Any, place: tuple[Any, ...], new: Any) -> Any:
    if not place:
        return new
    first, *rest = place
    if isinstance(value, Mapping):
        return {k: _replaced(v, tuple(rest), new) if k == first else v for k, v in value.items()}
    if isinstance(value, slice):
        parts = _replaced(_parts(value), place, new)
        return slice(parts["start"], parts["stop"], parts["step"])
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
