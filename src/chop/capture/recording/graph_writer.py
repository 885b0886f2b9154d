"""Graph writer: turns fake tensors and sizes into nodes, constants and members into names."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, fx, nn

from chop.base.nested import check_leaf, child_getter, child_name, tree_children, tree_rebuild
from chop.capture.recording.arguments import ArgumentWriter
from chop.capture.recording.source import current_line
from chop.capture.sizes.symbols import Sizes, get_constant, is_symbolic
from chop.errors import CaptureError
from chop.private.modules import own_buffers, own_children, own_parameters


class GraphWriter:
    """Writer of a run on fake tensors into `graph`.

    Tensors are identified by `id`. Every tensor is kept alive so that no `id` is reused.

    Args:
        model: its parameters and buffers are read by name.
        symbolic: whether input sizes are dynamic.
        before: sizes of an earlier recording of the same inputs in the same mode.

    Attributes:
        values: fake value of each node.
        constants: tensors that the model created outside of the recording, by name.
        module_stack: running modules by path, with their classes.
        before_bind: called before the result of a node is registered.
        before_read: called with a parameter, buffer or constant that a node is about to read.
    """

    def __init__(self, model: nn.Module, symbolic: bool, before: Sizes | None) -> None:
        self.graph = fx.Graph()
        self.sizes: Sizes = Sizes(self.graph, symbolic, before)
        self.values: dict[fx.Node, Any] = {}
        self.constants: dict[str, Tensor] = {}
        self.module_stack: dict[str, tuple[str, str]] = {}
        self.before_bind: Callable[[], None] | None = None
        self.before_read: Callable[[Iterable[Tensor]], None] | None = None
        self._nodes: dict[int, fx.Node] = {}
        self._alive: list[Any] = []
        self._attributes: dict[str, fx.Node] = {}
        self._arguments = ArgumentWriter(self.graph, self.sizes, self.find_node)
        self._state_names: dict[int, str] = {}
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            self._state_names.setdefault(id(tensor), name)
        self._taken_names = {*own_parameters(model), *own_buffers(model), *own_children(model)}

    def is_node(self, tensor: Tensor) -> bool:
        """Returns whether a tensor is the result of a node."""
        return id(tensor) in self._nodes

    def state_name(self, tensor: Tensor) -> str | None:
        """Returns the name of a parameter or buffer of the model; None for other tensors."""
        return self._state_names.get(id(tensor))

    def add_input(self, name: str, value: Any, is_dynamic: Callable[[Tensor, int], bool]) -> Any:
        """Adds a placeholder and returns its fake value (tensors or nested lists and dicts)."""
        node = self.graph.placeholder(name)
        self.values[node] = fake = self._fake_input(name, value, node, is_dynamic)
        return fake

    def _fake_input(
        self, name: str, value: Any, node: fx.Node, is_dynamic: Callable[[Tensor, int], bool]
    ) -> Any:
        if isinstance(value, Tensor):
            fake = self.sizes.fake_input(name, value, is_dynamic)
            self._arguments.follow_device(value.device, node)
            self._bind(fake, node)
            return fake
        parts = tree_children(value)
        if parts is None:
            check_leaf(name, value)
            return value
        fakes = {}
        for key, part in parts.items():
            reader = self.graph.call_function(child_getter(value), (node, key))
            fakes[key] = self._fake_input(child_name(value, name, key), part, reader, is_dynamic)
        return tree_rebuild(value, fakes)

    def fake_member(self, tensor: Tensor, dtype: torch.dtype) -> Tensor:
        """Returns a fake of another dtype that represents a parameter or buffer."""
        fake = self.sizes.fake_member(tensor, dtype)
        self._state_names[id(fake)] = self._state_names[id(tensor)]
        self._alive.append(fake)
        return fake

    def find_node(self, tensor: Tensor) -> fx.Node:
        """Returns the node of a tensor: a result, a parameter or buffer, or a constant.

        Raises:
            CaptureError: the origin of the tensor is unknown.
        """
        node = self._nodes.get(id(tensor))
        if node is not None:
            return node
        name = self._state_names.get(id(tensor))
        if name is None:
            name = self._name_constant(tensor)
        if self.before_read is not None:
            self.before_read((tensor,))
        if name not in self._attributes:
            self._attributes[name] = self.graph.get_attr(name)
            self.values[self._attributes[name]] = tensor
        return self._attributes[name]

    def _name_constant(self, tensor: Tensor) -> str:
        constant = get_constant(tensor)
        if constant is None:
            raise CaptureError(
                f"a tensor of shape {tuple(tensor.shape)} comes from an operation that was not "
                "recorded (TorchScript, vmap or compiled code, or state of an earlier call)"
            )
        if constant.grad_fn is not None:
            raise CaptureError(
                f"a tensor of shape {tuple(tensor.shape)} was computed from parameters in an "
                "earlier call; as a constant of the graph it would not follow them"
            )
        number = len(self.constants)
        while (name := f"_tensor_constant{number}") in self._taken_names:
            number += 1
        self._taken_names.add(name)
        self.constants[name] = constant
        self._state_names[id(tensor)] = name
        self._alive.append(tensor)
        return name

    def emit(self, op: str, target: Any, args: Any, kwargs: Any, result: Any) -> fx.Node:
        """Adds a node with the model's line, and returns the result.

        Args:
            op: kind of the node.
            target: its target.
            args: as the model passed them.
            kwargs: keyword arguments, as the model passed them.
            result: result of the call.
        """
        return self.call(op, target, *self.written(args, kwargs), result)

    def written(self, args: Any, kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Returns the arguments in the form that a node holds."""
        named = {name: self._arguments.write(value) for name, value in kwargs.items()}
        return tuple(map(self._arguments.write, args)), named

    def call(self, op: str, target: Any, args: Any, kwargs: Any, result: Any) -> fx.Node:
        """Adds a node with arguments that are already converted, and returns the result."""
        node = self.graph.create_node(op, target, args, kwargs)
        node.meta["nn_module_stack"] = dict(self.module_stack)
        node.meta["source"] = current_line()
        self._bind(result, node)
        return node

    def output(self, result: Any) -> None:
        """Closes the graph with the model's result."""
        self.graph.output(self._arguments.write(result))

    def _bind(self, value: Any, node: fx.Node) -> None:
        if self.before_bind is not None:
            self.before_bind()
        self.values.setdefault(node, value)
        if isinstance(value, Tensor):
            self._nodes[id(value)] = node
            self._alive.append(value)
            self.sizes.bind(value, node)
        elif is_symbolic(value):
            self.sizes.bind_number(value, node)
        elif isinstance(value, Mapping):
            for key, item in value.items():
                self._bind_part(item, operator.getitem, node, key)
        elif isinstance(value, tuple | list):
            for index, item in enumerate(value):
                self._bind_part(item, operator.getitem, node, index)
        elif dataclasses.is_dataclass(value):
            for field in dataclasses.fields(value):
                self._bind_part(getattr(value, field.name), getattr, node, field.name)

    def _bind_part(self, part: Any, function: Any, node: fx.Node, key: Any) -> None:
        structured = isinstance(part, Tensor | tuple | list | Mapping) or is_symbolic(part)
        if structured or (dataclasses.is_dataclass(part) and not isinstance(part, type)):
            reader = self.graph.call_function(function, (node, key))
            reader.meta.update(node.meta)
            self._bind(part, reader)
