"""Model to export: its graph, float model and test rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from chop import passes
from chop.actions.compress.earlier_run import DamagedRunError, compressed_run, workload_config
from chop.actions.export.settings import ExportConfig
from chop.actions.starting_run import refuse_integers
from chop.base.notices import assume
from chop.data.builtin_names import plain_name
from chop.data.tokenizer import find_processor
from chop.errors import CheckpointError, ChopError, ConfigError, first_line
from chop.export.gguf.header import gguf_file
from chop.export.graphs.flat import map_tensors, named_tensors
from chop.formats import QuantSpec, parse_format_string
from chop.formats.recipe import Recipe
from chop.ir.graph import MaseGraph
from chop.ir.layers import list_layers
from chop.ir.propagate import example_inputs
from chop.ir.storage.checkpoint import FILE_IN_RUN, find_checkpoint
from chop.models import builtin_model, load_model
from chop.models.own import describe_drawn_weights
from chop.models.places import get_place
from chop.nn.packed import PackedOperator
from chop.nn.quantized import QuantizedOperator
from chop.pipelines.packed_weights import pack_weights
from chop.train import calibration, load_trained
from chop.train.rows import check_batch
from chop.workloads.load import load_workload
from chop.workloads.settings import WorkloadConfig
from chop.workloads.workload import Workload

ORIGINAL = "the model before quantization"
DECODED = "the graph with decoded weights, without rounding"


@dataclass(frozen=True)
class Loaded:
    """Model to export.

    Attributes:
        mg: quantized graph with packed weights.
        source: the same graph with float weights, if they still exist.
        exact: the float model in evaluation mode.
        exact_is: description of `exact` for a sentence.
        tokenizer: tokenizer of its folder, or None.
        workload: data and task of the model, or None.
        why_no_rows: reason why there is no workload; None if there is one, or none was named.
    """

    mg: MaseGraph
    source: MaseGraph
    exact: nn.Module
    exact_is: str
    tokenizer: Any
    workload: Workload | None
    why_no_rows: str | None = None

    def inputs(self, batch: int) -> dict[str, Any]:
        """Returns inputs of `batch` rows, repeating test rows or the example inputs as needed."""
        if self.workload is None:
            example = example_inputs(self.mg.model, "cpu")
            return {name: _repeated(x, batch) for name, x in example.items()}
        rows = self.workload.test
        check_batch(rows, batch)
        index = torch.arange(batch) % len(rows)
        return dict(calibration.example_inputs(self.mg.model, rows.take(index), batch))


def _repeated(nested: Any, batch: int) -> Any:
    """Repeats the rows of nested tensors up to `batch`; tensors without dimensions stay."""

    def rows(x: Tensor) -> Tensor:
        return x[torch.arange(batch) % len(x)] if x.dim() and len(x) else x

    return map_tensors(rows, nested) if named_tensors({"x": nested}) else nested


def load_graph(config: ExportConfig) -> Loaded:
    """Loads the model that the settings name, and quantizes it if a format is given.

    Raises:
        ConfigError: if it is not quantized, or is and a format is given.
        UnavailableError: if it does not exist.
    """
    workload, why_no_rows = _workload(config)
    checkpoint = find_checkpoint(config.model)
    if checkpoint is not None:
        source = MaseGraph.from_checkpoint(checkpoint)
        refuse_integers(source, config.model)
    elif workload is not None:
        source = MaseGraph(workload.model)
    elif builtin_model(config.model):
        source = MaseGraph(load_trained(plain_name(config.model), progress=True))
    else:
        source = MaseGraph(load_model(config.model))
    if checkpoint is None and (drawn := describe_drawn_weights(config.model)):
        assume(f"{drawn} For trained weights, run chop compress and export its folder.")
    modules = (module for module in source.model.modules() if isinstance(module, QuantizedOperator))
    is_quantized = any(not module.spec.is_float for module in modules)
    if is_quantized == (config.format is not None):
        given = "has float weights: pass --format, such as --format 8.auto"
        given = "is quantized already: leave --format out" if is_quantized else given
        raise ConfigError(f"format: '{config.model}' {given}.")
    if is_quantized:
        mg = packed(source)
    else:
        inputs = None if config.inputs is None else parse_format_string(config.inputs)
        recipe = Recipe.read(config.overrides, config.skip, "chop export")
        mg = pack_weights(source, parse_format_string(str(config.format)), inputs, recipe)
    exact, exact_is = _exact(source, mg, workload if checkpoint is not None else None)
    tokenizer = load_tokenizer(config) if config.tokenizer else None
    return Loaded(mg, source, exact, exact_is, tokenizer, workload, why_no_rows)


def _exact(source: MaseGraph, mg: MaseGraph, original: Workload | None) -> tuple[nn.Module, str]:
    """Returns the float model and its description."""
    if original is not None:
        return original.model.eval(), ORIGINAL
    if any(isinstance(module, QuantizedOperator) for module in source.model.modules()):
        return decoded(mg).model.eval(), DECODED
    return source.model.eval(), ORIGINAL


def decoded(mg: MaseGraph) -> MaseGraph:
    """Returns a graph without rounding, with the decoded weights of another graph."""
    graph = mg.sharing_copy()
    for layer in list_layers(graph, lambda _, module: isinstance(module, QuantizedOperator)):
        assert isinstance(layer.module, QuantizedOperator)
        twin = layer.module.unpack().with_spec(QuantSpec())
        for node in layer.nodes:
            graph.replace(node, twin)
    return graph


def packed(mg: MaseGraph) -> MaseGraph:
    """Returns a graph with packed weights, so that targets share one search for scales."""
    quantized = (m for m in mg.model.modules() if isinstance(m, QuantizedOperator))
    weighted = [module for module in quantized if not module.spec.weight.is_identity]
    if all(isinstance(module, PackedOperator) for module in weighted):
        return mg
    return passes.pack_transform_pass(mg, {"silent": True})[0]


def _workload(config: ExportConfig) -> tuple[Workload | None, str | None]:
    """Returns the data and task of the model if they are known, else the reason."""
    try:
        settings = _workload_settings(config)
        return (None if settings is None else load_workload(settings)), None
    except ChopError as error:
        if config.dataset is not None:
            raise
        return None, first_line(error)


def _workload_settings(config: ExportConfig) -> WorkloadConfig | None:
    given: dict[str, Any] = {} if config.dataset is None else {"dataset": config.dataset}
    path = Path(config.model).expanduser()
    run = path if path.is_dir() else path.parent
    if builtin_model(config.model):
        return WorkloadConfig(model=config.model, device="cpu", out=config.out, **given)
    if find_checkpoint(config.model) is not None:
        return _settings_of_run(run, given)
    if config.dataset is None:
        return None
    return WorkloadConfig(model=config.model, device="cpu", out=config.out, **given)


def _settings_of_run(run: Path, given: Mapping[str, Any]) -> WorkloadConfig | None:
    try:
        compressed = compressed_run(run)
    except DamagedRunError:
        raise
    except CheckpointError:
        if given:
            raise
        return None  # a checkpoint of a graph
    return workload_config(compressed, {**given, "device": "cpu", "out": run})


def load_tokenizer(config: ExportConfig) -> Any:
    """Returns the tokenizer or processor of a model folder or file, or of a run's `model`."""
    path = Path(config.model).expanduser()
    if is_gguf(config.model):
        from chop.export.gguf.reader import read_tokenizer

        return read_tokenizer(get_place(str(path)))
    folders = [str(place) for place in (path / FILE_IN_RUN, path) if place.is_dir()]
    places = folders or [config.model]
    processors = map(find_processor, [] if builtin_model(config.model) else places)
    return next((processor for processor in processors if processor is not None), None)


def is_gguf(name: str) -> bool:
    """Returns True if a model is a GGUF file, or a folder with one."""
    if builtin_model(name) or find_checkpoint(name) is not None:
        return False
    return gguf_file(get_place(str(Path(name).expanduser()))) is not None
