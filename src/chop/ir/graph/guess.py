"""Graphs of inputs that nobody gave: they stand until an example says otherwise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from chop.capture import capture, dummy_inputs
from chop.captured.huggingface.cache_names import asks_for_cache, plain_names
from chop.captured.module import CapturedModule
from chop.captured.state.preserve_state import preserve_state
from chop.errors import CaptureError, GraphError, GuardError, did_you_mean
from chop.ir.graph.stand_ins import put_stand_ins
from chop.ir.ops import stand_in_for
from chop.private.graph_edits import last_edit
from chop.private.modules import HOOKS


@dataclass
class ProvisionalCapture:
    """A model that was raised without example inputs, and how to raise it from some.

    Args:
        model: the model.
        names: the inputs that the user chose; None leaves the choice to the example.
        leaves: see `chop.capture.tracer.capture`.
        fixed: arguments fixed at capture.
        strict: see there.
    """

    model: nn.Module
    names: Sequence[str] | None
    leaves: tuple[type[nn.Module] | str, ...]
    fixed: Mapping[str, Any]
    strict: bool
    failure: CaptureError | None = None
    _made: tuple[Any, ...] = ()

    def capture(self) -> CapturedModule | None:
        """The graph of guessed inputs; None if the model itself fails on them, see `failure`.

        Raises:
            CaptureError: the model runs on the guessed inputs and cannot be written down.
        """
        try:
            return self._capture(None)
        except CaptureError as error:
            reason = self._why_guess_failed()
            if reason is None:
                raise
            self.failure = CaptureError(
                f"{reason}; pass example inputs before the graph is needed: "
                "MaseGraph(model, dummy_in={...}), or add_common_metadata_analysis_pass(mg, "
                '{"dummy_in": {...}})'
            )
            self.failure.__cause__ = error
        return None

    def recapture(self, dummy_in: Mapping[str, Any], made: CapturedModule | None) -> CapturedModule:
        """The graph of an example: `made` where that fits, and otherwise a new one.

        Args:
            dummy_in: the example, by name.
            made: what `capture` returned, with what passes did to it since.

        Raises:
            GraphError: a new one is needed, and passes have changed the old one.
        """
        given = {name: value for name, value in dummy_in.items() if name not in self.fixed}
        reason = None if made is None else self._why_unfit(made, given)
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

    def _why_guess_failed(self) -> str | None:
        """How the guess is at fault for a failed capture; None if the model runs on it."""
        asked = asks_for_cache(self.model, self.names or ())
        try:
            inputs = dummy_inputs(self.model, plain_names(self.names) if asked else self.names)
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

    def _why_unfit(self, made: CapturedModule, given: Mapping[str, Any]) -> str | None:
        names = list(made.record.example_inputs)
        known = {*names, *made.record.ignored_inputs}
        for name in given:
            if name not in known:
                raise GraphError(f"the graph has no input '{name}': {did_you_mean(name, known)}")
        if self.names is None and set(given) != set(names):
            return f"it has {', '.join(given)}, the graph takes {', '.join(names)}"
        for name in names:
            expected = getattr(made.record.example_inputs[name], "dtype", None)
            came = getattr(given.get(name), "dtype", None)
            if name in given and expected != came:
                return f"{name} has {came}, the graph was captured for {expected}"
        return why_unfit(made, given)


def why_unfit(model: CapturedModule, given: Mapping[str, Any]) -> str | None:
    """Why a graph does not hold for an example: its form or its sizes; None if it does.

    Inputs that are missing or not known are left to `bind_inputs`, which names them.
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
    """Changes with the nodes of a graph, with its modules and with their hooks."""
    modules = [
        (path, module, sum(len(vars(module)[name]) for name in HOOKS))
        for path, module in model.named_modules()
    ]
    return last_edit(model.graph), tuple((path, id(m), hooks) for path, m, hooks in modules)


def _copy_modes(old: CapturedModule, new: CapturedModule) -> None:
    modes = {path: module.training for path, module in old.named_modules()}
    for path, module in new.named_modules():
        module.training = modes.get(path, module.training)
