"""Provisional graphs from guessed inputs, which an example input may replace."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from chop.capture import capture, dummy_inputs
from chop.capture.inputs import check_example
from chop.captured.huggingface.cache_names import names_without_cache, requests_cache
from chop.captured.module import CapturedModule
from chop.captured.state.preserve_state import preserve_state
from chop.errors import CaptureError, GraphError, GuardError, did_you_mean
from chop.ir.graph.stand_ins import put_stand_ins
from chop.ir.ops import stand_in_for
from chop.private.graph_edits import last_edit
from chop.private.modules import HOOKS


@dataclass
class ProvisionalCapture:
    """Capture of a model without example inputs, repeated when an example is available.

    Args:
        model: the model.
        names: inputs chosen by the user; None leaves the choice to the example.
        leaves: see `chop.capture.tracer.capture`.
        fixed: arguments fixed at capture.
        strict: see `chop.capture.tracer.capture`.
    """

    model: nn.Module
    names: Sequence[str] | None
    leaves: tuple[type[nn.Module] | str, ...]
    fixed: Mapping[str, Any]
    strict: bool
    failure: CaptureError | None = None
    _made: tuple[Any, ...] = ()

    def capture(self) -> CapturedModule | None:
        """Captures the graph from guessed inputs; None if the model fails on them, see `failure`.

        Raises:
            CaptureError: if the model runs on the guessed inputs but cannot be captured.
        """
        try:
            return self._capture(None)
        except CaptureError as error:
            reason = self._explain_failure()
            if reason is None:
                raise
            self.failure = CaptureError(
                f"{reason}; pass example inputs: "
                "MaseGraph(model, dummy_in={...}), or add_common_metadata_analysis_pass(mg, "
                '{"dummy_in": {...}})'
            )
            self.failure.__cause__ = error
        return None

    def recapture(self, dummy_in: Mapping[str, Any], made: CapturedModule | None) -> CapturedModule:
        """Returns a graph for an example: `made` if it fits, otherwise a new one.

        Args:
            dummy_in: the example, by name.
            made: result of `capture`, including later changes by passes.

        Raises:
            GraphError: if a new graph is needed and passes have changed the old one.
        """
        check_example(dummy_in, "dummy_in")
        given = {name: value for name, value in dummy_in.items() if name not in self.fixed}
        reason = None if made is None else self._explain_mismatch(made, given)
        if made is not None and reason is None:
            return made
        if made is not None and self._made != _state(made):
            raise GraphError(
                f"the graph was captured from guessed inputs, dummy_in does not fit ({reason}), "
                "and the graph has been changed since; capture it from the example first: "
                "MaseGraph(model, dummy_in={...})."
            )
        new = self._capture(dummy_in)
        if made is not None:
            _copy_modes(made, new)
        return new

    def _capture(self, dummy_in: Mapping[str, Any] | None) -> CapturedModule:
        others = {type(module) for module in self.model.modules() if stand_in_for(module)}
        captured = capture(
            self.model,
            dummy_in,
            input_names=self.names,
            leaves=(*self.leaves, *others),
            concrete_args=self.fixed,
            strict=self.strict,
        )
        put_stand_ins(captured)
        self._made = _state(captured)
        return captured

    def _explain_failure(self) -> str | None:
        """Explains a failed capture by the guess; None if the model runs on the guessed inputs."""
        has_cache = requests_cache(self.model, self.names or ())
        try:
            inputs = dummy_inputs(
                self.model, names_without_cache(self.names) if has_cache else self.names
            )
        except CaptureError as error:
            return str(error)
        try:
            with preserve_state(self.model), torch.no_grad():
                self.model(**{**inputs, **self.fixed})
        except Exception as error:
            shapes = ", ".join(f"{name} {tuple(value.shape)}" for name, value in inputs.items())
            return (
                f"the inputs of {type(self.model).__name__} were guessed ({shapes}), and it fails "
                f"on them ({type(error).__name__}: {error})"
            )
        return None

    def _explain_mismatch(self, made: CapturedModule, given: Mapping[str, Any]) -> str | None:
        names = list(made.record.example_inputs)
        check_names(made, given)
        if self.names is None and set(given) != set(names):
            return f"it has {', '.join(given)}, the graph takes {', '.join(names)}"
        for name in names:
            expected = getattr(made.record.example_inputs[name], "dtype", None)
            actual = getattr(given.get(name), "dtype", None)
            if name in given and expected != actual:
                return f"{name} has {actual}, the graph was captured for {expected}"
        return explain_mismatch(made, given)


def check_names(model: CapturedModule, given: Iterable[str]) -> None:
    """Raises GraphError if an example has a name that is not an input of the graph."""
    record = model.record
    known = {*record.example_inputs, *record.optional_inputs, *record.ignored_inputs}
    for name in given:
        if name not in known:
            raise GraphError(f"the graph has no input '{name}': {did_you_mean(name, known)}")


def explain_mismatch(model: CapturedModule, given: Mapping[str, Any]) -> str | None:
    """Explains the mismatch of a graph and an example in form or sizes; None if it fits.

    `bind_inputs` reports missing and unknown inputs.
    """
    known = {name: given[name] for name in model.record.example_inputs if name in given}
    if len(known) < len(model.record.example_inputs):
        return None
    try:
        model.check_inputs(known)
    except GuardError as error:
        return str(error)
    return None


def _state(model: CapturedModule) -> tuple[Any, ...]:
    """Returns a value that changes with the nodes, modules or hooks of a graph."""
    modules = [
        (path, module, sum(len(vars(module)[name]) for name in HOOKS))
        for path, module in model.named_modules()
    ]
    return last_edit(model.graph), tuple((path, id(m), hooks) for path, m, hooks in modules)


def _copy_modes(old: CapturedModule, new: CapturedModule) -> None:
    modes = {path: module.training for path, module in old.named_modules()}
    for path, module in new.named_modules():
        module.training = modes.get(path, module.training)
