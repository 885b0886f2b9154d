"""View model of a drawing: boxes, frames and texts of a graph's nodes."""

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
from chop.errors import ConfigError, describe
from chop.ir.drawing.comparison import CHANGED, MARKS, SAME, Nodes, list_nodes, merge
from chop.ir.drawing.hierarchy import Item
from chop.ir.metadata import MaseMetadata
from chop.ir.ops import Kind, get_node_row, module_of_node
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
    """Text of a box or a frame.

    Attributes:
        title: a short name.
        kind: kind of operator, which determines the color.
        lines: further lines: class, shape, formats, sparsity.
        tooltip: the complete description.
        is_quantized: True if a node inside computes in a number format.
        stays_float: True if it could be quantized and is not, in a graph with quantized nodes.
        change: change between two graphs; "" in a picture of one graph.
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
        """Color key: the change in a comparison, otherwise the kind."""
        return self.change or self.kind


@dataclasses.dataclass(frozen=True)
class ViewModel:
    """Graph as boxes and frames before layout.

    Attributes:
        nodes: nodes to draw; `Item.leaves` and `uses` are positions in this list.
        uses: readers of each node's result.
        words: text by key of the item.
        root: boxes within frames.
        hidden: number of omitted nodes that compute sizes.
        letters: meaning of the letters in shapes.
        quantized: nodes that compute in a number format.
        paths: location of each node in the module tree, outermost module first.
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
        """Returns the text of an item, including items that the layout split into several calls."""
        if item.key in self.words:
            return self.words[item.key]
        whole = self.words[item.key.partition("#")[0]]
        if whole.kind != COLLAPSED:
            return whole
        lines = (whole.lines[0], *_count(item.leaves, self.quantized))
        return dataclasses.replace(whole, lines=lines)


def box_item(key: str, leaves: Sequence[int], box: Box) -> Item:
    """Returns a box of the size of its text."""
    widths = [len(box.title) * TITLE_WIDTH, *map(_text_width, box.lines)]
    height = LINE_HEIGHT * (1 + len(box.lines)) + MARGIN
    return Item(key, tuple(leaves), (), max(widths) + 2 * MARGIN, height)


def build_view_model(
    model: CapturedModule, depth: int | None = None, other: CapturedModule | None = None
) -> ViewModel:
    """Builds the boxes and frames of a picture.

    Args:
        model: the captured model.
        depth: levels of modules to unfold; deeper ones become one box. None unfolds up to about
            120 boxes.
        other: second model to compare with; None draws the first only.

    Raises:
        ConfigError: if `depth` is not a positive number.
    """
    if depth is not None and (not isinstance(depth, int) or depth < 1):
        raise ConfigError(
            f"draw: depth is {describe(depth)}, expected 1 or more levels of modules."
        )
    all_nodes = list_nodes(model) if other is None else merge(model, other)
    hidden = _size_arithmetic(model) | (set() if other is None else _size_arithmetic(other))
    visible = _without(all_nodes, hidden)
    paths = [_path(node) for node in visible.nodes]
    writer = _Writer(visible, paths, depth or _fitting_depth(paths))
    count = len(visible.nodes)
    root = Item("", tuple(range(count)), writer.items(range(count), ()))
    hidden_count = len(all_nodes.nodes) - count
    parts = (writer.words, root, hidden_count, writer.letters, writer.quantized, paths)
    return ViewModel(visible.nodes, visible.uses, *parts)


def _without(nodes: Nodes, hidden: set[fx.Node]) -> Nodes:
    visible = [n for n, node in enumerate(nodes.nodes) if node not in hidden]
    number = {n: place for place, n in enumerate(visible)}
    uses = {number[n]: [number[u] for u in nodes.uses[n] if u in number] for n in visible}
    changes = [nodes.changes[n] for n in visible] if nodes.changes else []
    return Nodes(
        [nodes.nodes[n] for n in visible], [nodes.models[n] for n in visible], uses, changes
    )


def _path(node: fx.Node) -> tuple[str, ...]:
    """Returns the location of a node in the module tree: its module's path, or its caller's."""
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
    """Returns the nodes that compute sizes, devices or constants of the mode instead of tensors."""
    sizes: set[fx.Node] = set()
    for node in model.graph.nodes:
        if _is_size(model, node) or (_is_python(node) and sizes.issuperset(node.all_input_nodes)):
            sizes.add(node)
    return sizes


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
    """Builder of the items of a picture and their texts."""

    def __init__(self, nodes: Nodes, paths: list[tuple[str, ...]], depth: int) -> None:
        self.nodes, self.models, self.changes = nodes.nodes, nodes.models, nodes.changes
        self.paths, self.depth = paths, depth
        self.words: dict[str, Box] = {}
        self.letters: dict[str, str] = {}
        pairs = zip(self.nodes, self.models, strict=True)
        modules = enumerate(module_of_node(node, model) for node, model in pairs)
        self.quantized = frozenset(n for n, module in modules if _is_quantized(module))

    def items(
        self, leaves: Sequence[int], prefix: tuple[str, ...], labeled: int | None = None
    ) -> tuple[Item, ...]:
        """Returns the items for nodes whose paths all start with `prefix`.

        Args:
            leaves: the nodes.
            prefix: path of the frame.
            labeled: number of path components that the parent frame displays.
        """
        level, labeled = len(prefix), len(prefix) if labeled is None else labeled
        groups: dict[str, list[int]] = {}
        for leaf in leaves:
            path = self.paths[leaf]
            groups.setdefault(path[level] if len(path) > level + 1 else f"#{leaf}", []).append(leaf)
        if len(groups) == 1 and level and not next(iter(groups)).startswith("#"):
            labeled = min(labeled, level - 1)
        items = []
        for name, members in groups.items():
            path = (*prefix, name)
            if name.startswith("#"):
                items.append(self._node(members[0], labeled))
            elif len(path) >= self.depth or self._is_the_same(members):
                items.append(self._folded(path, members, labeled))
            else:
                items.append(self._frame(path, members, labeled))
        return tuple(items)

    def _is_the_same(self, leaves: Sequence[int]) -> bool:
        """Returns True if these nodes are equal in a comparison, so that they stay folded."""
        if not self.changes or len(leaves) == 1:
            return False
        return all(self.changes[leaf] == SAME for leaf in leaves)

    def _frame(self, path: tuple[str, ...], leaves: list[int], labeled: int) -> Item:
        if self._children(leaves, len(path)) == 1:
            return self.items(leaves, path, labeled)[0]
        key, class_name = ".".join(path), self._class_name(path, leaves[0])
        title = shorten(".".join(path[labeled:]))
        self.words[key] = Box(title, class_name, tooltip=f"{key} ({class_name})")
        width = _text_width(f"{title} {class_name}") + 2 * MARGIN
        return Item(key, tuple(leaves), self.items(leaves, path), width)

    def _children(self, leaves: Sequence[int], level: int) -> int:
        """Counts the items of a frame; a module called twice counts twice."""
        paths = {leaf: self.paths[leaf] for leaf in leaves}
        return len({p[: level + 1] if len(p) > level + 1 else leaf for leaf, p in paths.items()})

    def _folded(self, path: tuple[str, ...], leaves: list[int], labeled: int) -> Item:
        key = ".".join(path)
        title = shorten(".".join(path[labeled:]))
        class_name = shorten(self._class_name(path, leaves[0]))
        calls = ", ".join(self.nodes[leaf].name for leaf in leaves)
        lines = (class_name, *_count(leaves, self.quantized))
        is_quantized = not self.quantized.isdisjoint(leaves)
        box = Box(title, COLLAPSED, lines, f"{key}: {calls}", is_quantized)
        return self._item(key, leaves, box)

    def _node(self, leaf: int, labeled: int) -> Item:
        node = self.nodes[leaf]
        model = self.models[leaf]
        row, module = get_node_row(node, model), module_of_node(node, model)
        is_quantized = _is_quantized(module)
        lines = [] if module is None else [type(module).__name__]
        shape = self.result_shape(node)
        lines += [shape] if shape else []
        lines += list_formats(module) if isinstance(module, QuantizedOperator) else []
        lines += _sparsity(module)
        could = row.is_quantizable and node.op.startswith("call_") and row.kind != Kind.OTHER
        box = Box(
            shorten(".".join(self.paths[leaf][labeled:])),
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
        """Adds the change of the nodes to a box in a comparison."""
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
        """Returns the shape of a node's result, with letters for the sizes of inputs."""
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
    """Estimates the width in pixels of a line in the small type."""
    return len(text) * TEXT_WIDTH


def shorten(text: str, longest: int = LONGEST_TEXT) -> str:
    """Shortens a text in the middle to fit into a box.

    >>> shorten("a_very_long_name_of_a_module", 13)
    'a_very…module'
    """
    if len(text) <= longest:
        return text
    tail = longest // 2
    return f"{text[: longest - tail - 1]}…{text[-tail:]}"


def list_formats(module: QuantizedOperator) -> list[str]:
    """Returns one line per number format: its label and its operands."""
    operands: dict[str, list[str]] = {}
    for operand, number_format in module.spec.items():
        if not number_format.is_identity:
            operands.setdefault(number_format.label, []).append(operand)
    return [f"{label}: {' '.join(names)}" for label, names in operands.items()]


def _is_quantized(module: nn.Module | None) -> bool:
    """Returns whether a module rounds anything; a pruned float layer does not."""
    return isinstance(module, QuantizedOperator) and not module.spec.is_float


def _sparsity(module: nn.Module | None) -> list[str]:
    """Returns the share of masked elements of a module's weight or activations."""
    share = module.sparsity if isinstance(module, PruneActivation) else get_sparsity(module)
    return [] if share is None else [f"{share:.0%} pruned"]


def _tooltip(node: fx.Node, lines: Sequence[str]) -> str:
    called = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    # Pictures are shared, and installation paths mean nothing on other machines.
    source = str(node.meta.get("source", "")).rpartition("/site-packages/")[2]
    parts = [node.name, f"{node.op} {called}", *lines, source]
    return "\n".join(part for part in parts if part)


def _is_floating(node: fx.Node) -> bool:
    spec: Any = node.meta.get("spec")
    return not isinstance(spec, TensorSpec) or spec.dtype.is_floating_point
