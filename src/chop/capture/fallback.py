"""Fallback after graph breaks: traces again with more leaves or fewer dynamic sizes."""

from __future__ import annotations

import contextlib
import enum
import warnings
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn

from chop.capture.dead_code import eliminate_autocast, eliminate_grad_modes
from chop.capture.huggingface.patches import (
    broadcast_masks,
    keep_autocast_regions,
    patch_mask_sizes,
)
from chop.capture.merge_branches import merge_branches
from chop.capture.merge_modes import ModesDifferError, merge_modes
from chop.capture.recording.autocast import trace_autocast
from chop.capture.recording.eager_output import EagerOutput
from chop.capture.recording.eager_probe import probe_outputs, probe_reads
from chop.capture.recording.grad_modes import trace_grad_modes
from chop.capture.recording.graph_break import GraphBreak, MissingFakeKernelError
from chop.capture.recording.random_state import NumpyRandomError
from chop.capture.recording.recorder import Recorder
from chop.capture.recording.script_functions import run_scripts_as_python
from chop.capture.sizes.size_functions import size_arithmetic
from chop.capture.sizes.symbols import Sizes
from chop.captured.dtype_constants import (
    AmbiguousDtypeError,
    DtypeProbe,
    dtype_probes,
    float_dtypes,
    has_dtype_constants,
)
from chop.captured.huggingface.cache import (
    CacheError,
    Caching,
    trace_positions,
    traced_cache,
)
from chop.captured.huggingface.cache_names import POSITIONS
from chop.captured.layers.transformers_of_torch import disable_fast_path
from chop.captured.leaves import LeafRule, has_gradient_hooks, tensors_in
from chop.captured.module_tree import member_paths
from chop.captured.state.preserve_state import patched_calls, preserve_state
from chop.captured.state.python_state import Key, PythonState
from chop.errors import CaptureError
from chop.private.modules import GRADIENT_HOOKS

_MAX_ATTEMPTS = 40


def _with_batch_of_two(example: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the example with batch size 2 instead of 1, since sizes of one are never symbolic."""
    tensors = [value for value in example.values() if isinstance(value, Tensor)]
    if not all(tensor.dim() > 0 and tensor.shape[0] == 1 for tensor in tensors):
        return dict(example)
    return {
        name: value.repeat(2, *[1] * (value.dim() - 1)) if isinstance(value, Tensor) else value
        for name, value in example.items()
    }


class DynamicDims(enum.Enum):
    """Rule that selects the dynamic dimensions of the inputs."""

    ALL = enum.auto()
    BATCH = enum.auto()
    NONE = enum.auto()

    def __call__(self, tensor: Tensor, dim: int) -> bool:
        """Returns whether a dimension is dynamic. Image sizes are static to save capture time."""
        first_only = self is DynamicDims.BATCH or tensor.dim() >= 4
        return (
            self is not DynamicDims.NONE and tensor.shape[dim] > 1 and (dim == 0 or not first_only)
        )


class _GraphBreakError(Exception):
    """Interrupted recording: the modules at which it stopped, and the sizes known so far."""

    def __init__(self, graph_breaks: Sequence[GraphBreak], sizes: Sizes | None = None) -> None:
        super().__init__(str(graph_breaks[0].error))
        self.graph_breaks = graph_breaks
        self.sizes = sizes


@dataclass
class Recording:
    """Pair of recordings in `eval()` and `train()`, merged into one graph.

    Args:
        recorder: the recording in `eval()`, which holds the graph.
        extras: modules that the graph adds to the model, by path.
        graphs: graphs of both recordings.
        eval_only: reason why there is no recording in `train()`.
        branches: the recording in `train()`, if its nodes differ from those in `eval()`.
    """

    recorder: Recorder
    extras: dict[str, nn.Module]
    graphs: tuple[fx.Graph, ...]
    eval_only: GraphBreak | None = None
    branches: Recorder | None = None


@dataclass
class Fallback:
    """State of one capture: its leaves, and its restrictions so far.

    The first attempt records everything with symbolic sizes. A submodule that stops the recording
    becomes a leaf, together with all modules of its class, and the recording restarts. If the
    model's own `forward` stops it, data-dependent decisions are taken as on the example and checked
    at run time. The next steps fix all sizes except the batch size, then the batch size as well.

    Args:
        model: the model.
        example: its example inputs, in the order of the placeholders.
        fixed: further arguments of `forward`.
        leaves: rule for the modules to keep whole; it grows.
        strict: raise instead of falling back.
        stateful: modules that keep state in attributes, with the reason why no graph can represent
            them.
        mutated_buffers: buffers that the model's Python reads and its forward writes.
        eager_outputs: outputs of leaves and of operators without a fake kernel, in each mode.
        earlier: the last recording of each kind.
        changed_in_training: attributes that the recording in `train()` changed.
        caching: the optional inputs, if one of them is a key-value cache.
        keeps_ones: sizes of one stay one, because the model takes another path at size two.
    """

    model: nn.Module
    example: dict[str, Any]
    fixed: dict[str, Any]
    leaves: LeafRule
    strict: bool
    dynamic_dims: DynamicDims = DynamicDims.ALL
    specialize_reads: bool = False
    eager_outputs: dict[Any, tuple[list[EagerOutput], ...]] = field(default_factory=dict)
    graph_breaks: dict[str, GraphBreak] = field(default_factory=dict)
    probes: list[DtypeProbe] = field(default_factory=list)
    stateful: dict[str, str] = field(default_factory=dict)
    mutated_buffers: set[str] = field(default_factory=set)
    changed_in_training: set[Key] = field(default_factory=set)
    check_numpy_draws: bool = False
    earlier: dict[Any, Recorder] = field(default_factory=dict, repr=False)
    caching: Caching | None = None
    keeps_ones: bool = False

    def __post_init__(self) -> None:
        self.probes = dtype_probes(self.model)

    def record(self) -> Recording:
        """Records both modes and makes one more class of submodules a leaf after each failure.

        Raises:
            CaptureError: no fallback remains.
        """
        for _ in range(_MAX_ATTEMPTS):
            try:
                return self._record_modes()
            except _GraphBreakError as stop:
                self._fall_back(stop)
        raise CaptureError(
            f"{type(self.model).__name__} cannot be captured, even with "
            f"{len(self.graph_breaks)} classes of submodules as leaves; pass an outer module in "
            "`leaves`"
        )

    def _record_modes(self) -> Recording:
        recorder = self._record_mode(training=False)
        try:
            in_train, extras = self._record_training(recorder)
        except ModesDifferError as error:
            graph_breaks = [GraphBreak(path, error.where, error) for path in sorted(error.paths)]
            switches = [block for block in graph_breaks if is_mode_switch(self.model, block)]
            if switches:
                raise _GraphBreakError(switches) from error
            return self._record_branches(recorder)
        except _GraphBreakError as stop:
            # A submodule can still become a leaf; only the model's own forward leaves no other way.
            if stop.graph_breaks[0].path:
                raise
            first = stop.graph_breaks[0]
        else:
            recorder.sizes.add_guards(in_train.sizes)
            return Recording(recorder, extras, (recorder.graph, in_train.graph))
        if self.strict:
            raise CaptureError(_break_message(self.model, first)) from first.error
        return Recording(recorder, {}, (recorder.graph,), first)

    def _record_branches(self, recorder: Recorder) -> Recording:
        """Returns the recording in `eval()`, extended by nodes that only `train()` has."""
        in_train = self._record_mode(training=True)
        for run, training in ((recorder, False), (in_train, True)):
            if not self._note_dtypes(run, training):
                self.probes = []
            eliminate_grad_modes(run.graph, run.values)
            eliminate_autocast(run.graph, run.values)
        extras = merge_branches(recorder, in_train, member_paths(self.model))
        return Recording(recorder, extras, (recorder.graph, in_train.graph), branches=in_train)

    def _record_training(self, recorder: Recorder) -> tuple[Recorder, dict[str, nn.Module]]:
        """Merges the recording in `train()` into the one in `eval()` and returns the added modules.

        It uses another dtype if that shows which constants follow the dtype of the model.
        """
        if not has_dtype_constants(recorder.graph, float_dtypes(self.model)):
            in_train = self._record_mode(training=True)
            return in_train, self._merged(recorder, in_train)
        # One recording answers two questions: mode-dependent and dtype-dependent constants.
        for probe in self.probes:
            try:
                in_train = self._record_mode(training=True, probe=probe)
                merged = self._merged(recorder, in_train, probe)
                return in_train, merged
            except ModesDifferError as error:
                graph_breaks = [GraphBreak(path, error.where, error) for path in error.paths]
                if all(is_mode_switch(self.model, block) for block in graph_breaks):
                    raise
                break
            except (_GraphBreakError, AmbiguousDtypeError):
                continue
        in_train = self._record_mode(training=True)
        merged = self._merged(recorder, in_train)
        self.probes = []
        return in_train, merged

    def _note_dtypes(self, run: Recorder, training: bool) -> bool:
        """Marks the constants of a recording that follow the model's dtype, if known."""
        if not has_dtype_constants(run.graph, float_dtypes(self.model)):
            return True
        for probe in self.probes:
            try:
                self._merged(run, self._record_mode(training, probe), probe)
            except (ModesDifferError, _GraphBreakError, AmbiguousDtypeError):
                continue
            return True
        return False

    def _merged(
        self, recorder: Recorder, in_train: Recorder, probe: DtypeProbe | None = None
    ) -> dict[str, nn.Module]:
        taken = member_paths(self.model)
        return merge_modes(recorder.graph, in_train.graph, probe, recorder.values, taken)

    def _record_mode(self, training: bool, probe: DtypeProbe | None = None) -> Recorder:
        """Runs the model once on fake tensors and restores it."""
        eager_reads = None
        if self.specialize_reads:
            eager_reads = probe_reads(self.model, self.example, self.fixed, training)
        symbolic = self.dynamic_dims is not DynamicDims.NONE
        key = (training, self.dynamic_dims, probe)
        recorder = Recorder(
            self.model,
            self.leaves,
            symbolic,
            {subject: outputs[training] for subject, outputs in self.eager_outputs.items()},
            eager_reads,
            self.earlier.get(key),
        )
        self.earlier[key] = recorder
        recorder.stateful, recorder.reads.mutated_buffers = self.stateful, self.mutated_buffers
        recorder.check_numpy_draws, recorder.training = self.check_numpy_draws, training
        with_cache = None if self.caching is None else recorder
        with contextlib.ExitStack() as stack:
            run = stack.enter_context(preserve_state(self.model, thorough=True, on_fakes=True))
            recorder.before_write = run.tensors.copy_before_write
            run.tensors.separate_views()
            stack.enter_context(torch.enable_grad())
            stack.enter_context(
                patched_calls(recorder.call_module, recorder.call_autograd_function)
            )
            stack.enter_context(trace_autocast(recorder.regions))
            stack.enter_context(trace_grad_modes(recorder.grad_modes))
            stack.enter_context(broadcast_masks())
            stack.enter_context(patch_mask_sizes(recorder.sizes, with_cache))
            stack.enter_context(keep_autocast_regions())
            stack.enter_context(disable_fast_path())
            stack.enter_context(run_scripts_as_python())
            stack.enter_context(size_arithmetic())
            # The captured module runs the model's own gradient hooks, so the graph must not.
            for hooks in GRADIENT_HOOKS:
                setattr(self.model, hooks, OrderedDict())
            # Warnings of a run on fake tensors are about fake values.
            stack.enter_context(warnings.catch_warnings())
            warnings.simplefilter("ignore")
            # Some models keep what they computed in eval() until the next train(); such a leftover
            # would end up in the graph as a constant.
            self.model.train().train(training)
            example = self._traced_example()
            if probe is not None:
                stack.enter_context(probe.fake_members(self.model, recorder.writer.fake_member))
                example = probe.cast(example)
            before = PythonState(self.model)
            recorder.reads.model_tensors = before.tensors
            fakes = self._fakes(example, recorder)
            try:
                recorder.run(self.model, {**fakes, **self.fixed})
            except CacheError:
                raise
            except Exception as error:
                assert recorder.graph_break is not None
                if self.check_numpy_draws or not isinstance(error, NumpyRandomError):
                    recorder.graph_break.names = {
                        str(symbol): str(name) for symbol, name in recorder.sizes.names().items()
                    }
                    raise _GraphBreakError([recorder.graph_break], recorder.sizes) from error
                self.check_numpy_draws = True
            else:
                self.changed_in_training |= before.changed() if training else set()
                return recorder
        # The next recording checks every module for draws, to find the one that draws.
        return self._record_mode(training, probe)

    def _fakes(self, example: Mapping[str, Any], recorder: Recorder) -> dict[str, Any]:
        """Adds the placeholders, optional ones last, and returns their fake values."""
        fakes = {
            name: recorder.writer.add_input(name, value, self.dynamic_dims)
            for name, value in example.items()
            if self.caching is None or name not in self.caching.optional
        }
        if self.caching is not None:
            nodes = {name: recorder.add_optional(name) for name in self.caching.optional}
            cache = self.caching.cache
            fakes[cache] = traced_cache(example[cache], nodes[cache], recorder)
            if POSITIONS in nodes:
                fakes[POSITIONS] = trace_positions(nodes[POSITIONS], fakes, self.caching, recorder)
        return fakes

    def _fall_back(self, stop: _GraphBreakError) -> None:
        """Makes the modules at which a recording stopped leaves, or fixes more sizes."""
        if self._has_grown() and not self._runs_on_traced_example():
            # A first dimension of one may be the channels of an unbatched image instead of a batch.
            self.keeps_ones = True
            return
        for graph_break in stop.graph_breaks:
            subject = _needs_shapes(graph_break)
            if subject is not None and stop.sizes is not None:
                self.eager_outputs[subject] = self._probed(subject, stop.sizes)
            elif is_mode_switch(self.model, graph_break):
                self._add_leaves(graph_break)
            elif self.strict or not (graph_break.path or self.dynamic_dims is not DynamicDims.NONE):
                first = self.graph_breaks.get("", graph_break)
                raise CaptureError(_break_message(self.model, first)) from first.error
            elif not graph_break.path:
                # The order of the steps keeps as much freedom as possible: answers first, then
                # sizes.
                self._specialize_more()
                self.graph_breaks.setdefault("", graph_break)
            else:
                self._add_leaves(graph_break)

    def _probed(self, subject: Any, sizes: Sizes) -> tuple[list[EagerOutput], ...]:
        """Returns the results of a leaf or an operator in `eval()` and in `train()`."""
        example = self._traced_example()
        in_eval = probe_outputs(self.model, example, self.fixed, subject, sizes)
        with contextlib.suppress(CaptureError):
            # Some models need labels in training.
            return in_eval, probe_outputs(self.model, example, self.fixed, subject, sizes, True)
        return in_eval, in_eval

    def _has_grown(self) -> bool:
        """Returns whether the recording has a size of two in place of a one in the example."""
        pairs = zip(tensors_in(self.example), tensors_in(self._traced_example()), strict=True)
        return any(given.shape != traced.shape for given, traced in pairs)

    def _runs_on_traced_example(self) -> bool:
        traced = self._traced_example()
        with preserve_state(self.model, thorough=True), torch.no_grad():
            self.model.eval()
            try:
                self.model(**{**traced, **self.fixed})
            except Exception:  # the model may raise any error
                return False
        return True

    def keep_ones(self) -> bool:
        """Keeps sizes of one in later recordings; returns False if that changes nothing.

        Some models take a different path at batch size 1 than at 2.
        """
        has_grown, self.keeps_ones = self._has_grown(), True
        return has_grown

    def give_up(self, graph_break: GraphBreak) -> None:
        """Makes a leaf of a module whose recording differs from the model.

        Raises:
            CaptureError: it is the model itself, or a leaf already.
        """
        path = graph_break.path
        known = not path or self.leaves.is_leaf(self.model.get_submodule(path), path)
        if self.strict or known:
            raise CaptureError(_break_message(self.model, graph_break))
        self._add_leaves(graph_break)

    def _specialize_more(self) -> None:
        if self.specialize_reads:
            self.dynamic_dims = (
                DynamicDims.BATCH if self.dynamic_dims is DynamicDims.ALL else DynamicDims.NONE
            )
        self.specialize_reads = True

    def _traced_example(self) -> dict[str, Any]:
        as_given = self.keeps_ones or self.dynamic_dims is DynamicDims.NONE
        return dict(self.example) if as_given else _with_batch_of_two(self.example)

    def _add_leaves(self, graph_break: GraphBreak) -> None:
        self.leaves.add(path for path, _ in same_class_modules(self.model, graph_break.path))
        self.graph_breaks[graph_break.path] = graph_break


def _needs_shapes(graph_break: GraphBreak) -> Any:
    """Returns the leaf or operator whose output shapes require an eager run."""
    if isinstance(graph_break.error, MissingFakeKernelError):
        return graph_break.error.operator
    return graph_break.path if graph_break.needs_shapes else None


def same_class_modules(model: nn.Module, path: str) -> list[tuple[str, nn.Module]]:
    """Returns all submodules of the same class, which become leaves together.

    A module with hooks on its gradients is returned on its own.
    """
    one = model.get_submodule(path)
    return [
        (name, module)
        for name, module in model.named_modules()
        if type(module) is type(one) and has_gradient_hooks(module) == has_gradient_hooks(one)
    ]


def is_mode_switch(model: nn.Module, graph_break: GraphBreak) -> bool:
    """Returns whether a leaf only switches between modes, like a DropPath without parameters."""
    only_mode = isinstance(graph_break.error, ModesDifferError) and bool(graph_break.path)
    return only_mode and not any(True for _ in model.get_submodule(graph_break.path).parameters())


def _break_message(model: nn.Module, graph_break: GraphBreak) -> str:
    """Describes where and why a capture stopped, and suggests a remedy."""
    name = type(model.get_submodule(graph_break.path)).__name__
    place = f"{graph_break.path} ({name})" if graph_break.path else f"the model itself ({name})"
    way_out = (
        f"keep it as one node with leaves=[{graph_break.path!r}] (custom_ops in MaseGraph)"
        if graph_break.path
        else "move these lines into a submodule, which can be kept as one node"
    )
    return f"{place} cannot be captured as a graph: {graph_break}; {way_out}"
