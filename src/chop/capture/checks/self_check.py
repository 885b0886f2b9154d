"""Self-check: compares a fresh capture with the eager runs of its model."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from chop.capture.checks.dry_run import Call, DryRun, run_eagerly, run_once
from chop.capture.recording.graph_break import GraphBreak
from chop.captured.difference import distance
from chop.captured.huggingface.cache import CacheError
from chop.captured.leaves import tensors_in
from chop.captured.module import CapturedModule
from chop.captured.runtime import enter_autocast
from chop.captured.state.preserve_state import preserve_state
from chop.errors import CaptureError, GuardError

_TOLERANCE = 1e-3

# Between two roundings to bfloat16 at other places of one formula.
_LOWERED = 5e-2


def find_mismatch(
    model: nn.Module, captured: CapturedModule, example: Mapping[str, Any], eager_run: DryRun
) -> str | None:
    """How a capture differs from its model in `eval()`; None if it does not.

    A model can notice that it is being recorded (transformers skips an attention mask of ones
    only when it is not), and no reading of its graph would show it. A graph with autocast regions
    is compared under bfloat16 autocast too.

    Args:
        model: the model; it is left as it was.
        captured: its capture.
        example: the example inputs.
        eager_run: what the model itself has returned and written.

    Raises:
        CaptureError: in a second call the capture forgets what the model keeps.
    """
    # Hooks of the model that the graph runs too may fill attributes of the model.
    with preserve_state(model):
        mismatch = _compare(captured, example, eager_run, _TOLERANCE)
    kind = _autocast_device(captured, example)
    if mismatch is None and kind is not None:
        # A graph with autocast off refuses to run under it.
        refused = contextlib.suppress(GuardError)
        with refused, torch.autocast(kind, dtype=torch.bfloat16):
            lowered = run_eagerly(model, eager_run.calls[0].arguments, {}, probe=False)
            if lowered is not None:
                mismatch = _compare(captured, example, lowered, _LOWERED)
        mismatch = mismatch and f"under bfloat16 autocast, {mismatch}"
    return mismatch


def find_difference(
    model: nn.Module,
    captured: CapturedModule,
    example: Mapping[str, Any],
    fixed: Mapping[str, Any],
) -> str | None:
    """How a capture differs from a model of which another form was recorded; None if it does not.

    The two add in another order, which is seen in narrow dtypes.

    Args:
        model: the model; it is left as it was.
        captured: its capture.
        example: the example inputs.
        fixed: further arguments of `forward`.
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
    """The kind of device on which autocast matters to a graph; None where it has no regions."""
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
            found = run_once(captured, _taken(first, example), run)
        except GuardError:
            raise
        except Exception as error:
            return f"on the example inputs it fails ({GraphBreak('', '', error).reason()})"
        mismatch = _first_difference(found, first, tolerance)
        if mismatch is not None:
            return mismatch
        for call in later:
            try:
                found = run_once(captured, _taken(call, example), run)
            except GuardError:
                # It refuses, and is not mismatch.
                return None
            if _first_difference(found, call, tolerance) is not None:
                raise CaptureError(
                    "in a second call the capture does not return what the model returns: "
                    + "; ".join(eager_run.stateful.values())
                )
    return None


def check_without_cache(
    model: nn.Module, captured: CapturedModule, plain: Mapping[str, Any]
) -> None:
    """Compares a capture that takes a cache with its model on a call without one.

    Args:
        model: the model; it is left as it was.
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


def _taken(call: Call, example: Mapping[str, Any]) -> dict[str, Any]:
    return {name: call.arguments[name] for name in example}


def _first_difference(found: Call, expected: Call, tolerance: float) -> str | None:
    if len(found.outputs) != len(expected.outputs):
        return f"it returns {len(found.outputs)} tensors and the model {len(expected.outputs)}"
    worst = max(map(distance, found.outputs, expected.outputs), default=0.0)
    if worst > tolerance:
        return f"on the example inputs its outputs differ from the model's by up to {worst:.2g}"
    for name, value in expected.written.items():
        if name not in found.written or distance(found.written[name], value) > tolerance:
            return f"the model writes to {name}, and its capture writes something else or nothing"
    return None
