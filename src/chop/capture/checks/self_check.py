"""Self-check: compares a fresh capture with the eager runs of its model."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from chop.capture.checks.dry_run import Call, DryRun, run_eagerly, run_once
from chop.capture.checks.effort import multiply_adds_per_node
from chop.capture.checks.gradients import Differentiation, difference
from chop.capture.recording.graph_break import GraphBreak
from chop.capture.recording.recorder import Recorder
from chop.captured.difference import distance
from chop.captured.huggingface.cache import CacheError
from chop.captured.leaves import tensors_in
from chop.captured.module import CapturedModule
from chop.captured.runtime import enter_autocast
from chop.captured.state.preserve_state import preserve_state
from chop.errors import CaptureError, GuardError

_TOLERANCE = 1e-3

# For captures with the operators and the order of the model; only attention is decomposed.
_CLOSE = 1e-4
_GRADIENT_TOLERANCE = 1e-2

_MOST_IN_TRAINING = 1.5e6
_MOST_IN_EVAL = 4e5
"""Multiply-adds per node up to which checks with gradients take under a quarter of the capture."""

# For results that differ by roundings to bfloat16 at different steps of one formula.
_LOWERED = 5e-2


@dataclass(frozen=True)
class Mismatch:
    """Difference between a capture and its model.

    Args:
        reason: description of the difference.
        training: true if it occurred in `train()`.
        parameters: those whose gradients differ.
    """

    reason: str
    training: bool = False
    parameters: Collection[str] = ()

    def __str__(self) -> str:
        return f"in train() {self.reason}" if self.training else self.reason


def find_mismatch(
    model: nn.Module, captured: CapturedModule, example: Mapping[str, Any], eager_run: DryRun
) -> Mismatch | None:
    """Describes how a capture differs from its model in `eval()` without gradients, or None.

    A model can behave differently while it is recorded: transformers skips an attention mask of
    ones only outside of a recording. The graph does not show that. A graph with autocast
    regions is compared under bfloat16 autocast too.

    Args:
        model: the model; it is restored.
        captured: its capture.
        example: the example inputs.
        eager_run: what the model itself has returned and written.

    Raises:
        CaptureError: in a second call the capture forgets what the model keeps.
    """
    # The graph runs the hooks of the model too, which may set attributes of the model.
    with preserve_state(model):
        reason = _compare(captured, example, eager_run, _TOLERANCE)
    kind = _autocast_device(captured, example)
    if reason is None and kind is not None:
        # A graph with autocast off refuses to run under it.
        refused = contextlib.suppress(GuardError)
        with refused, torch.autocast(kind, dtype=torch.bfloat16):
            lowered = run_eagerly(model, eager_run.calls[0].arguments, {}, probe=False)
            if lowered is not None:
                reason = _compare(captured, example, lowered, _LOWERED)
        reason = reason and f"under bfloat16 autocast, {reason}"
    return None if reason is None else Mismatch(reason)


class GradientCheck:
    """Compares captures of one model with it in calls with gradients, in `train()` and `eval()`.

    The model itself is called once in each mode, regardless of the number of captures.

    Args:
        model: the model; it is restored.
        example: the example inputs.
        fixed: further arguments of `forward`.
    """

    def __init__(
        self, model: nn.Module, example: Mapping[str, Any], fixed: Mapping[str, Any]
    ) -> None:
        self._model = model
        self._example = example
        self._fixed = fixed
        self._parameters = dict(model.named_parameters())
        self._state_names = {*self._parameters, *(name for name, _ in model.named_buffers())}
        self._calls: dict[tuple[bool, bool], Call | None] = {}

    def find_mismatch(self, captured: CapturedModule, recorder: Recorder) -> Mismatch | None:
        """Describes how a capture differs from the model; None if it agrees or refuses the call."""
        effort = multiply_adds_per_node(captured, recorder.values)
        # The graph does not record branches on `requires_grad` of an input.
        with_inputs = not recorder.requires_grad_reads
        modes = [True] if captured.record.eval_only is None else []
        if effort <= _MOST_IN_EVAL or not modes:
            modes.append(False)
        mismatches = (self._compare(captured, training, with_inputs) for training in modes)
        return next(filter(None, mismatches if effort <= _MOST_IN_TRAINING else ()), None)

    def _compare(
        self, captured: CapturedModule, training: bool, with_inputs: bool
    ) -> Mismatch | None:
        expected = self._eager_call(training, with_inputs)
        if expected is None and with_inputs:
            # Some models cannot be called with inputs that need gradients.
            return self._compare(captured, training, with_inputs=False)
        if expected is None:
            return None
        own = self._differentiation(with_inputs)
        try:
            with preserve_state(self._model):
                call = _differentiated(
                    captured, _call_inputs(expected, self._example), own, training
                )
        except GuardError:
            return None
        except Exception as error:
            reason = GraphBreak("", "", error).reason()
            return Mismatch(f"on the example inputs it fails ({reason})", training)
        return self._difference(call, expected, training)

    def _difference(self, call: Call, expected: Call, training: bool) -> Mismatch | None:
        narrow = any(x.dtype.itemsize < 4 for x in (*expected.outputs, *expected.written.values()))
        reason = _first_difference(call, expected, _TOLERANCE if narrow else _CLOSE)
        if reason is not None:
            return Mismatch(reason, training)
        extra = (call.written.keys() & self._state_names) - expected.written.keys()
        if extra:
            return Mismatch(f"it writes to {min(extra)}, unlike the model", training)
        assert call.gradients is not None and expected.gradients is not None
        reason, names = difference(call.gradients, expected.gradients, _GRADIENT_TOLERANCE)
        return Mismatch(reason, training, names & self._parameters.keys()) if reason else None

    def _eager_call(self, training: bool, with_inputs: bool) -> Call | None:
        key = (training, with_inputs)
        if key not in self._calls:
            self._calls[key] = None
            arguments = {**self._example, **self._fixed}
            # Some models cannot be called in train().
            with contextlib.suppress(Exception):
                own = self._differentiation(with_inputs)
                self._calls[key] = _differentiated(self._model, arguments, own, training)
        return self._calls[key]

    def _differentiation(self, with_inputs: bool) -> Differentiation:
        return Differentiation(self._parameters, self._example if with_inputs else ())


def _differentiated(
    module: nn.Module, arguments: Mapping[str, Any], own: Differentiation, training: bool
) -> Call:
    with preserve_state(module, thorough=True) as run, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module.train(training)
        return run_once(module, arguments, run, own)


def find_difference(
    model: nn.Module,
    captured: CapturedModule,
    example: Mapping[str, Any],
    fixed: Mapping[str, Any],
) -> str | None:
    """Describes how a capture differs from a model that was recorded in another form.

    The two sum in a different order, which shows in narrow dtypes.

    Args:
        model: the model; it is restored.
        captured: its capture.
        example: the example inputs.
        fixed: further arguments of `forward`.
    Returns: None if they agree.
    """
    eager_run = run_eagerly(model, example, fixed, probe=False)
    if eager_run is None:
        return None
    outputs = [x for x in eager_run.calls[0].outputs if x.is_floating_point()]
    narrow = any(x.dtype.itemsize < 4 for x in outputs)
    eager_run.calls = eager_run.calls[:1]
    with preserve_state(model):
        return _compare(captured, example, eager_run, _LOWERED if narrow else _TOLERANCE)


def _autocast_device(captured: CapturedModule, example: Mapping[str, Any]) -> str | None:
    """Returns the device type on which autocast affects a graph; None without autocast regions."""
    if not any(node.target is enter_autocast for node in captured.graph.nodes):
        return None
    kind = next((tensor.device.type for tensor in tensors_in(example)), "cpu")
    return kind if torch.amp.is_autocast_available(kind) else None


def _compare(
    captured: CapturedModule, example: Mapping[str, Any], eager_run: DryRun, tolerance: float
) -> str | None:
    first, *later = eager_run.calls
    with preserve_state(captured, thorough=True) as run, torch.no_grad():
        captured.eval()
        try:
            actual = run_once(captured, _call_inputs(first, example), run)
        except GuardError:
            raise
        except Exception as error:
            return f"on the example inputs it fails ({GraphBreak('', '', error).reason()})"
        mismatch = _first_difference(actual, first, tolerance)
        if mismatch is not None:
            return mismatch
        for call in later:
            try:
                actual = run_once(captured, _call_inputs(call, example), run)
            except GuardError:
                # The guards reject this call, which is no mismatch.
                return None
            if _first_difference(actual, call, tolerance) is not None:
                raise CaptureError(
                    "the capture and the model return different results in a second call: "
                    + "; ".join(eager_run.stateful.values())
                )
    return None


def check_without_cache(
    model: nn.Module, captured: CapturedModule, plain: Mapping[str, Any]
) -> None:
    """Compares a capture that takes a cache with its model on a call without one.

    Args:
        model: the model; it is restored.
        captured: its capture.
        plain: inputs of such a call.

    Raises:
        CacheError: they differ.
    """
    expected = run_eagerly(model, plain, {"use_cache": False}, probe=False)
    if expected is None:
        return
    try:
        with preserve_state(model):
            mismatch = _compare(captured, plain, expected, _TOLERANCE)
    except GuardError as error:
        mismatch = str(error)
    if mismatch is not None:
        raise CacheError(f"without a cache {mismatch}")


def _call_inputs(call: Call, example: Mapping[str, Any]) -> dict[str, Any]:
    return {name: call.arguments[name] for name in example}


def _first_difference(actual: Call, expected: Call, tolerance: float) -> str | None:
    if len(actual.outputs) != len(expected.outputs):
        return f"it returns {len(actual.outputs)} tensors, the model {len(expected.outputs)}"
    worst = max(map(distance, actual.outputs, expected.outputs), default=0.0)
    if worst > tolerance:
        return f"on the example inputs its outputs differ from the model's by up to {worst:.2g}"
    for name, value in expected.written.items():
        if name not in actual.written or distance(actual.written[name], value) > tolerance:
            return f"the model writes to {name}, but its capture does not write the same values"
    return None
