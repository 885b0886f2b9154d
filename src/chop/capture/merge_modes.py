"""Merge of the recordings in `eval()` and `train()` into one graph."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch.nn.functional as F
from torch import fx, nn

from chop.base.nested import tree_parts
from chop.captured.dtype_constants import (
    FOLLOWS,
    AmbiguousDtypeError,
    DtypeProbe,
    MissingCast,
    get_source,
    insert_casts,
    is_cast,
    replaced,
)
from chop.captured.runtime import ByMode
from chop.captured.state.values import same_content

_DROPOUTS: Mapping[Callable[..., Any], type[nn.Module]] = {
    F.dropout: nn.Dropout,
    F.dropout1d: nn.Dropout1d,
    F.dropout2d: nn.Dropout2d,
    F.dropout3d: nn.Dropout3d,
    F.alpha_dropout: nn.AlphaDropout,
    F.feature_alpha_dropout: nn.FeatureAlphaDropout,
}


# Position of a constant in (args, kwargs), its value in eval() and its value in train().
Difference = tuple[tuple[Any, ...], Any, Any]
# A node, its twin in the other recording, and their differences.
Pair = tuple[fx.Node, fx.Node, list[Difference]]


class StructureDiffersError(Exception):
    """Raised when two calls differ in more than constants."""


class AddedModules:
    """Modules that a graph adds to its model, at free paths.

    Args:
        taken: paths in use.
    """

    def __init__(self, taken: Iterable[str]) -> None:
        self.modules: dict[str, nn.Module] = {}
        self._taken = set(taken)

    def add(self, owner: str, name: str, module: nn.Module) -> str:
        """Adds a module below another one and returns its path."""
        prefix = f"{owner}." if owner else ""
        number = 0
        while (path := f"{prefix}{name}_{number}") in self._taken:
            number += 1
        self._taken.add(path)
        self.modules[path] = module
        return path


class ModesDifferError(Exception):
    """Raised when the two recordings have different nodes; `paths` are the modules that differ."""

    def __init__(self, paths: set[str], where: str) -> None:
        super().__init__("train() and eval() run different operators")
        self.paths = paths
        self.where = where


def get_owner(node: fx.Node) -> str:
    """Returns the path of the innermost module whose Python created a node."""
    stack: dict[str, Any] = node.meta.get("nn_module_stack") or {"": None}
    return next(reversed(stack))


def merge_modes(
    graph: fx.Graph,
    training: fx.Graph,
    probe: DtypeProbe | None = None,
    values: dict[fx.Node, Any] | None = None,
    taken: Iterable[str] = (),
) -> dict[str, nn.Module]:
    """Makes the `eval()` graph follow `train()` and `eval()`.

    A functional dropout that is active only in training becomes an `nn.Dropout` module. Any other
    constant that depends on the mode (attention's `dropout_p`) becomes a `ByMode` module. Both are
    placed below the module whose Python made the call.

    Args:
        graph: the recording in `eval()`; it is changed.
        training: the recording in `train()`.
        probe: dtype of that recording, if it is another one. Constants that differ because of it
            are marked in the metadata of their nodes. Casts that only that recording has are added
            if they change nothing in the dtype of the model.
        values: values of nodes in the recording in `eval()`; those of added nodes are added.
        taken: paths of the model's own members, which the new modules avoid.
    Returns: the new modules by path.

    Raises:
        ModesDifferError: the recordings have different nodes or another order.
        AmbiguousDtypeError: with `probe`, the reason for a difference is ambiguous; the graph is
            unchanged.
    """
    extras = AddedModules(taken)
    aligned, casts = _align(graph, training, probe)
    if probe is not None:
        aligned = _without_dtypes(aligned, probe)
        insert_casts(graph, casts, {twin: node for node, twin, _ in aligned}, probe, values or {})
    switch(graph, aligned, extras)
    return extras.modules


def switch(graph: fx.Graph, aligned: Iterable[Pair], extras: AddedModules) -> None:
    """Makes nodes follow the mode if constants in their arguments depend on it.

    Args:
        graph: the recording in `eval()`; it is changed.
        aligned: its nodes with their twins in `train()`, and their differences.
        extras: receives the modules required for this.
    """
    for node, twin, differences in aligned:
        if node.op == "call_function" and node.target in _DROPOUTS:
            _dropout_module(graph, node, twin, differences, extras)
        else:
            _switch_constants(graph, node, differences, extras)


def _without_dtypes(aligned: list[Pair], probe: DtypeProbe) -> list[Pair]:
    """Returns the differences due to the mode and marks those due to the dtype."""
    pairs: list[Pair] = []
    notes: list[tuple[fx.Node, list[Any]]] = []
    for node, twin, differences in aligned:
        kinds = [(probe.relation_to_dtype(a, b), place, a, b) for place, a, b in differences]
        by_mode = [(place, a, b) for what, place, a, b in kinds if what is None]
        # The probe changed the mode and the dtype at once: a difference of neither known kind may
        # have either cause.
        if not all(_depends_on_mode(node, place, value) for place, value, _ in by_mode):
            raise AmbiguousDtypeError
        pairs.append((node, twin, by_mode))
        notes.append(
            (
                node,
                [(place, what, probe.constant_dtype(a)) for what, place, a, _ in kinds if what],
            )
        )
    for node, entries in notes:
        if entries:
            node.meta[FOLLOWS] = entries
    return pairs


def _depends_on_mode(node: fx.Node, place: tuple[Any, ...], value: Any) -> bool:
    return (
        node.target in _DROPOUTS
        or isinstance(value, bool)
        or place[-1] in ("p", "dropout_p", "dropout")
        or (node.target is F.scaled_dot_product_attention and place == (0, 4))
    )


def _align(
    graph: fx.Graph, training: fx.Graph, probe: DtypeProbe | None
) -> tuple[list[Pair], list[MissingCast]]:
    """Pairs the nodes, and lists the casts that only the recording in another dtype has."""
    ours, theirs = list(graph.nodes), list(training.nodes)
    twins: dict[fx.Node, fx.Node] = {}
    pairs: list[Pair] = []
    casts: dict[fx.Node, MissingCast] = {}
    position = 0
    for twin in theirs:
        node = ours[min(position, len(ours) - 1)]
        differences = _differences(node, twin, twins, casts) if position < len(ours) else None
        if differences is not None:
            twins[node] = twin
            pairs.append((node, twin, [d for d in differences if d[2] not in casts]))
            for place, _, cast in differences:
                if cast in casts:
                    casts[cast].readers.append((node, place))
            position += 1
        # Code such as `if x.dtype != dtype: x = x.to(dtype)` casts in the other recording only.
        elif probe is not None and is_cast(twin):
            casts[twin] = MissingCast(twin, before=node)
        else:
            break
    if len(twins) == len(ours) and len(twins) + len(casts) == len(theirs):
        return pairs, list(casts.values())
    stop = ours[min(len(twins), len(ours) - 1)]
    # Modules with the same calls may still differ in the results that the calls read.
    paths = _differing_modules(graph, training) or {get_owner(stop)}
    raise ModesDifferError(paths, stop.meta.get("source", "the end of the model"))


def _differing_modules(graph: fx.Graph, training: fx.Graph) -> set[str]:
    ours, theirs = _calls_by_owner(graph), _calls_by_owner(training)
    return {path for path in ours.keys() | theirs.keys() if ours.get(path) != theirs.get(path)}


def _calls_by_owner(graph: fx.Graph) -> dict[str, list[Any]]:
    calls: dict[str, list[Any]] = {}
    for node in graph.nodes:
        if "source" in node.meta:
            calls.setdefault(get_owner(node), []).append((node.op, node.target))
    return calls


# --- constants that depend on the mode ---------------------------------------------------------


def _dropout_module(
    graph: fx.Graph,
    node: fx.Node,
    twin: fx.Node,
    differences: list[Difference],
    extras: AddedModules,
) -> None:
    signature = inspect.signature(node.target)  # type: ignore[arg-type]
    in_eval = signature.bind(*node.args, **node.kwargs)
    in_train = signature.bind(*twin.args, **twin.kwargs)
    in_eval.apply_defaults()
    in_train.apply_defaults()
    ours, theirs = in_eval.arguments, in_train.arguments
    # An nn.Dropout is active in train() only, unlike this call.
    if ours["training"] or not theirs["training"]:
        _switch_constants(graph, node, differences, extras)
        return
    module = _DROPOUTS[node.target](theirs["p"], theirs["inplace"])  # type: ignore[index]
    path = extras.add(get_owner(node), "functional_dropout", module)
    with graph.inserting_before(node):
        call = graph.call_module(path, (ours["input"],))
    call.meta.update(node.meta)
    node.replace_all_uses_with(call)
    graph.erase_node(node)


def _switch_constants(
    graph: fx.Graph, node: fx.Node, differences: list[Difference], extras: AddedModules
) -> None:
    for place, when_eval, when_training in differences:
        path = extras.add(get_owner(node), "by_mode", ByMode(when_training, when_eval))
        with graph.inserting_before(node):
            switch = graph.call_module(path)
        switch.meta.update(node.meta)
        args, kwargs = replaced((node.args, node.kwargs), place, switch)
        node.args, node.kwargs = tuple(args), kwargs


def _differences(
    node: fx.Node,
    twin: fx.Node,
    twins: Mapping[fx.Node, fx.Node],
    casts: Mapping[fx.Node, MissingCast],
) -> list[Difference] | None:
    """Returns the constants that differ between two calls; None for other differences."""
    if (node.op, node.target) != (twin.op, twin.target):
        return None

    def is_same(ours: Any, theirs: Any) -> bool:
        if not isinstance(ours, fx.Node) or twins.get(ours) is not get_source(theirs, casts):
            raise StructureDiffersError
        return theirs not in casts

    try:
        return list(walk((node.args, node.kwargs), (twin.args, twin.kwargs), is_same))
    except StructureDiffersError:
        return None


def walk(
    ours: Any, theirs: Any, is_same: Callable[[Any, Any], bool], place: tuple[Any, ...] = ()
) -> Iterator[Difference]:
    """Lists the arguments that differ between two calls.

    Raises:
        StructureDiffersError: they differ in more than values.
    """
    if isinstance(ours, fx.Node) or isinstance(theirs, fx.Node):
        if not is_same(ours, theirs):
            yield place, ours, theirs
        return
    inside, inside_theirs = _parts(ours), _parts(theirs)
    if inside is None and inside_theirs is None:
        if not same_content(ours, theirs):
            yield place, ours, theirs
        return
    if inside is None or inside_theirs is None or type(ours) is not type(theirs):
        raise StructureDiffersError
    # The order of keys is part of a result too.
    if list(inside) != list(inside_theirs):
        raise StructureDiffersError
    for key, item in inside.items():
        yield from walk(item, inside_theirs[key], is_same, (*place, key))


def _parts(value: Any) -> dict[Any, Any] | None:
    if isinstance(value, slice):
        return {"start": value.start, "stop": value.stop, "step": value.step}
    return tree_parts(value, fields=False)
