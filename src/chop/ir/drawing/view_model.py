"""View model of a drawing: the boxes, frames and texts of a graph's nodes."""

from __future__ import annotations

import dataclasses
import operator
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

from torch import fx, nn

from chop.captured.huggingface.cache import SIZE_FUNCTIONS
from chop.captured.module import CapturedModule
from chop.captured.runtime import ByMode
from chop.captured.specs import TensorSpec
from chop.errors import ConfigError
from chop.ir.drawing.comparison import CHANGED, MARKS, SAME, Nodes, list_nodes, merge
from chop.ir.drawing.hierarchy import Item
from chop.ir.metadata import MaseMetadata
from chop.ir.ops import Kind, module_of_node, of_node
from chop.nn.quantized import QuantizedOperator
from chop.nn.sparsity import PruneActivation, get_sparsity
from chop.private.modules import class_label

MOST_BOXES = 120
LONGEST_TEXT = 34
TITLE_WIDTH = 7.0
TEXT_WIDTH = 6.3
LINE_HEIGHT = 13.0
MARGIN = 8.0

COLLAPSED = "module, folded"


@dataclasses.dataclass(frozen=True)
class Box:
    """The words of a box or a frame.

    Attributes:
        title: a short name.
        kind: what its color says.
        lines: further lines: class, shape, formats, sparsity.
        tooltip: everything, for those who point at it.
        is_quantized: something in it computes in a number format.
        stays_float: it has a quantized twin and others are quantized, but it is not.
        change: what became of it from one graph to the other; "" in a picture of one graph.
    """

    title: str
    kind: str
    lines: tuple[str, ...] = ()
    tooltip: str = ""
    is_quantized: bool = False
    stays_float: bool = False
    change: str = ""

    @property
    def color(self) -> str:
        """What its color says: the change where two graphs are compared, else the kind."""
        return self.change or self.kind


@dataclasses.dataclass(frozen=True)
class ViewModel:
    """A graph as boxes and frames, before anything has a place.

    Attributes:
        nodes: what is drawn; `Item.leaves` and `uses` count these from 0.
        uses: for each node the nodes that read its result.
        words: by the key of the item.
        root: boxes within frames.
        hidden: how many nodes of size arithmetic are left out.
        letters: what the letters in shapes stand for.
        quantized: the nodes that compute in a number format.
        paths: where each node belongs in the module tree, outermost module first.
    """

    nodes: list[fx.Node]
    uses: dict[int, list[int]]
    words: dict[str, Box]
    root: Item
    hidden: int
    letters: dict[str, str]
    quantized: frozenset[int]
    paths: Sequence[tuple[str, ...]] = ()

    def box(self, item: Item) -> Box:
        """The words of an item, also of one that the layout has cut into several calls."""
        if item.key in self.words:
            return self.words[item.key]
        whole = self.words[item.key.partition("#")[0]]
        if whole.kind != COLLAPSED:
            return whole
        lines = (whole.lines[0], *_count(item.leaves, self.quantized))
        return dataclasses.replace(whole, lines=lines)


def box_item(key: str, leaves: Sequence[int], box: Box) -> Item:
    """A box as large as its words."""
    widths = [len(box.title) * TITLE_WIDTH, *map(_text_width, box.lines)]
    height = LINE_HEIGHT * (1 + len(box.lines)) + MARGIN
    return Item(key, tuple(leaves), (), max(widths) + 2 * MARGIN, height)


def build_view_model(
    model: CapturedModule, depth: int | None = None, other: CapturedModule | None = None
) -> ViewModel:
    """Decides what to draw.

    Args:
        model: the captured model.
        depth: modules with a path longer than this are folded into a box; None unfolds as much as
            fits into about 120 boxes.
        other: a second one, drawn over the first; None draws the first alone.

    Raises:
        ConfigError: `depth` is no positive number.
    """
    if depth is not None and (not isinstance(depth, int) or depth < 1):
        raise ConfigError(f"draw: depth is {depth!r}, expected 1 or more levels of modules.")
    all_nodes = list_nodes(model) if other is None else merge(model, other)
    hidden = _size_arithmetic(model) | (set() if other is None else _size_arithmetic(other))
    shown = _without(all_nodes, hidden)
    paths = [_path(node) for node in shown.nodes]
    writer = _Writer(shown, paths, depth or _fitting_depth(paths))
    count = len(shown.nodes)
    root = Item("", tuple(range(count)), writer.items(range(count), ()))
    left_out = len(all_nodes.nodes) - count
    parts = (writer.words, root, left_out, writer.letters, writer.quantized, paths)
    return ViewModel(shown.nodes, shown.uses, *parts)


def _without(found: Nodes, hidden: set[fx.Node]) -> Nodes:
    kept = [n for n, node in enumerate(found.nodes) if node not in hidden]
    number = {n: place for place, n in enumerate(kept)}
    uses = {number[n]: [number[u] for u in found.uses[n] if u in number] for n in kept}
    changes = [found.changes[n] for n in kept] if found.changes else []
    return Nodes([found.nodes[n] for n in kept], [found.models[n] for n in kept], uses, changes)


def _path(node: fx.Node) -> tuple[str, ...]:
    """Where a node belongs in the module tree: at its module's path, or below its caller."""
    if node.op in ("call_module", "get_attr"):
        return tuple(str(node.target).split("."))
    stack = list(node.meta.get("nn_module_stack") or ())
    if not stack or not stack[-1]:
        return (node.name,)
    return (*stack[-1].split("."), node.name)


def _fitting_depth(paths: Sequence[tuple[str, ...]]) -> int:
    deepest = max(map(len, paths), default=1)
    for depth in range(deepest, 1, -1):
        folded = {path[:depth] for path in paths if len(path) > depth}
        if len(folded) + sum(len(path) <= depth for path in paths) <= MOST_BOXES:
            return depth
    return 1


def _size_arithmetic(model: CapturedModule) -> set[fx.Node]:
    """Nodes that compute sizes, devices and constants of the mode, and no tensor."""
    found: set[fx.Node] = set()
    for node in model.graph.nodes:
        if _is_size(model, node) or (_is_python(node) and found.issuperset(node.all_input_nodes)):
            found.add(node)
    return found


def _is_size(model: CapturedModule, node: fx.Node) -> bool:
    if node.op == "call_module":
        return isinstance(module_of_node(node, model), ByMode)
    if node.op == "call_method":
        return node.target in ("size", "dim", "numel")
    if node.target in SIZE_FUNCTIONS:
        return True
    reads = node.op == "call_function" and node.target is getattr and len(node.args) > 1
    return reads and node.args[1] in ("shape", "device", "dtype", "ndim")


def _is_python(node: fx.Node) -> bool:
    home = getattr(node.target, "__module__", "")
    is_function = node.op == "call_function" and home in (operator.__name__, "_operator", "math")
    return is_function and bool(node.all_input_nodes)


# --- words ---------------------------------------------------------------------------------------


class _Writer:
    """Makes the items of a picture and the words on them."""

    def __init__(self, shown: Nodes, paths: list[tuple[str, ...]], depth: int) -> None:
        self.nodes, self.models, self.changes = shown.nodes, shown.models, shown.changes
        self.paths, self.depth = paths, depth
        self.words: dict[str, Box] = {}
        self.letters: dict[str, str] = {}
        pairs = zip(self.nodes, self.models, strict=True)
        modules = enumerate(module_of_node(node, model) for node, model in pairs)
        self.quantized = frozenset(n for n, module in modules if _is_quantized(module))

    def items(
        self, leaves: Sequence[int], prefix: tuple[str, ...], shown: int | None = None
    ) -> tuple[Item, ...]:
        """The items for nodes whose paths all start with `prefix`.

        Args:
            leaves: the nodes.
            prefix: the path of the frame.
            shown: how much of the path the frame around says already.
        """
        level, said = len(prefix), len(prefix) if shown is None else shown
        groups: dict[str, list[int]] = {}
        for leaf in leaves:
            path = self.paths[leaf]
            groups.setdefault(path[level] if len(path) > level + 1 else f"#{leaf}", []).append(leaf)
        if len(groups) == 1 and level and not next(iter(groups)).startswith("#"):
            said = min(said, level - 1)
        items = []
        for name, members in groups.items():
            path = (*prefix, name)
            if name.startswith("#"):
                items.append(self._node(members[0], said))
            elif len(path) >= self.depth or self._is_the_same(members):
                items.append(self._folded(path, members, said))
            else:
                items.append(self._frame(path, members, said))
        return tuple(items)

    def _is_the_same(self, leaves: Sequence[int]) -> bool:
        """Whether two graphs are compared, and no node of a module differs: it need not unfold."""
        if not self.changes or len(leaves) == 1:
            return False
        return all(self.changes[leaf] == SAME for leaf in leaves)

    def _frame(self, path: tuple[str, ...], leaves: list[int], said: int) -> Item:
        if self._children(leaves, len(path)) == 1:
            return self.items(leaves, path, said)[0]
        key, class_name = ".".join(path), self._class_name(path, leaves[0])
        title = shorten(".".join(path[said:]))
        self.words[key] = Box(title, class_name, tooltip=f"{key} ({class_name})")
        width = _text_width(f"{title} {class_name}") + 2 * MARGIN
        return Item(key, tuple(leaves), self.items(leaves, path), width)

    def _children(self, leaves: Sequence[int], level: int) -> int:
        """How many items a frame would have; a module called twice counts twice."""
        paths = {leaf: self.paths[leaf] for leaf in leaves}
        return len({p[: level + 1] if len(p) > level + 1 else leaf for leaf, p in paths.items()})

    def _folded(self, path: tuple[str, ...], leaves: list[int], said: int) -> Item:
        key = ".".join(path)
        title = shorten(".".join(path[said:]))
        class_name = shorten(self._class_name(path, leaves[0]))
        calls = ", ".join(self.nodes[leaf].name for leaf in leaves)
        lines = (class_name, *_count(leaves, self.quantized))
        is_quantized = not self.quantized.isdisjoint(leaves)
        box = Box(title, COLLAPSED, lines, f"{key}: {calls}", is_quantized)
        return self._item(key, leaves, box)

    def _node(self, leaf: int, said: int) -> Item:
        node = self.nodes[leaf]
        model = self.models[leaf]
        row, module = of_node(node, model), module_of_node(node, model)
        is_quantized = _is_quantized(module)
        lines = [] if module is None else [type(module).__name__]
        shape = self.result_shape(node)
        lines += [shape] if shape else []
        lines += list_formats(module) if isinstance(module, QuantizedOperator) else []
        lines += _sparsity(module)
        could = row.is_quantizable and node.op.startswith("call_") and row.kind != Kind.OTHER
        box = Box(
            shorten(".".join(self.paths[leaf][said:])),
            row.kind,
            tuple(map(shorten, lines)),
            _tooltip(node, lines),
            is_quantized,
            bool(self.quantized) and could and not is_quantized and _is_floating(node),
        )
        return self._item(f"#{leaf}", [leaf], box)

    def _item(self, key: str, leaves: list[int], box: Box) -> Item:
        self.words[key] = box = self._compared(leaves, box)
        return box_item(key, leaves, box)

    def _compared(self, leaves: Sequence[int], box: Box) -> Box:
        """With what became of its nodes, where two graphs are compared."""
        if not self.changes:
            return box
        counts = Counter(self.changes[leaf] for leaf in leaves)
        change = CHANGED if len(counts) > 1 else next(iter(counts))
        lines = [f"{counts[each]} {each}" for each in counts] if len(counts) > 1 else []
        title = f"{MARKS[change]}{box.title}"
        return dataclasses.replace(box, title=title, lines=(*box.lines, *lines), change=change)

    def _class_name(self, path: tuple[str, ...], leaf: int) -> str:
        try:
            module: Any = self.models[leaf].get_submodule(".".join(path))
        except AttributeError:
            return ""
        return class_label(module)

    def result_shape(self, node: fx.Node) -> str:
        """The shape of a node's result, sizes of inputs as letters."""
        spec = node.meta.get("spec")
        if isinstance(spec, TensorSpec):
            return self._shape(spec.shape)
        metadata = node.meta.get("mase")
        if isinstance(metadata, MaseMetadata):
            results = list(metadata.common.results.values())
            if len(results) == 1:
                return self._shape(results[0].shape)
        return ""

    def _shape(self, shape: Sequence[int | str]) -> str:
        sizes = [SIZE.sub(self._letter, str(size)) for size in shape]
        return f"({', '.join(sizes)})"

    def _letter(self, match: re.Match[str]) -> str:
        meaning = match.group()
        for letter, known in self.letters.items():
            if known == meaning:
                return letter
        base = "B" if meaning.endswith("[0]") else "T"
        same = sum(letter.startswith(base) for letter in self.letters)
        letter = base if not same else f"{base}{same + 1}"
        self.letters[letter] = meaning
        return letter


def _count(leaves: Sequence[int], quantized: frozenset[int]) -> list[str]:
    inside = len(quantized.intersection(leaves))
    return [f"{len(leaves)} nodes", *([f"{inside} quantized"] if inside else [])]


SIZE = re.compile(r"\w+(\[[^]]*\])?\.shape\[\d+\]")


def _text_width(text: str) -> float:
    """Width in pixels of a line in the small type, a little generous."""
    return len(text) * TEXT_WIDTH


def shorten(text: str, longest: int = LONGEST_TEXT) -> str:
    """The text with its middle left out if it is too long for a box.

    >>> shorten("a_very_long_name_of_a_module", 13)
    'a_very…module'
    """
    if len(text) <= longest:
        return text
    tail = longest // 2
    return f"{text[: longest - tail - 1]}…{text[-tail:]}"


def list_formats(module: QuantizedOperator) -> list[str]:
    """One line per number format: its label and the operands that have it."""
    operands: dict[str, list[str]] = {}
    for operand, number_format in module.spec.items():
        if not number_format.is_identity:
            operands.setdefault(number_format.label, []).append(operand)
    return [f"{label}: {' '.join(names)}" for label, names in operands.items()]


def _is_quantized(module: nn.Module | None) -> bool:
    """False for a float layer that is pruned: its class is there to carry the mask."""
    return isinstance(module, QuantizedOperator) and not module.spec.is_float


def _sparsity(module: nn.Module | None) -> list[str]:
    """The share of its weight, or of what flows through it, that a module leaves out."""
    share = module.sparsity if isinstance(module, PruneActivation) else get_sparsity(module)
    return [] if share is None else [f"{share:.0%} pruned"]


def _tooltip(node: fx.Node, lines: Sequence[str]) -> str:
    called = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    # A picture is passed on, and where a library is installed says nothing elsewhere.
    source = str(node.meta.get("source", "")).rpartition("/site-packages/")[2]
    parts = [node.name, f"{node.op} {called}", *lines, source]
    return "\n".join(part for part in parts if part)


def _is_floating(node: fx.Node) -> bool:
    spec: Any = node.meta.get("spec")
    return not isinstance(spec, TensorSpec) or spec.dtype.is_floating_point
