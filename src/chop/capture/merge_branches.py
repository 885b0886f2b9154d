"""Merge of recordings in `train()` and `eval()` with different nodes into one graph."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, fx, nn

from chop.capture.merge_modes import (
    AddedModules,
    Pair,
    StructureDiffersError,
    get_owner,
    switch,
    walk,
)
from chop.capture.recording.recorder import Recorder
from chop.captured.dtype_constants import replaced
from chop.captured.nodes.modes import MODE
from chop.captured.nodes.writes import written_by
from chop.captured.runtime import REGIONS, by_mode
from chop.private.torch_api import SET_GRAD_ENABLED


def merge_branches(
    recorder: Recorder, in_train: Recorder, taken: Iterable[str]
) -> dict[str, nn.Module]:
    """Adds the nodes that only the recording in `train()` has to the one in `eval()`.

    Nodes of the same call on the same line become one. If such a node reads different values, a
    `by_mode` node selects one. `captured.nodes.modes` defines the markers of single-mode nodes.

    Args:
        recorder: the recording in `eval()`; its graph is changed.
        in_train: the recording in `train()`.
        taken: paths of the model's own members, which new modules avoid.
    Returns: the new modules by path.
    """
    merge = _Merge(recorder, in_train)
    merge.run()
    merge.mark()
    extras = AddedModules(taken)
    switch(recorder.graph, merge.constants.values(), extras)
    return extras.modules


class _Merge:
    """One merge; nodes of the `eval()` graph are "ours"."""

    def __init__(self, recorder: Recorder, in_train: Recorder) -> None:
        self.constants: dict[fx.Node, Pair] = {}
        self._graph, self._recorder, self._in_train = recorder.graph, recorder, in_train
        self._ours: list[fx.Node] = list(recorder.graph.nodes)
        self._theirs: list[fx.Node] = list(in_train.graph.nodes)
        self._merged: dict[fx.Node, fx.Node] = {}
        self._single_mode: dict[fx.Node, bool] = {}
        self._choices: dict[tuple[Any, Any], fx.Node] = {}
        self._shared: set[fx.Node] = set()
        self._placed: set[fx.Node] = set()
        self._first = 0
        self._members: dict[tuple[str, Any], list[fx.Node]] = {}
        for node in self._ours:
            if not _is_call(node):
                self._members.setdefault((node.op, node.target), []).append(node)

    def run(self) -> None:
        """Pairs and adds nodes, in the order of both recordings."""
        pairs = self._pairs()
        remaining = iter(self._ours)
        for twin in self._theirs:
            if twin in pairs:
                node = pairs[twin]
                for passed in remaining:
                    self._placed.add(passed)
                    if passed is node:
                        break
                self._pair(node, twin)
            else:
                self._merged[twin] = self._known(twin) or self._add(twin)
        for node in self._ours:
            if node not in self._shared and _is_call(node):
                self._single_mode[node] = False

    def _pairs(self) -> dict[fx.Node, fx.Node]:
        """Pairs calls of the same line, order and argument structure."""
        ours, theirs = (
            [x for x in nodes if _is_call(x) or x.op in ("placeholder", "output")]
            for nodes in (self._ours, self._theirs)
        )
        keys, their_keys = [*map(_key, ours)], [*map(_key, theirs)]
        # A longest-common-subsequence match, as in a diff: the rest is code of one mode.
        matcher = difflib.SequenceMatcher(None, keys, their_keys, autojunk=False)
        pairs = {
            theirs[block.b + i]: ours[block.a + i]
            for block in matcher.get_matching_blocks()
            for i in range(block.size)
        }
        # A region must begin and end in the same mode.
        split = {*_split_regions(pairs)}
        return {twin: node for twin, node in pairs.items() if twin not in split}

    def _pair(self, node: fx.Node, twin: fx.Node) -> None:
        try:
            differences = list(walk((node.args, node.kwargs), self._arguments(twin), _is_same))
        except StructureDiffersError:
            if node.op != "output":
                self._merged[twin] = self._add(twin)
                return
            # A graph has one output node, so the results of both modes are selected as a whole.
            differences = [((0, 0), node.args[0], self._arguments(twin)[0][0])]
        self._merged[twin] = node
        self._shared.add(node)
        for place, ours, theirs in differences:
            if not (_has_nodes(ours) or _has_nodes(theirs) or node.op == "output"):
                _, _, constants = self.constants.setdefault(node, (node, twin, []))
                constants.append((place, ours, theirs))
                continue
            choice = self._choice(node, ours, theirs)
            args, kwargs = replaced((node.args, node.kwargs), place, choice)
            node.args, node.kwargs = tuple(args), kwargs

    def _choice(self, node: fx.Node, ours: Any, theirs: Any) -> fx.Node:
        # Readers of the same pair of nodes share one choice.
        key = (ours, theirs) if isinstance(ours, fx.Node) and isinstance(theirs, fx.Node) else None
        if key in self._choices:
            return self._choices[key]
        with self._graph.inserting_before(node):
            choice = self._graph.call_function(by_mode, (theirs, ours, ""))
        choice.meta.update({k: v for k, v in node.meta.items() if k != MODE})
        value = self._recorder.values.get(ours) if isinstance(ours, fx.Node) else None
        if value is not None:
            self._recorder.values[choice] = value
        if key is not None:
            self._choices[key] = choice
        return choice

    def _arguments(self, twin: fx.Node) -> Any:
        return fx.node.map_arg((twin.args, twin.kwargs), self._merged.__getitem__)

    def _known(self, twin: fx.Node) -> fx.Node | None:
        """Returns our node for a member or a size, which the writer creates at its first use."""
        if _is_call(twin):
            return None
        args, kwargs = self._arguments(twin)
        for node in self._members.get((twin.op, self._target(twin)), ()):
            if (node.args, node.kwargs) != (args, kwargs):
                continue
            if node not in self._placed:
                self._place().prepend(node)
                self._placed.add(node)
            self._shared.add(node)
            return node
        return None

    def _place(self) -> fx.Node:
        """Returns the first of our nodes that neither recording has reached."""
        while self._ours[self._first] in self._placed:  # nodes are never removed from it
            self._first += 1
        return self._ours[self._first]

    def _add(self, twin: fx.Node) -> fx.Node:
        args, kwargs = self._arguments(twin)
        with self._graph.inserting_before(self._place()):
            node = self._graph.create_node(twin.op, self._target(twin), args, kwargs)
        node.meta.update(twin.meta)
        self._single_mode[node] = True
        return node

    def _target(self, twin: fx.Node) -> Any:
        """Returns a node's target; each recording numbers its own constants."""
        ours, theirs = self._recorder.constants, self._in_train.constants
        if twin.op != "get_attr" or twin.target not in theirs:
            return twin.target
        own = theirs[twin.target]
        for name, constant in ours.items():
            if constant is own or _is_equal(constant, own):
                return name
        name = f"{twin.target}_in_training"
        ours[name] = own
        return name

    # --- marks

    def mark(self) -> None:
        """Marks the nodes of one mode with the module whose mode they follow."""
        inside = {path for node in self._shared for path in node.meta.get("nn_module_stack", ())}
        choices = set(self._choices.values()) | {
            node for node in self._graph.nodes if node.target is by_mode
        }
        groups = _Groups()
        for node in [*self._single_mode, *choices]:
            groups.join(node, node)
            for source in node.all_input_nodes:
                if source in self._single_mode:
                    groups.join(node, source)
        for group in groups:
            # Members belong to no module, and choices belong to the module that reads them.
            own = [n for n in group if n not in choices and "nn_module_stack" in n.meta]
            path = _enclosing_module(own or group, inside)
            for node in group:
                if node in choices:
                    node.args = (*node.args[:2], path)
                else:
                    node.meta[MODE] = (self._single_mode[node], path)


class _Groups:
    """Disjoint sets of nodes that follow the same mode because they read each other."""

    def __init__(self) -> None:
        self._groups: dict[fx.Node, list[fx.Node]] = {}

    def join(self, one: fx.Node, other: fx.Node) -> None:
        """Joins the groups of two nodes."""
        first, second = (self._groups.setdefault(node, [node]) for node in (one, other))
        if first is not second:
            first += second
            self._groups.update(dict.fromkeys(second, first))

    def __iter__(self) -> Iterator[list[fx.Node]]:
        return iter({id(group): group for group in self._groups.values()}.values())


def _enclosing_module(nodes: Iterable[fx.Node], inside: set[str]) -> str:
    """Returns the innermost module around all nodes that has nodes of both modes.

    Its mode selects between them.
    """
    stacks = [list(node.meta.get("nn_module_stack", {"": None})) for node in nodes]
    common = [path for path in stacks[0] if all(path in stack for stack in stacks)]
    return next((path for path in reversed(common) if path in inside), "")


def _is_call(node: fx.Node) -> bool:
    """Returns whether a node has a fixed place, unlike nodes created at their first use."""
    return "source" in node.meta or node.target in (*REGIONS, SET_GRAD_ENABLED)


def _split_regions(pairs: Mapping[fx.Node, fx.Node]) -> Iterator[fx.Node]:
    """Returns region boundaries that are paired with those of different regions."""
    for twin in pairs:
        if twin.target not in (*REGIONS, SET_GRAD_ENABLED):
            continue
        begin = twin.args[0] if isinstance(twin.args[0], fx.Node) else twin
        region, other = ([x, *x.users] for x in (begin, pairs.get(begin, begin)))
        if [pairs.get(x) for x in region] != other:
            yield twin


def _key(node: fx.Node) -> Any:
    if node.op == "output":
        return node.op
    return node.op, node.target, node.meta.get("source"), get_owner(node)


def _is_same(ours: Any, theirs: Any) -> bool:
    """Returns whether two arguments are equal, or a member and a value `theirs` wrote to it."""
    while isinstance(theirs, fx.Node) and ours is not theirs and theirs.args:
        if theirs.args[0] not in written_by(theirs):
            break
        theirs = theirs.args[0]
    return ours is theirs


def _is_equal(one: Tensor, other: Tensor) -> bool:
    kinds = [(x.dtype, x.device, x.shape, x.layout) for x in (one, other)]
    return kinds[0] == kinds[1] and one.layout is torch.strided and torch.equal(one, other)


def _has_nodes(value: Any) -> bool:
    nodes: list[fx.Node] = []
    fx.node.map_arg(value, nodes.append)
    return bool(nodes)
