"""A captured model: a graph module that copies and pickles, and refuses what it cannot compute."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from chop.errors import CaptureError, GuardError
from chop.ir.capture.guards import ShapeGuard, compile_guard, holds, refusal
from chop.ir.capture.runtime import regions_left
from chop.ir.capture.targets import function_reference, resolve_reference


@dataclass(frozen=True)
class TensorSpec:
    """What a tensor looks like, without its data.

    Args:
        shape: per dimension a size, or an expression of input sizes such as `"x.shape[0]"`.
        dtype: its element type.
        low: the smallest element of an example, where it tells which integers are valid.
        high: the largest.
    """

    shape: tuple[int | str, ...]
    dtype: torch.dtype
    low: int = 0
    high: int = 1

    @classmethod
    def of(cls, tensor: Tensor) -> TensorSpec:
        """Describes an example."""
        shape = tuple(tensor.shape)
        if tensor.is_floating_point() or tensor.is_complex() or tensor.numel() == 0:
            return cls(shape, tensor.dtype)
        return cls(shape, tensor.dtype, int(tensor.min()), int(tensor.max()))

    def dummy(self, generator: torch.Generator | None = None) -> Tensor:
        """A random tensor like the example: normal floats, integers from `low` to `high`.

        Raises:
            CaptureError: a size is an expression.
        """
        sizes = [size for size in self.shape if isinstance(size, int)]
        if len(sizes) != len(self.shape):
            raise CaptureError(f"expected sizes that are numbers, got {self.shape}")
        if self.dtype.is_floating_point or self.dtype.is_complex:
            return torch.randn(sizes, dtype=self.dtype, generator=generator)
        values = torch.randint(self.low, self.high + 1, sizes, generator=generator)
        return values.to(self.dtype)


@dataclass(frozen=True)
class LeafReport:
    """Why a submodule was made a leaf by the capture itself.

    Args:
        path: its dotted path.
        class_name: its class.
        where: `file:line` of what could not be written down.
        reason: what that was.
        operators: how many torch calls the leaf hides.
    """

    path: str
    class_name: str
    where: str
    reason: str
    operators: int


# --- the node list ------------------------------------------------------------------------------


@dataclass(frozen=True)
class NodeRef:
    """Stands for a node inside the arguments of a `NodeRecord`."""

    name: str


@dataclass(frozen=True)
class NodeRecord:
    """One node as plain data.

    Args:
        op: `placeholder`, `get_attr`, `call_function`, `call_method`, `call_module` or `output`.
        name: its unique name.
        target: a dotted path, a method name, or a function as `"module:qualname"`.
        args: plain values and `NodeRef`s in tuples, lists, dicts and slices.
        kwargs: the same by keyword.
    """

    op: str
    name: str
    target: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


def graph_to_nodes(graph: fx.Graph) -> list[NodeRecord]:
    """The nodes of a graph as plain data, in order.

    Raises:
        ValueError: a function target cannot be imported by name.
    """
    return [
        NodeRecord(
            node.op,
            node.name,
            node.target if isinstance(node.target, str) else function_reference(node.target),
            _map_arguments(node.args, fx.Node, lambda value: NodeRef(value.name)),
            _map_arguments(dict(node.kwargs), fx.Node, lambda value: NodeRef(value.name)),
        )
        for node in graph.nodes
    ]


def nodes_to_graph(
    records: Iterable[NodeRecord], resolve: Callable[[str], Any] = resolve_reference
) -> fx.Graph:
    """The graph described by a node list.

    Args:
        records: in an order in which every node comes after those that it reads.
        resolve: finds a function by `"module:qualname"`; pass an own one to restrict what a file
            may name.
    """
    graph = fx.Graph()
    nodes: dict[str, fx.Node] = {}

    def node_of(reference: NodeRef) -> fx.Node:
        return nodes[reference.name]

    for record in records:
        target = resolve(record.target) if record.op == "call_function" else record.target
        nodes[record.name] = graph.create_node(
            record.op,
            target,
            _map_arguments(record.args, NodeRef, node_of),
            _map_arguments(dict(record.kwargs), NodeRef, node_of),
            name=record.name,
        )
    return graph


def _map_arguments(value: Any, kind: type, replace: Callable[[Any], Any]) -> Any:
    """Replaces every value of one kind in nested tuples, lists, dicts and slices."""
    if isinstance(value, kind):
        return replace(value)
    if isinstance(value, slice):
        parts = (value.start, value.stop, value.step)
        return slice(*(_map_arguments(part, kind, replace) for part in parts))
    if isinstance(value, Mapping):
        return {key: _map_arguments(item, kind, replace) for key, item in value.items()}
    if isinstance(value, tuple | list):
        items = (_map_arguments(item, kind, replace) for item in value)
        return tuple(items) if isinstance(value, tuple) else list(items)
    return value


def _check_form(name: str, spec: Any, value: Any) -> None:
    """Raises GuardError where a value has another form than the example: only sizes are free."""
    if isinstance(spec, TensorSpec):
        rank = len(spec.shape)
        same = isinstance(value, Tensor) and value.dim() == rank
        expected = f"a tensor with {rank} dimensions"
    elif isinstance(spec, Mapping):
        same = isinstance(value, Mapping) and value.keys() == spec.keys()
        expected = f"the keys {', '.join(map(str, spec))}"
    elif isinstance(spec, tuple | list):
        same = isinstance(value, tuple | list) and len(value) == len(spec)
        expected = f"{len(spec)} values"
    else:
        same, expected = spec == value, repr(spec)
    if not same:
        came = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)
        raise GuardError(
            f"captured for {name} as {expected}, got {came}; capture the model again with such "
            "an example"
        )
    if isinstance(spec, Mapping | tuple | list):
        for key in spec if isinstance(spec, Mapping) else range(len(spec)):
            _check_form(f"{name}[{key!r}]", spec[key], value[key])


# --- the module ---------------------------------------------------------------------------------

_NOT_STATE = ("_graph", "_code", "_lineno_map", "_prologue_start", "_compiled_guards")
_KEPT_META = ("spec", "nn_module_stack", "source")


class CapturedModule(fx.GraphModule):
    """The graph of a model together with the model's module tree.

    Call it like the model. Inputs of the model that were not captured are accepted by keyword and
    dropped; inputs of a shape that the graph was not captured for are refused. After a change of
    `graph` call `recompile()`.

    Attributes:
        example_inputs: a `TensorSpec` per captured input (nested like the input).
        ignored_inputs: the model's other parameters.
        fixed_inputs: arguments that were fixed at capture, by name.
        guards: the conditions on input sizes.
        auto_leaves: reports on submodules that could not be written down.
        always_eval: submodules that the model's own `train()` leaves in `eval()`.
        eval_only: why `train()` is not in the graph; None where it is.
        config: the model's configuration, if it has one.
        class_name: the model's class.

    Raises:
        GuardError: from a call, see above.
    """

    example_inputs: dict[str, Any]
    ignored_inputs: tuple[str, ...]
    fixed_inputs: dict[str, Any]
    guards: list[ShapeGuard]
    auto_leaves: tuple[LeafReport, ...]
    always_eval: tuple[str, ...]
    eval_only: str | None
    class_name: str

    def __init__(self, class_name: str) -> None:
        super().__init__(nn.Module(), fx.Graph(), class_name)
        self.class_name = class_name
        self.example_inputs = {}
        self.ignored_inputs = ()
        self.fixed_inputs = {}
        self.guards = []
        self.auto_leaves = ()
        self.always_eval = ()
        self.eval_only = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the graph; see the class for what is dropped and what is refused."""
        accepted = {
            name: value
            for name, value in kwargs.items()
            if name in self.example_inputs or not self._drops(name, value)
        }
        if torch.compiler.is_compiling():
            return super().__call__(*args, **accepted)
        self._check_inputs(args, accepted)
        # A `no_grad` or autocast region in the graph ends by a node; an error on the way must not
        # leave gradients off, nor may a call inside the caller's own region leave them on.
        with torch.set_grad_enabled(torch.is_grad_enabled()), regions_left():
            return super().__call__(*args, **accepted)

    def train(self, mode: bool = True) -> CapturedModule:
        """Switches the mode; modules that the model itself keeps in `eval()` stay there."""
        super().train(mode)
        for path in self.always_eval:
            self.get_submodule(path).eval()
        return self

    def _drops(self, name: str, value: Any) -> bool:
        if name not in self.fixed_inputs:
            return name in self.ignored_inputs
        fixed = self.fixed_inputs[name]
        if not isinstance(value, Tensor) and value != fixed:
            raise GuardError(
                f"captured with {name}={fixed!r}, got {name}={value!r}; capture the model again "
                "with the other value"
            )
        return True

    def _check_inputs(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        names = list(self.example_inputs)
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        missing = [name for name in names if name not in given]
        if missing:
            raise GuardError(
                f"captured with the inputs {', '.join(names)}; {', '.join(missing)} did not come. "
                "Pass them, or capture the model without them"
            )
        for name, spec in self.example_inputs.items():
            _check_form(name, spec, given[name])
        if self.training and self.eval_only is not None:
            raise GuardError(f"captured for eval() only: {self.eval_only}")
        for guard, code in zip(self.guards, self._guard_codes(), strict=True):
            if not holds(code, given):
                raise GuardError(refusal(guard, given))

    def _guard_codes(self) -> list[Any]:
        cached = self.__dict__.get("_compiled_guards")
        if cached is None or len(cached) != len(self.guards):
            cached = self.__dict__["_compiled_guards"] = list(map(compile_guard, self.guards))
        return cached

    # torch.fx copies and unpickles a graph module by tracing its code again, which renames nodes,
    # loses metadata and fails on sizes; the node list is the graph.

    def _plain_state(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in _NOT_STATE}

    def __reduce__(self) -> Any:
        meta = [
            {key: node.meta[key] for key in _KEPT_META if key in node.meta}
            for node in self.graph.nodes
        ]
        return _unpickled, (
            _plain_class(self),
            self._plain_state(),
            graph_to_nodes(self.graph),
            meta,
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> CapturedModule:
        twin = memo[id(self)] = _bare(_plain_class(self))
        twin.__dict__.update(copy.deepcopy(self._plain_state(), memo))
        twin.graph = copy.deepcopy(self.graph)
        return twin


def _plain_class(module: CapturedModule) -> type[CapturedModule]:
    # torch.fx gives every graph module a class of its own, which holds its `forward`.
    return type(module).__mro__[1]


def _bare(cls: type[CapturedModule]) -> CapturedModule:
    module = cls.__new__(cls)
    nn.Module.__init__(module)
    return module


def _unpickled(
    cls: type[CapturedModule],
    state: dict[str, Any],
    records: list[NodeRecord],
    meta: list[dict[str, Any]],
) -> CapturedModule:
    module = _bare(cls)
    module.__dict__.update(state)
    module.graph = nodes_to_graph(records)
    for node, kept in zip(module.graph.nodes, meta, strict=True):
        node.meta.update(kept)
    return module
