"""Captures a model as a graph of module-level nodes.

The model's own Python runs once in `eval()` and once in `train()`, on fake tensors with symbolic
sizes, and every torch call is written down. What cannot be written down becomes a leaf.
"""

from __future__ import annotations

import contextlib
import inspect
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn

from chop.errors import CaptureError, ConfigError, did_you_mean
from chop.ir.captured import CapturedModule, LeafReport, TensorSpec
from chop.ir.cleanup import drop_dead_code, drop_idle_grad_switches
from chop.ir.inputs import dummy_inputs
from chop.ir.isolation import patched_calls, untouched
from chop.ir.leaves import LeafRule, Seen
from chop.ir.modes import ModesDifferError, merge_modes
from chop.ir.module_tree import add_extras, mirror, qualified_class
from chop.ir.observe import observe_leaf
from chop.ir.prepare import settled
from chop.ir.recorder import Blocked, Recorder
from chop.ir.symbols import Sizes

_MOST_ATTEMPTS = 40


class CaptureWarning(UserWarning):
    """A capture hides a part of the model, or differs from it in a way that is said."""


def capture(
    model: nn.Module,
    inputs: Mapping[str, Any] | None = None,
    *,
    input_names: Sequence[str] | None = None,
    leaves: Iterable[type[nn.Module] | str] = (),
    concrete_args: Mapping[str, Any] | None = None,
    strict: bool = False,
) -> CapturedModule:
    """Writes a model down as a graph, without changing it; parameters are shared with the model.

    Args:
        model: any module; it keeps its mode, buffers and random state.
        inputs: example inputs by parameter name of `forward`. Of their sizes the graph keeps only
            what the model's Python tests. None: made from the model's configuration.
        input_names: which inputs become placeholders; None: all of `inputs`.
        leaves: module classes or dotted paths to keep as one node, besides torch's own layers.
        concrete_args: further arguments of `forward`, fixed at capture.
        strict: raise instead of making a leaf of what cannot be written down.

    Returns: the graph, in the model's mode.

    Raises:
        CaptureError: the model (or with `strict` any part of it) cannot be written down.
        ConfigError: a name is not a parameter of `forward` or not a submodule.

    Example:
        >>> graph = capture(nn.Sequential(nn.Linear(4, 2), nn.ReLU()), {"input": torch.ones(3, 4)})
        >>> [node.target for node in graph.graph.nodes]
        ['input', '0', '1', 'output']
    """
    example = _choose_inputs(model, inputs, input_names)
    job = _Job(model, example, dict(concrete_args or {}), LeafRule(model, leaves), strict)
    with settled(model) as notes:
        recording = job.record()
    captured = _assemble(job, recording)
    _announce(job, captured, notes)
    return captured


def _choose_inputs(
    model: nn.Module, inputs: Mapping[str, Any] | None, names: Sequence[str] | None
) -> dict[str, Any]:
    """The example inputs that become placeholders, in the order of the signature."""
    if inputs is None:
        inputs = dummy_inputs(model, names)
    parameters = inspect.signature(model.forward).parameters
    if not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        for name in [*inputs, *(names or ())]:
            if name not in parameters:
                raise ConfigError(
                    f"expected a parameter of {type(model).__name__}.forward, got {name!r}; "
                    f"{did_you_mean(name, parameters)}"
                )
    chosen = set(inputs if names is None else names)
    missing = chosen - inputs.keys()
    if missing:
        made = dummy_inputs(model, sorted(missing))
        inputs = {**inputs, **{name: made[name] for name in missing}}
    order = [*(name for name in parameters if name in chosen)]
    order += [name for name in inputs if name in chosen and name not in parameters]
    return {name: inputs[name] for name in order}


def _widened(example: Mapping[str, Any]) -> dict[str, Any]:
    """The example with a batch of two instead of one, since a size of one is never symbolic."""
    tensors = [value for value in example.values() if isinstance(value, Tensor)]
    if not all(tensor.dim() > 0 and tensor.shape[0] == 1 for tensor in tensors):
        return dict(example)
    return {
        name: value.repeat(2, *[1] * (value.dim() - 1)) if isinstance(value, Tensor) else value
        for name, value in example.items()
    }


def _is_free(tensor: Tensor, dim: int) -> bool:
    """Whether a dimension is symbolic. Images keep their size, their sizes cost too much time."""
    return tensor.shape[dim] > 1 and (dim == 0 or tensor.dim() < 4)


class _StoppedError(Exception):
    """A recording stopped: at which modules, and what was known about sizes by then."""

    def __init__(self, blocked: Sequence[Blocked], sizes: Sizes | None = None) -> None:
        super().__init__(str(blocked[0].error))
        self.blocked = blocked
        self.sizes = sizes


@dataclass
class _Recording:
    """What the two runs wrote down, as one graph."""

    recorder: Recorder
    extras: dict[str, nn.Module]
    eval_only: Blocked | None = None


@dataclass
class _Job:
    """One capture: what to record, and what had to be given up so far."""

    model: nn.Module
    example: dict[str, Any]
    fixed: dict[str, Any]
    leaves: LeafRule
    strict: bool
    symbolic: bool = True
    seen: dict[str, list[Seen]] = field(default_factory=dict)
    given_up: dict[str, Blocked] = field(default_factory=dict)

    def record(self) -> _Recording:
        """Records both modes, giving up one more class of submodules after each failure.

        Raises:
            CaptureError: nothing is left to give up.
        """
        for _ in range(_MOST_ATTEMPTS):
            try:
                return self._record_both()
            except _StoppedError as stop:
                self._give_up(stop)
        raise CaptureError(
            f"{type(self.model).__name__} still cannot be written down with "
            f"{len(self.given_up)} kinds of submodules as leaves; pass an outer one in `leaves`"
        )

    def _record_both(self) -> _Recording:
        recorder = self._record_one(training=False)
        try:
            in_train = self._record_one(training=True)
            extras = merge_modes(recorder.graph, in_train.graph)
        except ModesDifferError as error:
            blocked = [Blocked(path, error.where, error) for path in sorted(error.paths)]
        except _StoppedError as stop:
            if stop.blocked[0].path:
                raise
            blocked = list(stop.blocked)
        else:
            recorder.sizes.add_tests(in_train.sizes)
            return _Recording(recorder, extras)
        inner = [block for block in blocked if block.path]
        if inner:
            raise _StoppedError(inner)
        if self.strict:
            raise CaptureError(_advice(self.model, blocked[0])) from blocked[0].error
        return _Recording(recorder, {}, blocked[0])

    def _record_one(self, training: bool) -> Recorder:
        """One run on fake tensors, after which the model is as before."""
        recorder = Recorder(self.model, self.leaves, self.symbolic, self.seen)
        with contextlib.ExitStack() as stack:
            stack.enter_context(untouched(self.model))
            stack.enter_context(torch.enable_grad())
            stack.enter_context(
                patched_calls(recorder.call_module, recorder.call_autograd_function)
            )
            # Warnings of a run on fake tensors are about fake values.
            stack.enter_context(warnings.catch_warnings())
            warnings.simplefilter("ignore")
            self.model.train(training)
            fakes = {
                name: recorder.add_input(name, value, _is_free)
                for name, value in _widened(self.example).items()
            }
            try:
                recorder.run(self.model, {**fakes, **self.fixed})
            except Exception as error:
                assert recorder.blocked is not None
                raise _StoppedError([recorder.blocked], recorder.sizes) from error
        return recorder

    def _give_up(self, stop: _StoppedError) -> None:
        """Makes the modules at which a recording stopped leaves, or falls back to fixed sizes."""
        for blocked in stop.blocked:
            if blocked.needs_shapes and stop.sizes is not None:
                self.seen[blocked.path] = observe_leaf(
                    self.model, _widened(self.example), self.fixed, blocked.path, stop.sizes
                )
            elif self.strict or not (blocked.path or self.symbolic):
                raise CaptureError(_advice(self.model, blocked)) from blocked.error
            elif not blocked.path:
                self.symbolic = False
                self.given_up[""] = blocked
            else:
                cls = type(self.model.get_submodule(blocked.path))
                self.leaves.add(n for n, m in self.model.named_modules() if type(m) is cls)
                self.given_up[blocked.path] = blocked


def _advice(model: nn.Module, blocked: Blocked) -> str:
    """What stopped a capture, where, and the way out."""
    name = type(model.get_submodule(blocked.path)).__name__
    place = f"{blocked.path} ({name})" if blocked.path else f"the model itself ({name})"
    way_out = (
        f"keep it as one node with leaves=[{blocked.path!r}] (custom_ops in MaseGraph)"
        if blocked.path
        else "move these lines into a submodule, which can be kept as one node"
    )
    return (
        f"{place} cannot be written down as a graph: {type(blocked.error).__name__}: "
        f"{blocked.error}, at {blocked.where}; {way_out}"
    )


# --- the captured module -------------------------------------------------------------------------


def _assemble(job: _Job, recording: _Recording) -> CapturedModule:
    """The recording as a module with the tree of the model."""
    recorder, graph = recording.recorder, recording.recorder.graph
    drop_idle_grad_switches(graph, recorder.values)
    drop_dead_code(graph, job.model, recording.extras)
    _describe_nodes(graph, recorder)
    captured = CapturedModule(type(job.model).__name__)
    called = {str(node.target) for node in graph.nodes if node.op == "call_module"}
    mirror(job.model, captured, job.leaves, called)
    add_extras(captured, recording.extras, recorder.constants)
    if hasattr(job.model, "config"):
        captured.config = job.model.config
    captured.example_inputs = {name: _specs(value) for name, value in job.example.items()}
    captured.fixed_inputs = {
        name: value for name, value in job.fixed.items() if not isinstance(value, Tensor)
    }
    parameters = inspect.signature(job.model.forward).parameters
    captured.ignored_inputs = tuple(name for name in parameters if name not in job.example)
    captured.guards = recorder.sizes.guards()
    captured.auto_leaves = tuple(_reports(job, recorder))
    if recording.eval_only is not None:
        captured.eval_only = f"{recording.eval_only.error} ({recording.eval_only.where})"
    captured.graph = graph
    return captured


def _describe_nodes(graph: fx.Graph, recorder: Recorder) -> None:
    """Leaves plain descriptions of the fake values in the metadata."""

    def describe(value: Any) -> Any:
        if isinstance(value, Tensor):
            return TensorSpec(tuple(map(recorder.sizes.describe, value.shape)), value.dtype)
        if isinstance(value, tuple | list):
            return tuple(map(describe, value))
        if isinstance(value, Mapping):
            return {key: describe(item) for key, item in value.items()}
        return None

    for node in graph.nodes:
        spec = describe(recorder.values.get(node))
        if spec is not None:
            node.meta["spec"] = spec


def _specs(value: Any) -> Any:
    if isinstance(value, Tensor):
        return TensorSpec.of(value)
    if isinstance(value, Mapping):
        return {key: _specs(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return type(value)(_specs(item) for item in value)
    return value


def _reports(job: _Job, recorder: Recorder) -> list[LeafReport]:
    return [
        LeafReport(
            path,
            qualified_class(job.model.get_submodule(path)),
            blocked.where,
            f"{type(blocked.error).__name__}: {blocked.error}",
            recorder.hidden_operators.get(path, 0),
        )
        for path, blocked in job.given_up.items()
        if path
    ]


def _announce(job: _Job, captured: CapturedModule, notes: Sequence[str]) -> None:
    """One warning for everything in which the capture is less than the model."""
    lines = [
        f"{report.path} ({report.class_name}) is one node that hides {report.operators} "
        f"operators: {report.reason}, at {report.where}"
        for report in captured.auto_leaves
        if not isinstance(job.given_up[report.path].error, ModesDifferError)
    ]
    if not job.symbolic:
        blocked = job.given_up[""]
        lines.append(
            f"the sizes of all inputs are fixed: {type(blocked.error).__name__}: "
            f"{blocked.error}, at {blocked.where}"
        )
    if captured.eval_only is not None:
        lines.append(f"the graph holds eval() only: {captured.eval_only}")
    lines += notes
    if lines:
        text = f"capture of {captured.class_name}: " + "\n  ".join(lines)
        warnings.warn(text, CaptureWarning, stacklevel=3)
