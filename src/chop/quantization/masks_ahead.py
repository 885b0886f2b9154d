"""Passes later attention masks to the calls that compute the scores.

A scale that depends on scores must ignore scores that a mask hides a few operators later. Each
quantized call between the product of queries and keys and a softmax therefore gets the masks as an
argument; see `chop.captured.padding.masks.MASKS_AHEAD`.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import fx

from chop.base.reach import reached
from chop.captured.nodes.targets import is_impure
from chop.captured.nodes.writes import get_memory, get_views, written_by
from chop.captured.padding.masks import MASKS_AHEAD
from chop.captured.runtime import REGIONS, set_item
from chop.ir.graph import MaseGraph, node_metadata
from chop.ir.ops import Kind, Operator
from chop.ir.ops import dimensions as d
from chop.nn.quantized import QuantCall
from chop.quantization.masked_nodes import maybe_masked

MOST, MOST_WRITES = 32, 8
"""Maximum numbers of mask series, and of writes into a memory, for which a value counts as scores.
"""
UNKNOWN = Operator("", "")
"""Row of a reader behind more masks than scores have."""
TURNED = frozenset({"mT", "T"})
"""Attributes that transpose a matrix."""

MaskAhead = tuple[str, Any, tuple[tuple[str, tuple[Any, ...]], ...]]
"""Entry of `MASKS_AHEAD` with its tensor and sizes as nodes."""
Masks = tuple[MaskAhead, ...]


class Reader(NamedTuple):
    """Node that reads a value through operators that preserve its elements.

    Attributes:
        name: name of the node.
        row: its row in the operator table.
    """

    name: str
    row: Operator


class MasksAhead:
    """Search for the masks that a graph applies to scores after a node.

    Args:
        mg: the graph.
    """

    def __init__(self, mg: MaseGraph) -> None:
        self._mg = mg
        self._rows = {node: mg.operator(node) for node in mg.nodes}
        self._order = {node: place for place, node in enumerate(self._rows)}
        self._maybe = maybe_masked(self._rows)
        self._scores = _derived(self._rows, _is_product)
        self._activation_products = _derived(self._rows, lambda row: row.is_product_of_activations)
        self._weights = _derived(
            self._rows, lambda row: row.is_product_of_activations or _is_softmax(row)
        )
        self._known: dict[frozenset[fx.Node], dict[Masks, Reader]] = {}

    def of(self, node: fx.Node) -> tuple[MaskAhead, ...]:
        """Returns the masks that hide elements of a node's result from all readers.

        The search follows elementwise operators, views and dropout. It returns nothing if no masked
        softmax reads the result, unless all hidden elements of a product of activations are filled,
        as in linear attention.

        Args:
            node: a product or an elementwise operator.
        """
        readers = self._list_readers(node)
        is_filled = node in self._activation_products and all(map(_fills, readers))
        is_masked = any(x.row.reads_scores and masks for masks, x in readers.items())
        if not (readers and (is_masked or is_filled)):
            return ()
        if len(readers) == 1 or () in readers:
            return next(iter(readers)) if () not in readers else ()
        return (("every", tuple(readers), ()),)

    def whole_reader(self, node: fx.Node) -> tuple[fx.Node | None, str]:
        """Returns a mask of attention scores before a softmax, and a reader of the unmasked scores.

        Args:
            node: node with the scores, see `of`.
        Returns: None if there is no such reader.
        """
        readers = self._list_readers(node) if node in self._scores else {}
        whole = readers.get(())
        reads_keys = self._rows[node].is_product_of_activations and not any(
            x.op == "get_attr" for x in node.all_input_nodes
        )
        is_mixed = whole and whole.row.kind is Kind.PRODUCT and not whole.row.arguments
        if whole is not None and is_mixed and reads_keys:  # as of talking heads
            mixed = next(x for x in self._order if x.name == whole.name)
            readers = {**readers, **self._readers(frozenset({mixed})), (): whole}
        masked = [masks for masks, x in readers.items() if masks and _is_softmax(x.row)]
        if () not in readers or not masked or readers[()].row is UNKNOWN:
            return None, ""
        return first_mask(masked[0]), readers[()].name

    def _list_readers(self, node: fx.Node) -> dict[Masks, Reader]:
        row = self._rows[node]
        if not (row.is_product_of_activations or _is_elementwise(row)):
            return {}
        if not self._known:  # from the end on, so that no chain of operators is a deep recursion
            for known, known_row in reversed(self._rows.items()):
                if _is_elementwise(known_row):
                    self._readers(frozenset({known}))
        return self._readers(frozenset({node}))

    def _readers(self, aliases: frozenset[fx.Node]) -> dict[Masks, Reader]:
        """Returns readers of a value through operators that preserve its elements.

        Args:
            aliases: nodes of one memory, in the order of its writes.
        Returns: one reader per series of masks on the path to it.
        """
        readers = self._known.get(aliases)
        if readers is None:
            readers = self._known[aliases] = {}
            for masks, reader in self._walk(aliases):
                if len(readers) == MOST:  # no scores, but a value that loops have changed
                    readers.clear()
                    readers[()] = Reader(reader.name, UNKNOWN)
                    break
                # A softmax shows that the value is scores, even if other nodes read it.
                if masks not in readers or reader.row.reads_scores:
                    readers[masks] = reader
        return readers

    def _walk(self, aliases: frozenset[fx.Node]) -> Iterator[tuple[Masks, Reader]]:
        for user in self._users(aliases):
            row = self._rows[user]
            mask, step = self._find_mask(user, aliases), _step(row, user)
            is_written = not aliases.isdisjoint(written_by(user))
            is_end = row.reads_scores or (is_written and len(aliases) == MOST_WRITES)
            if is_end or not (mask or step or _is_elementwise(row)):
                yield (), Reader(user.name, row)
            else:
                behind = self._readers(aliases | {user} if is_written else frozenset({user}))
                for masks, reader in behind.items():
                    if mask is not None:
                        masks = ((*mask, ()), *masks)
                    elif step is not None:
                        masks = tuple((kind, x, (step, *steps)) for kind, x, steps in masks)
                    yield masks, reader
            if is_written:
                if (missed := self._other_reader(user, aliases)) is not None:
                    reader = Reader(missed.name, self._rows[missed])
                    yield (), reader
                    if mask is not None:
                        yield ((*mask, ()),), reader
                return

    def _users(self, aliases: Collection[fx.Node]) -> list[fx.Node]:
        """Returns nodes that read a value after its last write, in order."""
        last = max(self._order[node] for node in aliases if node in self._order)
        users = {
            user
            for node in aliases
            for user in node.users
            if self._order.get(user, -1) > last and not self._reads_size(user)
        }
        return sorted(users, key=self._order.__getitem__)

    def _other_reader(self, write: fx.Node, aliases: Collection[fx.Node]) -> fx.Node | None:
        """Returns a node that reads written data through another name of the memory."""
        known = {*aliases, write}
        for later, names in self._reads_by_memory[get_memory(write)]:
            if self._order[later] > self._order[write] and names.isdisjoint(known):
                return later
        return None

    @functools.cached_property
    def _reads_by_memory(self) -> dict[fx.Node, list[tuple[fx.Node, frozenset[fx.Node]]]]:
        """Returns nodes that read a memory, in order, with the views that they use."""
        readers: dict[fx.Node, list[tuple[fx.Node, frozenset[fx.Node]]]] = defaultdict(list)
        for node in self._order:
            for x in node.all_input_nodes:
                names = get_views(x)
                readers[names[-1]].append((node, frozenset(names)))
        return readers

    def are_weights(self, x: Any) -> bool:
        """Returns true if a value comes from a softmax, or from products behind a mask.

        Dropout, layout changes and elementwise operators may lie in between.
        """
        while isinstance(x, fx.Node):
            row = self._rows[x]
            if _is_softmax(row):
                return True
            given = [y for y in x.all_input_nodes if y in self._weights]
            if not (row.layout or _is_elementwise(row)) or not given:
                return False
            if self._find_mask(x, {given[0]}) is not None:
                return True
            x = given[0]
        return False

    def _reads_size(self, node: fx.Node) -> bool:
        row = self._rows[node]
        if row.name.endswith("_like") or row.name.startswith("new_"):
            return True
        return row.layout == "read" and row.follow is not d.indexed and not _is_turned(node)

    def _find_mask(self, user: fx.Node, scores: Collection[fx.Node]) -> tuple[str, fx.Node] | None:
        """Returns the mask that an operator applies to scores; None for other operators."""
        row = self._rows[user]
        if row.selector:
            module = self._mg.get_module(user)
            own = module.arguments if isinstance(module, QuantCall) else row.call_arguments(user)
            mask = _selected(own, row.selector, user, scores)
            # Scores that hide others by their size hide none that a token may not see.
            return None if mask is None or self._is_made_of(mask[1], scores) else mask
        if user.target is set_item:
            return _written(user, scores)
        if row.follow is not d.arithmetic:
            return None
        others = [x for x in user.all_input_nodes if x not in scores and x in self._maybe]
        if self._scores.isdisjoint(scores):  # masks, added to the real scores
            others = [x for x in others if x not in self._scores]
        is_mask = len(others) == 1 and not self._is_made_of(others[0], scores)
        return ("added", others[0]) if is_mask else None

    def _is_made_of(self, x: fx.Node, scores: Collection[fx.Node]) -> bool:
        """Returns true if a value depends on numbers derived from scores, such as their maximum."""
        first = min(self._order[node] for node in scores if node in self._order)

        def sources(node: fx.Node) -> list[fx.Node]:
            is_later = self._order.get(node, -1) > first
            return node.all_input_nodes if is_later and not self._reads_size(node) else []

        return any(node in scores for node in reached([x], sources))


def _selected(
    arguments: Iterable[str], selector: str, user: fx.Node, scores: Collection[fx.Node]
) -> tuple[str, fx.Node] | None:
    """Returns the boolean that selects between scores and other numbers."""
    given = {**dict(zip(arguments, user.args, strict=False)), **user.kwargs}
    boolean, is_first = given.get(selector), given.get("input", given.get("self")) in scores
    if not isinstance(boolean, fx.Node) or boolean in scores:
        return None
    if is_first and given.get("other") in scores:
        return None
    return ("shown" if selector == "condition" and is_first else "hidden", boolean)


def _written(user: fx.Node, scores: Collection[fx.Node]) -> tuple[str, fx.Node] | None:
    """Returns the mask of `scores[mask] = number`; None for other indices and values."""
    tensor, index, value = user.args
    if tensor not in scores or not isinstance(index, fx.Node) or not isinstance(value, int | float):
        return None
    written, hidden = (node_metadata(x).common.results.get("data_out_0") for x in (user, index))
    if written is None or hidden is None or hidden.torch_dtype != torch.bool:
        return None
    return ("hidden", index) if len(hidden.shape) == len(written.shape) else None


def _is_product(row: Operator) -> bool:
    return row.kind is Kind.PRODUCT and not (row.weight and row.weight.is_table)


def _fills(masks: Masks) -> bool:
    """Returns true if the masks replace hidden values by other numbers."""
    return any(kind in ("hidden", "shown") for kind, _, _ in masks)


def _derived(
    rows: Mapping[fx.Node, Operator], is_source: Callable[[Operator], bool]
) -> set[fx.Node]:
    """Returns nodes whose elements are derived from those of sources one by one."""
    nodes: set[fx.Node] = set()
    for node, row in rows.items():
        hands_on = _is_elementwise(row) or (row.layout and row.layout != "read") or _is_turned(node)
        if is_source(row) or (hands_on and not nodes.isdisjoint(node.all_input_nodes)):
            nodes.add(node)
    return nodes


def _is_elementwise(row: Operator) -> bool:
    """Returns true if an operator maps each score to a result in the same position."""
    if row.selector or row.kind is Kind.DROPOUT or row.name == "clone":
        return True
    return row.follow in (d.arithmetic, d.unchanged)


def _is_softmax(row: Operator) -> bool:
    return row.reads_scores and not _is_elementwise(row)


def _is_turned(node: fx.Node) -> bool:
    return node.target is getattr and node.args[1] in TURNED


def _step(row: Operator, node: fx.Node) -> tuple[str, tuple[Any, ...]] | None:
    """Returns the layout method of an operator and its arguments; None for other operators."""
    if _is_turned(node):
        return "transpose", (-2, -1)
    is_view = row.layout == "view" and row.follow is not d.unchanged
    if not (is_view or row.follow is d.transposed) or node.op == "call_module" or node.kwargs:
        return None
    return row.name, tuple(node.args[1:])


def first_mask(masks: Sequence[MaskAhead]) -> fx.Node | None:
    """Returns the first mask, or None."""
    return next(iter(_nodes_in(masks)), None)


def _nodes_in(masks: Sequence[MaskAhead]) -> list[fx.Node]:
    nodes: list[fx.Node] = []
    fx.node.map_arg(tuple(masks), nodes.append)
    return nodes


def hand_masks(node: fx.Node, masks: Sequence[MaskAhead]) -> Sequence[MaskAhead]:
    """Passes to a quantized call those of its masks that can be computed before it.

    Args:
        node: the call.
        masks: from `MasksAhead`.
    Returns: the remaining masks.
    """
    late = [mask for mask in masks if not _move_ahead(node, mask)]
    handed = tuple(mask for mask in masks if mask not in late)
    if handed:
        node.kwargs = {**node.kwargs, MASKS_AHEAD: handed}
    return late


def _move_ahead(node: fx.Node, mask: MaskAhead) -> bool:
    """Moves the nodes of a mask before a node if possible, and returns true if they were moved.

    A mask cannot move if it depends on the node's result or is random, or if a node in between
    writes its inputs or starts a region. Then the graph is unchanged.
    """
    place = {x: n for n, x in enumerate(node.graph.nodes)}

    def late_among(nodes: Iterable[fx.Node]) -> list[fx.Node]:
        return [x for x in nodes if place[x] >= place[node]]

    starts = late_among(_nodes_in([mask]))
    late = {*reached(starts, lambda x: late_among(x.all_input_nodes))}
    if late:
        ordered = sorted(late, key=place.__getitem__)
        passed = list(place)[place[node] + 1 : place[ordered[-1]]]
        if node in late or any(_is_module(x) or is_impure(x) for x in late):
            return False
        if any(_binds(x, node, late, place) for x in passed):
            return False
        for x in ordered:
            node.prepend(x)
    return True


def _is_module(node: fx.Node) -> bool:
    """Returns true if a node calls a module other than a quantized function."""
    model = node.graph.owning_module
    is_module = node.op == "call_module" and model is not None
    return is_module and not isinstance(model.get_submodule(str(node.target)), QuantCall)  # type: ignore[union-attr]


def _binds(
    passed: fx.Node, node: fx.Node, late: Collection[fx.Node], place: Mapping[fx.Node, int]
) -> bool:
    """Returns true if a node between prevents later nodes from being computed before it.

    Args:
        passed: node that the others would be moved before.
        node: node whose earlier memory any of them may read.
        late: nodes to move.
        place: position of each node in the graph.
    """
    memory = [get_memory(x) for x in written_by(passed)]
    is_read = any(x in late or place[x] < place[node] for x in memory)
    return is_read or passed.target in REGIONS
