"""Builder of a graph beside another: nodes, and the modules and constants that they need."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, fx, nn

from chop.captured.guards.shape_guards import ShapeGuard
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

SAVED_METADATA = ("nn_module_stack", "source")


class GraphBuilder:
    """Nodes of a new graph; each stands beside a node of the old one, whose path it takes.

    Args:
        mg: the old graph.
    """

    def __init__(self, mg: MaseGraph) -> None:
        self._mg = mg
        self._members: dict[str, nn.Module | Tensor] = {}
        self.graph = fx.Graph()

    def placeholder(self, like: fx.Node) -> fx.Node:
        """The same input."""
        return self._create(like, "placeholder", str(like.target), like.args, {}, like.name)

    def call_module(
        self, like: fx.Node, module: nn.Module, inputs: tuple[fx.Node, ...], suffix: str = ""
    ) -> fx.Node:
        """A call of a new module, at the path of `like` or, with a suffix, beside it."""
        path = self._add(like, module, suffix)
        return self._create(like, "call_module", path, inputs, {}, like.name + suffix)

    def constant(self, like: fx.Node, value: Tensor, suffix: str = "") -> fx.Node:
        """A buffer of the graph."""
        path = self._add(like, value, suffix)
        return self._create(like, "get_attr", path, (), {}, like.name + suffix)

    def again(self, like: fx.Node, read: Callable[[fx.Node], Any]) -> fx.Node:
        """The same call with other arguments: what `read` makes of the nodes in the old ones."""
        target = like.target
        if like.op == "call_module":
            module = self._mg.get_module(like)
            assert module is not None
            target = self._add(like, module, "")
        args = fx.node.map_arg(like.args, read)
        kwargs = fx.node.map_arg(like.kwargs, read)
        return self._create(like, like.op, target, args, kwargs, like.name)

    def call_method(self, like: fx.Node, method: str, *args: Any) -> fx.Node:
        """A call of a method of a tensor."""
        return self._create(like, "call_method", method, args, {}, f"{like.name}_{method}")

    def install(self, sizes: Mapping[str, tuple[int | None, ...]], where: str) -> None:
        """Puts the new graph in the place of the old one.

        Args:
            sizes: those of inputs that are fixed, by name; None leaves one free.
            where: the pass that fixes them.
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

    def note_examples(self, example: Mapping[str, Any]) -> None:
        """Records an example as that of the graph's inputs."""
        specs = self._mg.model.record.example_inputs
        for name, value in example.items():
            if name in specs and isinstance(value, Tensor):
                specs[name] = TensorSpec.of(value)

    def _add(self, like: fx.Node, member: nn.Module | Tensor, suffix: str) -> str:
        if like.op in ("call_module", "get_attr"):
            path = str(like.target)
        else:
            stack = list(like.meta.get("nn_module_stack") or ())
            path = f"{stack[-1]}.{like.name}" if stack and stack[-1] else like.name
        path += suffix
        while path in self._members:
            path += "_"
        self._members[path] = member
        return path

    def _create(
        self, like: fx.Node, op: str, target: Any, args: Any, kwargs: Any, name: str
    ) -> fx.Node:
        node = self.graph.create_node(op, target, tuple(args), dict(kwargs), name=name)
        node.meta.update({key: like.meta[key] for key in SAVED_METADATA if key in like.meta})
        return node
