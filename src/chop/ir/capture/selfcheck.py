"""Runs a fresh capture and its model once on the example inputs, and compares."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from chop.errors import CaptureError, GuardError
from chop.ir.capture.captured import CapturedModule
from chop.ir.capture.isolation import untouched
from chop.ir.capture.leaves import tensors_in
from chop.ir.capture.runtime import enter_autocast
from chop.ir.capture.structure import map_leaves

MOST_PARAMETERS = 1_000_000_000
"""Larger models are not run: a forward pass would cost more than the capture."""

_TOLERANCE = 1e-3

# Between two roundings to bfloat16 at other places of one formula.
_AUTOCAST_TOLERANCE = 5e-2


def difference(
    model: nn.Module, captured: CapturedModule, example: Mapping[str, Any], fixed: Mapping[str, Any]
) -> str | None:
    """How the outputs of a capture differ from its model's in `eval()`; None if they do not.

    A model can notice that it is being recorded (transformers skips an attention mask of ones
    only when it is not), and no reading of its graph would show it. A graph with autocast regions
    is compared under bfloat16 autocast too.

    Args:
        model: the model; it is left as it was.
        captured: its capture.
        example: the example inputs.
        fixed: further arguments of the model.

    Raises:
        CaptureError: the model runs and its capture fails.
    """
    parameters = list(model.parameters())
    too_large = sum(parameter.numel() for parameter in parameters) > MOST_PARAMETERS
    if too_large or any(parameter.is_meta for parameter in parameters):
        return None
    wrong = _compare(model, captured, example, fixed, _TOLERANCE)
    kind = _autocast_device(captured, example)
    if wrong is None and kind is not None:
        # A graph that was told that autocast is off refuses to run under it.
        refused = contextlib.suppress(GuardError)
        with refused, torch.autocast(kind, dtype=torch.bfloat16):
            wrong = _compare(model, captured, example, fixed, _AUTOCAST_TOLERANCE)
        wrong = wrong and f"under bfloat16 autocast, {wrong}"
    return wrong


def _autocast_device(captured: CapturedModule, example: Mapping[str, Any]) -> str | None:
    """The kind of device on which autocast matters to a graph; None where it has no regions."""
    if not any(node.target is enter_autocast for node in captured.graph.nodes):
        return None
    kind = next((tensor.device.type for tensor in tensors_in(example)), "cpu")
    return kind if torch.amp.is_autocast_available(kind) else None


def _compare(
    model: nn.Module,
    captured: CapturedModule,
    example: Mapping[str, Any],
    fixed: Mapping[str, Any],
    tolerance: float,
) -> str | None:
    try:
        with untouched(model), torch.no_grad():
            expected = _outputs(model, {**example, **fixed})
    except Exception:
        # A model that cannot run here (its device or kernels are elsewhere) can be captured.
        return None
    with untouched(captured), untouched(model), torch.no_grad():
        try:
            found = _outputs(captured, example)
        except GuardError:
            raise
        except Exception as error:
            raise CaptureError(
                f"the model runs on the example inputs and its capture does not "
                f"({type(error).__name__}: {error}): it takes another path while it is recorded; "
                "keep the part that fails as one node with leaves=[...] (custom_ops in MaseGraph)"
            ) from error
    if len(found) != len(expected):
        return f"it returns {len(found)} tensors and the model {len(expected)}"
    worst = max(map(_distance, found, expected), default=0.0)
    if worst <= tolerance:
        return None
    return f"on the example inputs its outputs differ from the model's by up to {worst:.2g}"


def _own(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value


def _outputs(model: nn.Module, arguments: Mapping[str, Any]) -> list[Tensor]:
    model.eval()
    torch.manual_seed(0)
    # The model may write into its inputs, and they are for two runs.
    own = {name: map_leaves(_own, value) for name, value in arguments.items()}
    return tensors_in(model(**own))


def _distance(found: Tensor, expected: Tensor) -> float:
    """The largest difference, relative to the largest expected value above one."""
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return float("inf")
    if torch.equal(found, expected) or found.numel() == 0:
        return 0.0
    ours, theirs = found.double(), expected.double()
    if not torch.equal(ours.isnan(), theirs.isnan()):
        return float("inf")
    gap = torch.where(ours == theirs, 0.0, ours - theirs).abs().nan_to_num(0.0)
    finite = theirs[theirs.isfinite()].abs()
    return float(gap.max()) / max(1.0, float(finite.max()) if finite.numel() else 1.0)
