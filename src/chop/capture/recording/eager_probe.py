"""Eager probes: leaf outputs and data-dependent reads that fake tensors cannot provide."""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from chop.capture.recording.eager_output import EagerOutput
from chop.capture.recording.source import current_line
from chop.capture.sizes.symbols import Sizes
from chop.captured.state.preserve_state import patched_calls, preserve_state
from chop.errors import CaptureError

SCALAR_READS = frozenset({"__bool__", "__int__", "__float__", "__index__", "tolist", "item"})


class EagerReads(TorchFunctionMode):
    """Values that a model's Python read from tensors in an eager run, per line and in order."""

    def __init__(self) -> None:
        super().__init__()
        self._answers: dict[str, collections.deque[Any]] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        value = func(*args, **(kwargs or {}))
        if getattr(func, "__name__", "") in SCALAR_READS:
            self._answers.setdefault(current_line(), collections.deque()).append(value)
        return value

    def answer(self, where: str) -> Any:
        """Returns the next value read on a line; None if the eager run read no more."""
        answers = self._answers.get(where)
        return answers.popleft() if answers else None


def probe_reads(
    model: nn.Module, example: Mapping[str, Any], fixed: Mapping[str, Any], training: bool
) -> EagerReads:
    """Runs the model on its example inputs and records the values that its Python reads from
    tensors.

    For a model that fails half-way (some need labels in training), the result has the reads up to
    that point.
    """
    decisions = EagerReads()
    with preserve_state(model, thorough=True), torch.no_grad(), contextlib.suppress(Exception):
        model.train(training)
        with decisions:
            model(**{**example, **fixed})
    return decisions


class _OperatorCount(TorchFunctionMode):
    """Counter of torch calls while it is active."""

    count = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


class _ResultsOf(TorchFunctionMode):
    """Recorder of the results of one operator."""

    def __init__(self, operator: Any, results: list[Any]) -> None:
        super().__init__()
        self._operator, self._results = operator, results

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is self._operator:
            self._results.append(result)
        return result


def probe_outputs(
    model: nn.Module,
    example: Mapping[str, Any],
    fixed: Mapping[str, Any],
    subject: Any,
    sizes: Sizes,
    training: bool = False,
) -> list[EagerOutput]:
    """Runs the model on its example inputs and on larger ones, and returns the results of one part.

    Args:
        model: the model; it is restored.
        example: its example inputs.
        fixed: further arguments.
        subject: path of a leaf, or an operator.
        sizes: sizes of the interrupted recording, which determine the dimensions that may grow.
        training: the mode.
    Returns: one entry per call, in order.

    Raises:
        CaptureError: the model itself fails on the example inputs.
    """
    try:
        results, operators = _run(model, {**example, **fixed}, subject, training)
    except Exception as error:
        raise CaptureError(
            f"the forward of {type(model).__name__} itself fails on the example inputs "
            f"({type(error).__name__}: {error}); pass valid inputs (dummy_in; data of "
            "chop.quantize)"
        ) from error
    grown: list[Any] = []
    with contextlib.suppress(Exception):
        # The larger inputs may be too large for the model; then sizes that depend on the inputs
        # stay unknown until run time.
        grown, _ = _run(model, {**_grown(example, sizes), **fixed}, subject, training)
    if len(grown) != len(results):
        grown = [None] * len(results)
    return [EagerOutput(a, b, operators) for a, b in zip(results, grown, strict=True)]


def _run(
    model: nn.Module, arguments: Mapping[str, Any], subject: Any, training: bool
) -> tuple[list[Any], int]:
    results: list[Any] = []
    counter = _OperatorCount()
    leaf = model.get_submodule(subject) if isinstance(subject, str) else None

    def call(original: Any, module: nn.Module, args: Any, kwargs: Any) -> Any:
        if module is not leaf:
            return original(module, *args, **kwargs)
        with counter:
            result = original(module, *args, **kwargs)
        results.append(result)
        return result

    def apply(original: Any, function: type, args: Any, kwargs: Any) -> Any:
        return original(function, *args, **kwargs)

    # Compiled modules take no hooks.
    watch = patched_calls(call, apply) if leaf is not None else _ResultsOf(subject, results)
    with preserve_state(model, thorough=True), torch.no_grad(), watch:
        model.train(training)
        model(**arguments)
    return results, counter.count


def _grown(example: Mapping[str, Any], sizes: Sizes) -> dict[str, Any]:
    shapes = sizes.grown_shapes()
    return {
        name: _resized(value, shapes[name]) if name in shapes else value
        for name, value in example.items()
    }


def _resized(tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Returns a larger tensor made of repetitions, so that its values stay valid."""
    for dim, size in enumerate(shape):
        index = torch.arange(size, device=tensor.device) % tensor.shape[dim]
        tensor = tensor.index_select(dim, index)
    return tensor
