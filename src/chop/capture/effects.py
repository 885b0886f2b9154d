"""What a model does besides returning results: followed by the graph, given to a leaf, or told."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator
from typing import Any, cast

from torch import fx

from chop.capture.fallback import Ladder, Recording
from chop.capture.rehearse import Rehearsal, rehearse
from chop.capture.runtime import expect
from chop.capture.targets import changes_its_input
from chop.errors import enumerate_names

_VIEWS = frozenset(
    {
        *("detach", "view", "view_as", "reshape", "flatten", "t", "transpose", "permute"),
        *("squeeze", "unsqueeze", "narrow", "select", "diagonal", "expand", "unbind"),
    }
)
_MAX_NAMES = 4


def record(ladder: Ladder) -> tuple[Recording, list[Rehearsal]]:
    """Records a model whose real runs say which of its modules keep state.

    Returns: the recording, and what the runs in `eval()` and, where they were needed, in `train()`
    have shown; none where the model cannot run here.
    """
    first = rehearse(ladder.model, ladder.example, ladder.fixed)
    rehearsals = [] if first is None else [first]
    ladder.stateful.update({} if first is None else first.stateful)
    recording = ladder.record()
    known = len(ladder.stateful) + len(ladder.moving)
    if first is not None and ladder.changed_in_training - first.changed:
        in_train = rehearse(ladder.model, ladder.example, ladder.fixed, training=True)
        if in_train is not None:
            rehearsals.append(in_train)
            ladder.stateful.update(in_train.stateful)
    ladder.moving |= _read_by_python(recording.graphs) & set(written_names(recording.graphs))
    if len(ladder.stateful) + len(ladder.moving) > known:
        recording = ladder.record()
    return recording, rehearsals


def told(
    ladder: Ladder, recording: Recording, rehearsals: Iterable[Rehearsal], leaves: Iterable[str]
) -> list[str]:
    """A sentence each on parameters that forward writes, answers kept, and attributes left behind.

    Args:
        ladder: the capture.
        recording: what it has recorded.
        rehearsals: the real runs.
        leaves: the paths of the modules that the graph calls; these do as they always did.
    """
    notes = []
    parameters = dict(ladder.model.named_parameters())
    written = {name for found in rehearsals for name in found.calls[0].written}
    written = {name for name in [*written, *written_names(recording.graphs)] if name in parameters}
    if written:
        notes.append(
            f"forward writes to its parameters {_listed(written)}; the graph does so too, and the "
            "capture has put their values back"
        )
    if recording.recorder.asked_for_gradients:
        notes.append(
            "the model asks whether a tensor requires a gradient, and the graph keeps the answer, "
            f"at {_listed(set(recording.recorder.asked_for_gradients))}"
        )
    inside = tuple(leaves)
    idle = {
        text
        for found in rehearsals
        for path, text in found.idle
        if not any(path == leaf or path.startswith(f"{leaf}.") for leaf in inside)
    }
    if idle:
        notes.append(
            f"forward also sets {_listed(idle)}; further calls gave the same results, and the "
            "graph does not set it; where a later call reads it, make it a buffer or keep its "
            "module whole with leaves=[...] (custom_ops in MaseGraph)"
        )
    return notes


def _listed(names: Iterable[str]) -> str:
    return enumerate_names(sorted(names), _MAX_NAMES)


def written_names(graphs: Iterable[fx.Graph]) -> Iterator[str]:
    """The parameters and buffers that nodes of a graph write into."""
    for graph in graphs:
        for node in graph.nodes:
            for written in _written_by(node):
                source = _source(written)
                if source.op == "get_attr":
                    yield str(source.target)


def _written_by(node: fx.Node) -> list[fx.Node]:
    targets: list[Any] = []
    if _is_in_place(node) and node.args:
        targets += node.args[0] if isinstance(node.args[0], tuple | list) else [node.args[0]]
    out = node.kwargs.get("out")
    targets += out if isinstance(out, tuple | list) else [out]
    return [target for target in targets if isinstance(target, fx.Node)]


def _is_in_place(node: fx.Node) -> bool:
    if node.op == "call_method":
        return str(node.target).endswith("_") and not str(node.target).endswith("__")
    function = cast(Callable[..., Any], node.target)
    return node.op == "call_function" and changes_its_input(function)


def _source(node: fx.Node) -> fx.Node:
    """The node whose memory a node's result is a view of."""
    while node.args and isinstance(node.args[0], fx.Node) and _is_view(node):
        node = node.args[0]
    return node


def _is_view(node: fx.Node) -> bool:
    name = node.target if node.op == "call_method" else getattr(node.target, "__name__", "")
    attribute = node.target is getattr and node.args[1] in ("data", "mT", "T", "real")
    return attribute or name in _VIEWS or node.target is operator.getitem or _is_in_place(node)


def _read_by_python(graphs: Iterable[fx.Graph]) -> set[str]:
    """The buffers whose values the model's Python has decided on."""
    return {
        str(node.args[0].target)
        for graph in graphs
        for node in graph.nodes
        if node.target is expect and node.args[0].op == "get_attr"
    }
