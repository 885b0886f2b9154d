"""Graphs that onnxruntime computes, with the interface of the captured module."""

from __future__ import annotations

import logging
import operator
from collections.abc import Collection, Hashable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from chop.base.files.temporary import scratch_folder
from chop.base.notices import at_level
from chop.captured.guards.input_guards import LAYOUT
from chop.captured.module import CapturedModule
from chop.captured.nodes.writes import get_memory, written_by
from chop.captured.state.preserve_state import preserve_state
from chop.errors import (
    ConfigError,
    GraphError,
    GuardError,
    UnavailableError,
    enumerate_names,
    first_line,
    shorten,
)
from chop.export.graphs.cache import has_cache
from chop.export.graphs.flat import (
    map_tensors,
    named_outputs,
    named_tensors,
    output_tensors,
    rebuilder,
)
from chop.export.onnx.export import export, log
from chop.export.onnx.session import Run, opened, why_missing
from chop.export.refusals import MOST_LISTED
from chop.ir.graph import MaseGraph
from chop.ir.propagate import example_inputs

WHERE = "freeze_transform_pass"
LOSS = "loss"
"""Output of Hugging Face models that files omit."""
MOST_KINDS = 1000
"""Maximum number of combinations of shapes and dtypes whose checks a module remembers."""
KIND = operator.attrgetter("__class__", "shape", "dtype")
"""Properties of a tensor that the checks of a call depend on, but for its layout."""


class OnnxRuntimeModule(nn.Module):
    """Evaluation of a captured graph by onnxruntime on the CPU.

    It takes the arguments of the graph and returns results of the same structure; the loss of a
    Hugging Face output is None. The guards of the graph are checked. Weights are constants: the
    module has no parameters, and changes of the graph do not reach it.

    Args:
        model: graph whose guards are checked.
        file: contents of the ONNX file.
        answer: results of the graph, for their structure.
        lacking: names of results that the file lacks.
    """

    def __init__(
        self, model: CapturedModule, file: bytes, answer: Any, lacking: Collection[str]
    ) -> None:
        super().__init__()
        self._model = (model,)  # in a tuple: torch registers no child
        self._file = file
        names = iter(output_tensors(answer))
        self._structure = map_tensors(
            lambda _: None if next(names) in lacking else torch.empty(0), answer
        )
        self._inputs = {*model.record.example_inputs, *model.record.optional_inputs}
        self._admitted: dict[Hashable, tuple[str, ...]] = {}
        self._run: Run | None = None
        self._rebuild = rebuilder(self._structure)
        self.eval()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Returns the results of the graph.

        Raises:
            ConfigError: if the module is in training mode, under autocast, or an input requires a
                gradient.
            GuardError: if the graph does not accept the inputs, or onnxruntime does not.
        """
        tensors = self._admit(args, kwargs)
        wanted = [name for name, x in tensors.items() if x.requires_grad]
        asked = wanted and torch.is_grad_enabled()
        if self.training or asked:
            raise ConfigError(
                "expected an evaluation without gradients, since onnxruntime computes none, got "
                f"{'an input that requires one' if asked else 'train()'}; train the graph instead."
            )
        if torch.is_autocast_enabled("cpu"):
            raise ConfigError(
                "a module of onnxruntime computes in float32: call it outside of autocast."
            )
        if wanted:
            tensors = tensors | {name: tensors[name].detach() for name in wanted}
        return self._rebuild(iter(self._results(tensors)))

    def _admit(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Tensor]:
        """Returns the inputs by name after the checks of the graph.

        Guards depend on shapes, dtypes and layouts alone. Calls whose values are all tensors like
        those of an earlier call pass without the checks, which take as long as a small model.
        """
        values = (*args, *kwargs.values())
        kind: tuple[Hashable, ...]
        try:
            kind = (len(args), *kwargs, *map(KIND, values))
        except AttributeError:  # a value is no tensor
            kind = ()
        if names := self._admitted.get(kind):
            return dict(zip(names, values, strict=True))
        model = self._model[0]
        given = model.admit(args, kwargs, runs_modules=False)
        if others := given.keys() - self._inputs:
            raise GuardError(
                f"the graph was captured with {', '.join(model.record.example_inputs)}, got "
                f"{', '.join(sorted(others))} too; capture the model with every input."
            )
        tensors = named_tensors(given)
        # Values of arguments that the graph ignores are checked, too.
        all_reach_it = [*map(id, tensors.values())] == [*map(id, values)]
        if kind and all_reach_it and LAYOUT not in model.record.asked:
            if len(self._admitted) >= MOST_KINDS:
                self._admitted.clear()
            self._admitted[kind] = tuple(tensors)
        return tensors

    def _results(self, tensors: dict[str, Tensor]) -> Sequence[Tensor]:
        if self._run is None:
            self._run = opened(self._file)
        try:
            return self._run(tensors)
        except Exception as error:
            # onnxruntime has a class for each of its codes, all direct ones of Exception.
            raise GuardError(
                f"onnxruntime does not accept the inputs: {shorten(first_line(error), 300)}."
            ) from error

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_admitted": {}, "_run": None, "_rebuild": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        rebuild = rebuilder(state["_structure"])
        super().__setstate__({**state, "_rebuild": rebuild})  # type: ignore[no-untyped-call]


def compute_in_onnxruntime(mg: MaseGraph) -> OnnxRuntimeModule:
    """Returns a module that computes a graph in onnxruntime.

    Args:
        mg: graph in float32; it is not changed.

    Raises:
        ConfigError: if the graph extends a key-value cache, exceeds 2 GB, is not in float32, or
            rounds activations to formats that ONNX lacks.
        GraphError: if torch cannot write the graph as ONNX, results are not tensors, or the graph
            writes into an input.
        UnavailableError: if onnxruntime cannot be imported.
        VerificationError: if onnxruntime computes other results.
    """
    if reason := why_missing():
        raise UnavailableError(f"{WHERE}: onnxruntime cannot be imported: {reason}.")
    if has_cache(mg):
        raise ConfigError(
            f"{WHERE}: expected a graph without a key-value cache for onnxruntime; run a decoder "
            "by `chop export --to onnx`, or capture it with use_cache=False."
        )
    if any(x.dtype != torch.float32 for x in mg.model.parameters() if x.is_floating_point()):
        raise ConfigError(f"{WHERE}: onnxruntime needs a graph in float32; call mg.model.float().")
    mutated = [get_memory(x) for node in mg.nodes for x in written_by(node)]
    if inputs := [str(source.target) for source in mutated if source.op == "placeholder"]:
        raise GraphError(
            f"{WHERE}: the graph writes into its input '{inputs[0]}', which onnxruntime would not "
            "change; clone it in forward."
        )
    with preserve_state(mg.model), torch.no_grad():
        answer = mg.model.eval()(**example_inputs(mg.model))
    names = [*output_tensors(answer)]
    if others := named_outputs(answer).keys() - {*names}:
        raise GraphError(
            f"{WHERE}: expected tensors as results for onnxruntime, got numbers as "
            f"{enumerate_names(sorted(others), MOST_LISTED)}; return them as tensors."
        )
    # The warning is of sizes that a file does not check. The module checks the guards of the graph.
    with scratch_folder("onnx") as folder, at_level(logging.ERROR, log.name):
        written = export(mg, folder / "model.onnx", float_fallback=True, dynamic_axes=True)
        if unrounded := written["unrounded"]:
            raise ConfigError(
                f"{WHERE}: ONNX lacks the formats of {enumerate_names(unrounded, MOST_LISTED)}, "
                "and onnxruntime would not round them; choose integer or scale_integer with one "
                "scale, or the engine 'torch'."
            )
        if len(written["files"]) > 1:
            raise ConfigError(
                f"{WHERE}: expected weights below 2 GB for the engine onnxruntime; use `chop "
                "export --to onnx`."
            )
        file = (folder / "model.onnx").read_bytes()
    lacking = [LOSS] if len(written["outputs"]) < len(names) else []
    return OnnxRuntimeModule(mg.model, file, answer, lacking)
