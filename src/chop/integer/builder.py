"""Builder of a new graph that mirrors an existing one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, fx, nn

from chop.captured.guards.shape_guards import ShapeGuard, compile_guard
from chop.captured.module_tree import Scope
from chop.captured.specs import TensorSpec
from chop.ir.graph import MaseGraph
from chop.private.modules import (
    class_label,
    not_persistent,
    own_buffers,
    own_children,
    own_members,
)

COPIED_METADATA = ("nn_module_stack", "source")


class GraphBuilder:
    """Builds a new graph. Each new node takes the module path of a node of the old graph.

    Args:
        mg: the old graph.
    """

    def __init__(self, mg: MaseGraph) -> None:
        self._mg = mg
        self._members: dict[str, nn.Module | Tensor] = {}
        self.graph = fx.Graph()

    def placeholder(self, like: fx.Node) -> fx.Node:
        """Adds the same input."""
        return self._create(like, "placeholder", str(like.target), like.args, {}, like.name)

    def call_module(
        self, like: fx.Node, module: nn.Module, inputs: tuple[fx.Node, ...], suffix: str = ""
    ) -> fx.Node:
        """Adds a call of a new module at the path of `like`, with an optional suffix."""
        path = self._add(like, module, suffix)
        return self._create(like, "call_module", path, inputs, {}, like.name + suffix)

    def constant(self, like: fx.Node, value: Tensor, suffix: str = "") -> fx.Node:
        """Adds a buffer of the graph."""
        path = self._add(like, value, suffix)
        return self._create(like, "get_attr", path, (), {}, like.name + suffix)

    def again(self, like: fx.Node, read: Callable[[fx.Node], Any]) -> fx.Node:
        """Adds the same call with arguments mapped by `read`."""
        target = like.target
        if like.op == "call_module":
            module = self._mg.get_module(like)
            assert module is not None
            target = self._add(like, module, "")
        args = fx.node.map_arg(like.args, read)
        kwargs = fx.node.map_arg(like.kwargs, read)
        return self._create(like, like.op, target, args, kwargs, like.name)

    def call_method(self, like: fx.Node, method: str, *args: Any) -> fx.Node:
        """Adds a call of a tensor method."""
        return self._create(like, "call_method", method, args, {}, f"{like.name}_{method}")

    def install(self, sizes: Mapping[str, tuple[int | None, ...]], where: str) -> None:
        """Replaces the old graph with the new one.

        Args:
            sizes: fixed input sizes by name; None for a variable size.
            where: pass that fixes the sizes, for messages.
        """
        model: Any = self._mg.model
        names = {path: class_label(module) for path, module in model.named_modules()}
        for members in own_members(model):
            members.clear()
        not_persistent(model).clear()
        for path, member in self._members.items():
            parent = model
            *scopes, name = path.split(".")
            for depth, scope in enumerate(scopes, 1):
                inside = ".".join(scopes[:depth])
                parent = own_children(parent).setdefault(scope, Scope(names.get(inside, "Module")))
            home: dict[str, Any] = (
                own_buffers(parent) if isinstance(member, Tensor) else own_children(parent)
            )
            home[name] = member
        guards = [
            ShapeGuard(f"{name}.shape[{dim}] == {size}", where)
            for name, shape in sizes.items()
            for dim, size in enumerate(shape)
            if size is not None
        ]
        record = model.record
        record.guards = [*guards, *record.guards]
        record.constants = record.always_eval = ()
        record.follows_dtype = {}
        model.__dict__.pop("_compiled_guards", None)
        self._mg.fx_graph = self.graph
        model.eval()

    def drop_unread_inputs(self) -> None:
        """Removes the inputs without readers, and conditions on their sizes."""
        nodes = [node for node in self.graph.nodes if node.op == "placeholder"]
        unread = {str(node.target): node for node in nodes if not node.users}
        record = self._mg.model.record
        for name, node in unread.items():
            self.graph.erase_node(node)
            del record.example_inputs[name]
        record.guards = [
            guard
            for guard in record.guards
            if unread.keys().isdisjoint(compile_guard(guard).co_names)
        ]

    def note_examples(self, example: Mapping[str, Any]) -> None:
        """Records an example of the graph's inputs."""
        specs = self._mg.model.record.example_inputs
        for name, value in example.items():
            if name in specs and isinstance(value, Tensor):
                specs[name] = TensorSpec.of(value)

    def path(self, like: fx.Node, suffix: str = "") -> str:
        """Returns the path of the next module or buffer at the path of `like`."""
        if like.op in ("call_module", "get_attr"):
            path = str(like.target)
        else:
            stack = list(like.meta.get("nn_module_stack") or ())
            path = f"{stack[-1]}.{like.name}" if stack and stack[-1] else like.name
        path += suffix
        while path in self._members:
            path += "_"
        return path

    def _add(self, like: fx.Node, member: nn.Module | Tensor, suffix: str) -> str:
        path = self.path(like, suffix)
        self._members[path] = member
        return path

    def _create(
        self, like: fx.Node, op: str, target: Any, args: Any, kwargs: Any, name: str
    ) -> fx.Node:
        node = self.graph.create_node(op, target, tuple(args), dict(kwargs), name=name)
        node.meta.update({key: like.meta[key] for key in COPIED_METADATA if key in like.meta})
        return node
