"""Recorder: a TorchFunctionMode that traces every torch call of a model on fake tensors."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.overrides import TorchFunctionMode

from chop.capture.recording.autocast import AutocastRegions
from chop.capture.recording.eager_output import EagerOutput, check_has_fake_kernel
from chop.capture.recording.eager_probe import EagerReads
from chop.capture.recording.fake_result_cache import FakeCache
from chop.capture.recording.grad_modes import GradModes
from chop.capture.recording.gradient_effects import (
    GRADIENT_HOOKS,
    FrozenTensors,
    refuse_saved_tensor_hooks,
    watch_node,
)
from chop.capture.recording.graph_break import GraphBreak
from chop.capture.recording.graph_writer import GraphWriter
from chop.capture.recording.leaf_attributes import LeafAttributes
from chop.capture.recording.operators import (
    DATA_DEPENDENT_METHODS,
    alias_if_input,
    call_on_fakes,
    contains_tensor,
    replace_numpy_arrays,
)
from chop.capture.recording.random_state import HostRandomState, TorchSeedWatch
from chop.capture.recording.recurrent import RecurrentKernels
from chop.capture.recording.replaced_buffers import ReplacedBuffers
from chop.capture.recording.source import current_line, definition_line, failing_line
from chop.capture.recording.untraced_effects import UntracedEffects, check_buffers
from chop.capture.sizes.data_dependent import DataDependentReads
from chop.capture.sizes.rank_guards import SqueezedRanks
from chop.capture.sizes.slice_guards import guard_slice_bounds, guard_split_count
from chop.capture.sizes.symbols import Sizes, is_symbolic
from chop.capture.tensor_kinds import check_dense
from chop.captured.guards.input_guards import DTYPE, KIND, KIND_FUNCTIONS, LAYOUT, LAYOUT_METHODS
from chop.captured.huggingface.cache import CacheError
from chop.captured.layers.attention import bound_call, multi_head_attention
from chop.captured.leaves import LeafRule, check_traceable, tensors_in
from chop.captured.module_tree import qualified_class
from chop.captured.nodes.targets import mutates_input, normalize_call
from chop.captured.overrides import plain_call
from chop.captured.runtime import AutogradCall, retain_grad
from chop.errors import CaptureError
from chop.private.modules import own_buffers
from chop.private.symbolic_shapes import FakeTensor
from chop.private.torch_api import SET_GRAD_ENABLED

_NOT_RECORDED = frozenset({"requires_grad_", "__deepcopy__", "__reduce_ex__"})


class Recorder(TorchFunctionMode):
    """Records one run of a model into `graph`.

    The mode is off inside the handler of a torch call, so that a function's own implementation is
    not traced: one call of `torch`, `F` or a tensor method becomes one node.

    Args:
        model: the model to record.
        leaves: rule that selects the submodules that become one node.
        symbolic: whether input sizes are dynamic.
        eager_outputs: outputs, in eager runs, of leaves and operators without a fake kernel.
        eager_reads: data-dependent reads of an eager run. A read then returns the same value, and
            the graph checks it at run time.
        before: an earlier recording of the same inputs in the same mode; its answers hold here too.

    Attributes:
        writer: writes the nodes; owns `graph`, `sizes`, `values` and `constants`.
        query_lines: first line that queries the dtype, kind or memory layout of a tensor.
        stateful: modules that keep state in attributes, with the reason; they must not be recorded.
        requires_grad_reads: lines that read `requires_grad` of a computed tensor as False.
        before_write: called with each tensor that is about to be written.
        check_numpy_draws: whether to locate the module that draws from `np.random`.
        training: true in the run in `train()`.
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
        self.writer = writer = GraphWriter(model, symbolic, before.sizes if before else None)
        self.graph, self.values, self.constants = writer.graph, writer.values, writer.constants
        self.sizes: Sizes = writer.sizes
        self.leaf_operators: dict[str, int] = {}
        self.graph_break: GraphBreak | None = None
        self.requires_grad_reads: list[str] = []
        self.query_lines: dict[str, str] = {}
        self.stateful: Mapping[str, str] = {}
        self.before_write: Callable[[Tensor], None] | None = None
        self.check_numpy_draws = False
        self.training = False
        self._leaves = leaves
        self._eager_reads = eager_reads
        self._eager_outputs = {key: iter(seen) for key, seen in (eager_outputs or {}).items()}
        self._recurrent = RecurrentKernels(self.sizes)
        self._fake_cache: FakeCache = (
            before._fake_cache if before and self.sizes.continues else FakeCache()
        )
        self._recording = False
        self._frozen = FrozenTensors(self._running)
        writer.before_read = self._frozen.check
        self._ranks = SqueezedRanks()
        self._seeds = TorchSeedWatch(lambda: self._recording)
        self._operator_count = 0
        self._alias_sources: dict[int, Any] = {}
        self.reads = DataDependentReads(writer.emit, writer.find_node, eager_reads)
        self.regions = AutocastRegions(writer.emit, lambda: self._recording)
        self.grad_modes = GradModes(writer.graph)
        self._replaced = ReplacedBuffers(writer)
        self._paths = {id(module): name for name, module in model.named_modules()}

    # --- inputs

    def add_optional(self, name: str) -> fx.Node:
        """Adds the placeholder of an optional input, whose value is None."""
        return self.graph.create_node("placeholder", name, (None,))

    def emit(self, op: str, target: Any, args: Any, kwargs: Any, result: Any) -> fx.Node:
        """Adds a node without a torch call, see `GraphWriter.emit`."""
        return self.writer.emit(op, target, args, kwargs, result)

    def free_number(self, name: str, example: int) -> Any:
        """Returns a symbolic size that a node computes, see `Sizes.free_number`."""
        return self.sizes.free_number(name, example)

    def untraced(self) -> contextlib.AbstractContextManager[None]:
        """Disables the tracing of torch calls and size tests inside the block."""
        return self._inside_operator() if self._recording else contextlib.nullcontext()

    # --- the run

    def run(self, model: nn.Module, arguments: Mapping[str, Any]) -> None:
        """Runs the model on fake arguments and closes the graph with its result.

        Raises:
            Exception: any error that stopped the run; `graph_break` then has its place.
        """
        # Created here, because a probe of another dtype replaces the model's members by fake ones.
        self._leaf_attributes = LeafAttributes(model, self._leaves, self._running)
        with (
            self._seeds.watch(),
            refuse_saved_tensor_hooks(lambda: self._recording, self.untraced),
            self._leaf_attributes.watch(),
            self.sizes.fake_mode(),
            self,
            self.sizes.evaluated_by(model=True),
        ):
            self._recording = True
            before = {
                name: dict(own_buffers(part)) for name, part in self._leaves.traced_modules(model)
            }
            draws = HostRandomState(numpy=True)
            untraced = UntracedEffects(self._leaves.traced_modules(model), arguments)
            self.writer.before_bind = untraced.check_mode
            try:
                result = model(**arguments)
                draws.check_unmoved()
                self._seeds.check_unset()
                untraced.check()
                self._leaf_attributes.check_called()
                self._frozen.check_restored()
                for name, part in self._leaves.traced_modules(model):
                    self._check_buffers(name, part, before[name])
                self.writer.output(result)
                self._replaced.check()
                self._check_computed_sizes()
            except Exception as error:
                if self.graph_break is None:
                    where = failing_line(error) or "its result"
                    self.graph_break = GraphBreak.at("", where, error)
                raise
            finally:
                self._recording = False

    def _check_computed_sizes(self) -> None:
        for name, where in self.sizes.computed_size_tests():
            raise CacheError(f"the model's control flow depends on the size of {name} at {where}")

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
            # Leaves may draw; their draws must not be attributed to the modules around them.
            draws.restore()
            self._seeds.accept()

    # --- torch calls

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is Tensor.requires_grad_:
            return self._require_grad(func, args, kwargs)
        if self.before_write is not None and (mutates_input(func) or "out" in kwargs):
            # Fake mode runs an operator for real when none of its inputs is fake.
            for tensor in tensors_in([*args[:1], *kwargs.values()]):
                self.before_write(tensor)
                if self._recording and not isinstance(tensor, FakeTensor):
                    # Registered before the write. Afterwards it would look like the result of an
                    # earlier call.
                    self.writer.find_node(tensor)
        if not self._recording:
            self._operator_count += 1
            return func(*args, **kwargs)
        if func is F.multi_head_attention_forward and (given := bound_call(args, kwargs)):
            with self:
                return multi_head_attention(given)
        name = getattr(func, "__name__", "")
        if name in DATA_DEPENDENT_METHODS or (name == "item" and self._eager_reads is not None):
            return self.reads.read(func, name, args, kwargs)
        getter = getattr(getattr(func, "__self__", None), "__name__", "")
        self._ranks.guard_shape_read(getter if name == "__get__" else name, args)
        if name == "__get__":
            return self._get_attribute(func, args)
        if name == "__set__":
            return self._set_attribute(func, args)
        if name in KIND_FUNCTIONS:
            self._guard_on(KIND, args[0])
        if name in LAYOUT_METHODS:
            self._guard_on(LAYOUT, args[0])
        if name in GRADIENT_HOOKS:
            raise CaptureError(f"the model registers a hook on the gradient of a tensor ({name})")
        if name == "__getitem__":
            guard_slice_bounds(*args)
        elif name in ("split", "chunk"):
            guard_split_count(name, args, kwargs)
        func, args, kwargs = replace_numpy_arrays(func, args, kwargs)
        with self._inside_operator():
            returned = self._run_operator(func, args, kwargs)
            check_dense(returned)
            result = alias_if_input(func, args, kwargs, returned)
            self._ranks.record(func, args, kwargs, result)
        if result is not returned:
            self._alias_sources[id(result)] = self._alias_sources.get(id(returned), returned)
        if func is SET_GRAD_ENABLED:
            self.grad_modes.switch(args)
        elif name == "__setitem__":
            self.writer.emit(*normalize_call(func, args, kwargs), args[0])
        elif name == "item":
            if is_symbolic(result):
                self.writer.emit("call_method", "item", args, {}, result)
        elif func is Tensor.retain_grad:
            self.writer.emit("call_function", retain_grad, args, {}, None)
        elif name not in _NOT_RECORDED and (contains_tensor(result) or mutates_input(func)):
            self.writer.emit(*normalize_call(func, args, kwargs), result)
        return result

    def _next_eager_output(self, subject: Any) -> EagerOutput:
        seen = next(self._eager_outputs[subject], None)
        if seen is None:
            raise CaptureError(
                f"{subject} is called more often than in the eager run that provides its output "
                "shapes"
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
        if name == "grad_fn":
            return watch_node(value, lambda: self._recording)
        if isinstance(value, Tensor) and value is not args[0] and name != "grad":
            self.writer.emit("call_function", getattr, (args[0], name), {}, value)
        if name == DTYPE:
            self._guard_on(DTYPE, args[0])
        # Answers of True are checked by real runs without gradients.
        if name == "requires_grad" and not value and self.writer.is_node(args[0]):
            self.requires_grad_reads.append(current_line())
        return value

    def _guard_on(self, what: str, tensor: Tensor) -> None:
        # Models query often, and finding the line takes a walk up the stack.
        if what not in self.query_lines and self.writer.is_node(tensor):
            self.query_lines[what] = current_line()

    def _set_attribute(self, setter: Any, args: Any) -> Any:
        name = getattr(getattr(setter, "__self__", None), "__name__", "")
        if name == "data":
            if self.training and self._replaced.set_data(*args):
                return None
            raise CaptureError("the model replaces the data of a tensor (tensor.data = ...)")
        return self._require_grad(setter, args, {}) if name == "requires_grad" else setter(*args)

    def _require_grad(self, setter: Any, args: Any, kwargs: Any) -> Any:
        name = self.writer.state_name(args[0])
        if name is None or not self._recording:
            return setter(*args, **kwargs)
        with self._inside_operator(), self._frozen.changing(args[0], name):
            return setter(*args, **kwargs)

    # --- module and autograd-function calls

    def _running(self) -> tuple[str, ...]:
        """Paths of the modules whose Python is running, outermost first."""
        return tuple(self.writer.module_stack)

    def call_module(self, original: Any, module: nn.Module, args: Any, kwargs: Any) -> Any:
        """Replaces `nn.Module.__call__` during the recording."""
        path = self._paths.get(id(module))
        original = plain_call(module, original)
        if not self._recording or path is None:
            return original(module, *args, **kwargs)
        if path and self._leaves.is_leaf(module, path):
            return self._call_leaf(original, module, path, args, kwargs)
        cls = type(module)
        self.writer.module_stack[path] = (path, qualified_class(module))
        draws = HostRandomState(self.check_numpy_draws)
        buffers = dict(own_buffers(module))
        try:
            if path:
                check_traceable(module)
            if path in self.stateful:
                raise CaptureError(self.stateful[path])
            result = original(module, *args, **kwargs)
            self._check_buffers(path, module, buffers)
            draws.check_unmoved()
            self._seeds.check_unset()
            # Detected at the exit of the module that caused it, not at the first reader elsewhere.
            for tensor in result if isinstance(result, tuple | list) else (result,):
                if isinstance(tensor, FakeTensor) and not self.writer.is_node(tensor):
                    self.writer.find_node(tensor)
        except Exception as error:
            if self.graph_break is None or self.graph_break.error is not error:
                where = failing_line(error) or definition_line(cls)
                self.graph_break = GraphBreak.at(path, where, error)
            raise
        finally:
            del self.writer.module_stack[path]
        return result

    def _check_buffers(self, path: str, module: nn.Module, before: Mapping[str, Any]) -> None:
        def source(x: Any) -> Any:
            return self._alias_sources.get(id(x), x)

        check_buffers(path, module, before, source, self._replaced.write if self.training else None)

    def _check_recorded(self, result: Any) -> None:
        # Detected at the exit of the module that caused it, not at the first reader elsewhere.
        tensors = result if isinstance(result, tuple | list) else (result,)
        for tensor in tensors:
            if isinstance(tensor, FakeTensor) and not self.writer.is_node(tensor):
                self.writer.find_node(tensor)

    def _call_leaf(
        self, original: Any, module: nn.Module, path: str, args: Any, kwargs: Any
    ) -> Any:
        before = self._operator_count
        written = self.writer.written(args, kwargs)  # as they are before the leaf runs
        self._leaf_attributes.check(module)
        self._frozen.check((*module.parameters(), *module.buffers()))
        with self._paused():
            result = self._leaf_result(original, module, path, args, kwargs)
        self._leaf_attributes.accept(module)
        check_dense(result)
        self.writer.call("call_module", path, *written, result)
        self._ranks.record(None, args, kwargs, result)
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
        """Replaces `autograd.Function.apply`; one node preserves the custom backward pass."""
        if not self._recording:
            return original(function, *args, **kwargs)
        with self._paused():
            result = original(function, *args, **kwargs)
        self.writer.emit("call_function", AutogradCall(function), args, kwargs, result)
        self._ranks.record(None, args, kwargs, result)
        return result
