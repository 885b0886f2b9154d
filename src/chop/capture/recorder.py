"""Recorder: a TorchFunctionMode that traces every torch call of a model on fake tensors."""

from __future__ import annotations

import contextlib
import dataclasses
import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.overrides import TorchFunctionMode

from chop.capture.arguments import ArgumentWriter
from chop.capture.autocast import AutocastRegions
from chop.capture.data_dependent import DataDependentReads
from chop.capture.eager_probe import EagerReads
from chop.capture.fake_cache import FakeCache
from chop.capture.graph_break import GraphBreak
from chop.capture.input_guards import DTYPE, LAYOUT, LAYOUT_METHODS
from chop.capture.leaves import (
    EagerOutput,
    LeafRule,
    check_has_fake_kernel,
    check_traceable,
    tensors_in,
)
from chop.capture.operators import (
    DATA_DEPENDENT_METHODS,
    alias_if_input,
    call_on_fakes,
    contains_tensor,
    from_numpy_arrays,
)
from chop.capture.pytree import check_leaf, child_getter, child_name, tree_children, tree_rebuild
from chop.capture.random_state import HostRandomState, TorchSeedWatch
from chop.capture.recurrent import RecurrentKernels
from chop.capture.runtime import AutogradCall, retain_grad
from chop.capture.slice_guards import guard_slice_bounds, guard_split_count
from chop.capture.source import current_line, definition_line, failing_line
from chop.capture.symbolic_api import FakeTensor
from chop.capture.symbols import Sizes, constant_of, is_symbolic
from chop.capture.targets import mutates_input, normalize_call
from chop.capture.torch_private import SET_GRAD_ENABLED
from chop.capture.untraced_effects import UntracedEffects
from chop.errors import CaptureError

_GRADIENT_HOOKS = frozenset({"register_hook", "register_post_accumulate_grad_hook"})

_NOT_RECORDED = frozenset({"requires_grad_", "__deepcopy__", "__reduce_ex__"})


class Recorder(TorchFunctionMode):
    """Records one run of a model into `graph`.

    Inside the handler of a torch call the mode is off, so that a function's own implementation is
    not descended into: one call of `torch`, `F` or a tensor method becomes one node. A tensor is
    known by its identity, and every tensor that was seen is kept alive, so that no identity is
    reused.

    Args:
        model: the model to record.
        leaves: which submodules become one node.
        symbolic: whether sizes of inputs are free.
        eager_outputs: outputs, in eager runs, of leaves and operators without a fake kernel.
        eager_reads: data-dependent reads of an eager run. With them a read returns the same value,
            and the graph checks at run time that it still holds.
        before: an earlier recording of the same inputs in the same mode; its answers hold here too.

    Attributes:
        asked: the first line that asks for the dtype or the memory layout of a computed tensor.
        stateful: modules that keep state in attributes, with the reason: none may be recorded.
        asked_for_gradients: lines that read `requires_grad` of a computed tensor as False.
        before_write: called with each tensor that is about to be written.
        check_numpy_draws: whether to find the module that draws from `np.random`.
    """

    def __init__(
        self,
        model: nn.Module,
        leaves: LeafRule,
        symbolic: bool = True,
        eager_outputs: Mapping[Any, list[EagerOutput]] | None = None,
        eager_reads: EagerReads | None = None,
        before: Recorder | None = None,
    ) -> None:
        super().__init__()
        self.graph = fx.Graph()
        self.sizes: Sizes = Sizes(self.graph, symbolic, before.sizes if before else None)
        self.values: dict[fx.Node, Any] = {}
        self.constants: dict[str, Tensor] = {}
        self.leaf_operators: dict[str, int] = {}
        self.graph_break: GraphBreak | None = None
        self.requires_grad_reads: list[str] = []
        self.asked: dict[str, str] = {}
        self.stateful: Mapping[str, str] = {}
        self.before_write: Callable[[Tensor], None] | None = None
        self.check_numpy_draws = False
        self._leaves = leaves
        self._eager_reads = eager_reads
        self._eager_outputs = {
            subject: iter(outputs) for subject, outputs in (eager_outputs or {}).items()
        }
        self._recurrent = RecurrentKernels(self.sizes)
        self._fake_cache: FakeCache = (
            before._fake_cache if before and self.sizes.continues else FakeCache()
        )
        self._recording = False
        self._seeds = TorchSeedWatch(lambda: self._recording)
        self._untraced: UntracedEffects | None = None
        self._operator_count = 0
        self._nodes: dict[int, fx.Node] = {}
        self._kept_alive: list[Any] = []
        self._alias_sources: dict[int, Any] = {}
        self._attributes: dict[str, fx.Node] = {}
        self.reads = DataDependentReads(self._emit, self._node_of, eager_reads)
        self.regions = AutocastRegions(self._emit, lambda: self._recording)
        self._arguments = ArgumentWriter(self.graph, self.sizes, self._node_of)
        self._module_stack: dict[str, tuple[str, str]] = {}
        self._paths = {id(module): name for name, module in model.named_modules()}
        self._state_names: dict[int, str] = {}
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            self._state_names.setdefault(id(tensor), name)
        self._taken_names = {*model._parameters, *model._buffers, *model._modules}

    def fake_member(self, tensor: Tensor, dtype: torch.dtype) -> Tensor:
        """A fake of another dtype that is known by the name of a parameter or buffer."""
        with self.sizes.fake_mode():
            fake = torch.empty_strided(
                tensor.size(), tensor.stride(), dtype=dtype, device=tensor.device
            )
            if isinstance(tensor, nn.Parameter):
                fake = nn.Parameter(fake, tensor.requires_grad)
        self._state_names[id(fake)] = self._state_names[id(tensor)]
        self._kept_alive.append(fake)
        return fake

    # --- inputs and the run

    def add_input(self, name: str, value: Any, is_dynamic: Callable[[Tensor, int], bool]) -> Any:
        """Makes a placeholder and returns its fake value (tensors nested in lists or dicts too)."""
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

    def run(self, model: nn.Module, arguments: Mapping[str, Any]) -> None:
        """Runs the model on fake arguments and closes the graph with its result.

        Raises:
            Exception: whatever stopped the run; `graph_break` then says where.
        """
        with (
            self._seeds.watched(),
            self.sizes.fake_mode(),
            self,
            self.sizes.evaluated_by(model=True),
        ):
            self._recording = True
            before = {
                name: dict(part._buffers) for name, part in self._leaves.traced_modules(model)
            }
            draws = HostRandomState(numpy=True)
            self._untraced = UntracedEffects(self._leaves.traced_modules(model), arguments)
            try:
                result = model(**arguments)
                draws.check_unmoved()
                self._seeds.check_unset()
                self._untraced.check()
                for name, part in self._leaves.traced_modules(model):
                    self._check_buffers(name, part, before[name])
                self.graph.output(self._arguments.write(result))
            except Exception as error:
                if self.graph_break is None:
                    self.graph_break = GraphBreak("", failing_line(error) or "its result", error)
                raise
            finally:
                self._recording = False

    @contextlib.contextmanager
    def _inside_operator(self) -> Iterator[None]:
        self._recording = False
        try:
            with self.sizes.evaluated_by(model=False):
                yield
        finally:
            self._recording = True

    @contextlib.contextmanager
    def _paused(self) -> Iterator[None]:
        draws = HostRandomState(self.check_numpy_draws)
        try:
            with self._inside_operator():
                yield
        finally:
            # Draws inside a leaf are its own affair; the modules around it have not drawn.
            draws.restore()
            self._seeds.accept()

    # --- tensors as nodes

    def _node_of(self, tensor: Tensor) -> fx.Node:
        node = self._nodes.get(id(tensor))
        if node is not None:
            return node
        name = self._state_names.get(id(tensor))
        if name is None:
            name = self._name_constant(tensor)
        if name not in self._attributes:
            self._attributes[name] = self.graph.get_attr(name)
            self.values[self._attributes[name]] = tensor
        return self._attributes[name]

    def _name_constant(self, tensor: Tensor) -> str:
        constant = constant_of(tensor)
        if constant is None:
            raise CaptureError(
                f"a tensor of shape {tuple(tensor.shape)} comes from an operation that was not "
                "recorded (TorchScript, vmap or compiled code, or state of an earlier call)"
            )
        if constant.grad_fn is not None:
            raise CaptureError(
                f"a tensor of shape {tuple(tensor.shape)} was computed from parameters in an "
                "earlier call; as a constant it would not follow them"
            )
        number = len(self.constants)
        while (name := f"_tensor_constant{number}") in self._taken_names:
            number += 1
        self._taken_names.add(name)
        self.constants[name] = constant
        self._state_names[id(tensor)] = name
        self._kept_alive.append(tensor)
        return name

    # --- results as nodes

    def _emit(self, op: str, target: Any, args: Any, kwargs: Any, result: Any) -> fx.Node:
        arguments = tuple(map(self._arguments.write, args))
        named = {name: self._arguments.write(value) for name, value in kwargs.items()}
        node = self.graph.create_node(op, target, arguments, named)
        node.meta["nn_module_stack"] = dict(self._module_stack)
        node.meta["source"] = current_line()
        self._bind(result, node)
        return node

    def _bind(self, value: Any, node: fx.Node) -> None:
        if self._untraced is not None:
            self._untraced.check_mode()
        self.values.setdefault(node, value)
        if isinstance(value, Tensor):
            self._nodes[id(value)] = node
            self._kept_alive.append(value)
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

    # --- torch calls

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.before_write is not None and (mutates_input(func) or "out" in kwargs):
            # Fake mode runs an operator for real when none of its inputs is fake.
            for tensor in tensors_in([*args[:1], *kwargs.values()]):
                self.before_write(tensor)
        if not self._recording:
            self._operator_count += 1
            return func(*args, **kwargs)
        name = getattr(func, "__name__", "")
        if name in DATA_DEPENDENT_METHODS or (name == "item" and self._eager_reads is not None):
            return self.reads.read(func, name, args, kwargs)
        if name == "__get__":
            return self._get_attribute(func, args)
        if name == "__set__":
            return self._set_attribute(func, args)
        if name in LAYOUT_METHODS:
            self._guard_on(LAYOUT, args[0])
        if name in _GRADIENT_HOOKS:
            raise CaptureError(f"the model hooks the gradient of a tensor ({name})")
        if name == "__getitem__":
            guard_slice_bounds(*args)
        elif name in ("split", "chunk"):
            guard_split_count(name, args, kwargs)
        func, args, kwargs = from_numpy_arrays(func, args, kwargs)
        with self._inside_operator():
            returned = self._run_operator(func, args, kwargs)
            result = alias_if_input(func, args, kwargs, returned)
        if result is not returned:
            self._alias_sources[id(result)] = self._alias_sources.get(id(returned), returned)
        if func is SET_GRAD_ENABLED:
            self.graph.call_function(func, args)
        elif name == "__setitem__":
            self._emit(*normalize_call(func, args, kwargs), args[0])
        elif name == "item":
            if is_symbolic(result):
                self._emit("call_method", "item", args, {}, result)
        elif func is Tensor.retain_grad:
            self._emit("call_function", retain_grad, args, {}, None)
        elif name not in _NOT_RECORDED and (contains_tensor(result) or mutates_input(func)):
            self._emit(*normalize_call(func, args, kwargs), result)
        return result

    def _next_eager_output(self, subject: Any) -> EagerOutput:
        seen = next(self._eager_outputs[subject], None)
        if seen is None:
            raise CaptureError(
                f"{subject} is called more often than in a real run in eval(), which had to show "
                "the shapes that it returns"
            )
        return seen

    def _run_operator(self, func: Any, args: Any, kwargs: Any) -> Any:
        if func in self._eager_outputs:
            return self._next_eager_output(func).as_fake(self.sizes, tensors_in([*args, kwargs]))
        rule = self._recurrent.rule(func)
        return self._fake_cache.call(func, args, kwargs, lambda: call_on_fakes(rule, args, kwargs))

    def _get_attribute(self, getter: Any, args: Any) -> Any:
        value = getter(*args)
        name = getattr(getattr(getter, "__self__", None), "__name__", "")
        if isinstance(value, Tensor) and value is not args[0] and name != "grad":
            self._emit("call_function", getattr, (args[0], name), {}, value)
        if name == DTYPE:
            self._guard_on(DTYPE, args[0])
        # Real runs without gradients check what was recorded for a tensor that requires one.
        if name == "requires_grad" and not value and id(args[0]) in self._nodes:
            self.requires_grad_reads.append(current_line())
        return value

    def _guard_on(self, what: str, tensor: Tensor) -> None:
        # Models ask often, and finding the line takes a walk up the stack.
        if what not in self.asked and id(tensor) in self._nodes:
            self.asked[what] = current_line()

    def _set_attribute(self, setter: Any, args: Any) -> Any:
        if getattr(getattr(setter, "__self__", None), "__name__", "") == "data":
            raise CaptureError("the model replaces the data of a tensor (tensor.data = ...)")
        return setter(*args)

    # --- module and autograd-function calls

    def call_module(self, original: Any, module: nn.Module, args: Any, kwargs: Any) -> Any:
        """Replaces `nn.Module.__call__` while the recording lasts."""
        path = self._paths.get(id(module))
        if not self._recording or path is None:
            return original(module, *args, **kwargs)
        if path and self._leaves.is_leaf(module, path):
            return self._call_leaf(original, module, path, args, kwargs)
        cls = type(module)
        self._module_stack[path] = (path, f"{cls.__module__}.{cls.__qualname__}")
        draws = HostRandomState(self.check_numpy_draws)
        buffers = dict(module._buffers)
        try:
            if path:
                check_traceable(module)
            if path in self.stateful:
                raise CaptureError(self.stateful[path])
            result = original(module, *args, **kwargs)
            self._check_buffers(path, module, buffers)
            draws.check_unmoved()
            self._seeds.check_unset()
            self._check_recorded(result)
        except Exception as error:
            if self.graph_break is None or self.graph_break.error is not error:
                where = failing_line(error)
                self.graph_break = GraphBreak(path, where or definition_line(cls), error)
            raise
        finally:
            del self._module_stack[path]
        return result

    def _check_buffers(self, path: str, module: nn.Module, before: Mapping[str, Any]) -> None:
        # A graph has no node that binds a name of a module; its state would never move.
        for name, buffer in module._buffers.items():
            old = before.get(name)
            if buffer is not old and self._alias_sources.get(id(buffer), buffer) is not old:
                full = f"{path}.{name}" if path else name
                raise CaptureError(
                    f"the model replaces its buffer {full} while it runs; a graph can only write "
                    f"into a buffer (self.{name}.copy_(...))"
                )

    def _check_recorded(self, result: Any) -> None:
        # Found at the exit of the module that made it, and not at its first reader elsewhere.
        tensors = result if isinstance(result, tuple | list) else (result,)
        for tensor in tensors:
            if isinstance(tensor, FakeTensor) and id(tensor) not in self._nodes:
                self._node_of(tensor)

    def _call_leaf(
        self, original: Any, module: nn.Module, path: str, args: Any, kwargs: Any
    ) -> Any:
        before = self._operator_count
        arguments = tuple(map(self._arguments.write, args))
        named = {name: self._arguments.write(value) for name, value in kwargs.items()}
        with self._paused():
            result = self._leaf_result(original, module, path, args, kwargs)
        node = self.graph.call_module(path, arguments, named)
        node.meta["nn_module_stack"] = dict(self._module_stack)
        node.meta["source"] = current_line()
        self._bind(result, node)
        hidden = self._operator_count - before
        self.leaf_operators[path] = max(self.leaf_operators.get(path, 0), hidden)
        return result

    def _leaf_result(
        self, original: Any, module: nn.Module, path: str, args: Any, kwargs: Any
    ) -> Any:
        if path in self._eager_outputs:
            seen = self._next_eager_output(path)
            self._operator_count += seen.operators
            sources = [*tensors_in([*args, kwargs]), *module.parameters()]
            return seen.as_fake(self.sizes, sources)
        if isinstance(module, nn.RNNBase):
            return self._recurrent.outputs(module, *args, **kwargs)
        try:
            check_has_fake_kernel(module)
            return self._fake_cache.call_module(
                module, args, kwargs, lambda: original(module, *args, **kwargs)
            )
        except Exception as error:
            where = failing_line(error) or current_line()
            self.graph_break = GraphBreak(path, where, error, needs_shapes=True)
            raise

    def call_autograd_function(self, original: Any, function: type, args: Any, kwargs: Any) -> Any:
        """Replaces `autograd.Function.apply`: one node, so that the backward stays as written."""
        if not self._recording:
            return original(function, *args, **kwargs)
        with self._paused():
            result = original(function, *args, **kwargs)
        self._emit("call_function", AutogradCall(function), args, kwargs, result)
        return result
