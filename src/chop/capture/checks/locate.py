"""Locator of a mismatch: the first node of a capture whose result differs from the model's."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.overrides import TorchFunctionMode

from chop.capture.checks.dry_run import run_once
from chop.capture.checks.self_check import Mismatch
from chop.capture.recording.graph_break import GraphBreak
from chop.capture.recording.random_state import seed_unusually
from chop.capture.recording.source import current_line, definition_line
from chop.captured.leaves import tensors_in
from chop.captured.module import CapturedModule
from chop.captured.module_tree import Scope
from chop.captured.state.preserve_state import patched_calls, preserve_state
from chop.errors import CaptureError

_SAME = 1e-4

_OUTPUT = "output"

_Fingerprint = tuple[tuple[int, ...], float, float]
"""Fingerprint of a tensor: its shape, and the mean and maximum of its absolute values."""


def locate(
    model: nn.Module, captured: CapturedModule, arguments: Mapping[str, Any], mismatch: Mismatch
) -> GraphBreak:
    """Returns the module and line of the first node whose result no eager call on that line had.

    If only gradients differ, it is the last node that reads a parameter with another gradient.

    Args:
        model: the model; it is restored.
        captured: its capture.
        arguments: arguments of a call on which they differ, including fixed ones.
        mismatch: difference to locate.
    """
    place = _last_reader(captured, mismatch.parameters)
    if place is None:
        place = _first_difference(model, captured, arguments, mismatch.training)
    path, where = place or ("", definition_line(type(model)))
    return GraphBreak(path, where, CaptureError(str(mismatch)))


def _last_reader(captured: CapturedModule, parameters: Collection[str]) -> tuple[str, str] | None:
    """Returns the place of the last node that reads one of the parameters."""
    # Gradients flow backwards, so an error at the last reader is the first one on their way.
    for node in reversed(captured.graph.nodes) if parameters else ():
        read = {str(x.target) for x in node.all_input_nodes if x.op == "get_attr"}
        if node.op == "call_module":
            inner = captured.get_submodule(str(node.target)).named_parameters(str(node.target))
            read.update(name for name, _ in inner)
        if "source" in node.meta and not read.isdisjoint(parameters):
            return _place(node)
    return None


def _place(node: fx.Node) -> tuple[str, str]:
    """Returns the module whose Python created a node, and the line."""
    return next(reversed(node.meta.get("nn_module_stack", {"": None})), ""), node.meta["source"]


def _first_difference(
    model: nn.Module, captured: CapturedModule, arguments: Mapping[str, Any], training: bool
) -> tuple[str, str] | None:
    seen = _EagerResults(captured)
    tried = contextlib.suppress(Exception)
    with tried, preserve_state(model, thorough=True) as run, torch.no_grad():
        model.train(training)
        with patched_calls(seen.call_module, seen.call_autograd_function), seen:
            seen.given[_OUTPUT] += map(_fingerprint, run_once(model, arguments, run).outputs)
    reader = _FirstDifference(captured, seen)
    with tried, preserve_state(captured, thorough=True), torch.no_grad():
        captured.train(training)
        # The same seed as that of the eager run, so that dropout masks agree.
        seed_unusually()
        reader.run(*(arguments.get(node.target) for node in reader.placeholders))
    return reader.difference


class _EagerResults(TorchFunctionMode):
    """Results of torch calls and leaves in an eager run, by the line of the model."""

    def __init__(self, captured: CapturedModule) -> None:
        super().__init__()
        self.given: dict[str, list[_Fingerprint]] = defaultdict(list)
        self.prints: dict[str, list[_Fingerprint]] = defaultdict(list)
        self._leaves = {
            id(module) for module in captured.modules() if not isinstance(module, Scope)
        }
        self._inside = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self._record_call(func, *args, **(kwargs or {}))

    def call_module(self, original: Any, module: nn.Module, args: Any, kwargs: Any) -> Any:
        """Replaces `nn.Module.__call__` during the run."""
        if id(module) in self._leaves:
            return self._record_call(original, module, *args, **kwargs)
        return original(module, *args, **kwargs)

    def call_autograd_function(self, original: Any, function: type, args: Any, kwargs: Any) -> Any:
        """Replaces `autograd.Function.apply` during the run."""
        return self._record_call(original, function, *args, **kwargs)

    def _record_call(self, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        # Only the outermost call counts: the graph has one node for it.
        if self._inside:
            return function(*args, **kwargs)
        self._inside = True
        try:
            where = current_line()
            self.given[where] += map(_fingerprint, tensors_in([args, kwargs]))
            result = function(*args, **kwargs)
            self.prints[where] += map(_fingerprint, tensors_in(result))
        finally:
            self._inside = False
        return result


class _FirstDifference(fx.Interpreter):
    """Interpreter that stops at the first node that fails or whose values no eager call had."""

    def __init__(self, captured: CapturedModule, seen: _EagerResults) -> None:
        super().__init__(captured)
        self.difference: tuple[str, str] | None = None
        self.placeholders = [node for node in captured.graph.nodes if node.op == "placeholder"]
        self._seen = seen

    def run_node(self, n: fx.Node) -> Any:
        """Returns the result of a node.

        Raises:
            CaptureError: the node is the first that differs.
        """
        where = _OUTPUT if n.op == "output" else n.meta.get("source")
        # Nodes without a line were added by the capture and have no counterpart in the model.
        if where is None:
            return super().run_node(n)
        for source in n.all_input_nodes:
            # The model computed something else before it reached this line.
            if "source" in source.meta and not _are_in(self.env[source], self._seen.given[where]):
                self._stop(source)
        try:
            result = super().run_node(n)
        except Exception:
            self._stop(n)
        if n.op != "output" and not _are_in(result, self._seen.prints[where]):
            self._stop(n)
        return result

    def _stop(self, node: fx.Node) -> None:
        self.difference = _place(node)
        raise CaptureError("a difference")


def _are_in(value: Any, known: list[_Fingerprint]) -> bool:
    return all(any(_same(_fingerprint(x), other) for other in known) for x in tensors_in(value))


def _fingerprint(tensor: Tensor) -> _Fingerprint:
    values = tensor.detach()
    values = values if values.layout is torch.strided else values.to_dense()
    values = (values.abs() if values.is_complex() else values).double().abs().nan_to_num()
    if values.numel() == 0:
        return tuple(tensor.shape), 0.0, 0.0
    # These values identify a result well enough to place a difference, and take no memory.
    return tuple(tensor.shape), float(values.mean()), float(values.max())


def _same(one: _Fingerprint, other: _Fingerprint) -> bool:
    (shape, *values), (other_shape, *others) = one, other
    close = (abs(a - b) <= _SAME * max(1.0, abs(b)) for a, b in zip(values, others, strict=True))
    return shape == other_shape and all(close)
