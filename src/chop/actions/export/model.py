"""Model of an export: its graph, its float weights, and the test rows that it is judged by."""

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
from chop.models import builtin_model, load_model
from chop.models.places import get_place
from chop.nn.packed import PackedOperator
from chop.nn.quantized import QuantizedOperator
from chop.pipelines.packed_weights import pack_weights
from chop.train import calibration, load_trained
from chop.train.rows import check_batch
from chop.workloads.load import load_workload
from chop.workloads.settings import WorkloadConfig
from chop.workloads.workload import Workload

CHECKPOINT = "model"
ORIGINAL = "the model before it was quantized"
DECODED = "the graph with its weights decoded, and nothing rounded"


@dataclass(frozen=True)
class Loaded:
    """A model to export.

    Attributes:
        mg: quantized, its weights packed.
        source: the same with float weights, where they still are.
        exact: the float model, in evaluation mode.
        exact_is: what that is, for a sentence.
        tokenizer: of its folder; None: none is there.
        workload: the model's data and task; None: none is known.
        why_no_rows: why there is no workload; None where there is one, or none was named.
    """

    mg: MaseGraph
    source: MaseGraph
    exact: nn.Module
    exact_is: str
    tokenizer: Any
    workload: Workload | None
    why_no_rows: str | None = None

    def inputs(self, batch: int) -> dict[str, Any]:
        """Inputs of so many rows: of the test rows, or of the example inputs, again and again."""
        if self.workload is None:
            example = example_inputs(self.mg.model, "cpu")
            return {name: _repeated(x, batch) for name, x in example.items()}
        rows = self.workload.test
        check_batch(rows, batch)
        index = torch.arange(batch) % len(rows)
        return dict(calibration.example_inputs(self.mg.model, rows.take(index), batch))


def _repeated(nested: Any, batch: int) -> Any:
    """Nested tensors with so many rows; those without dimensions as they are."""

    def rows(x: Tensor) -> Tensor:
        return x[torch.arange(batch) % len(x)] if x.dim() and len(x) else x

    return map_tensors(rows, nested) if named_tensors({"x": nested}) else nested


def load_graph(config: ExportConfig) -> Loaded:
    """The model that the settings name.

    Raises:
        ConfigError: it is not quantized, or is and a format is given.
        UnavailableError: it is not there.
    """
    workload, why_no_rows = _workload(config)
    checkpoint = get_checkpoint(config.model)
    if checkpoint is not None:
        source = MaseGraph.from_checkpoint(checkpoint)
        refuse_integers(source, config.model)
    elif workload is not None:
        source = MaseGraph(workload.model)
    elif builtin_model(config.model):
        source = MaseGraph(load_trained(plain_name(config.model), progress=True))
    else:
        source = MaseGraph(load_model(config.model))
    modules = (module for module in source.model.modules() if isinstance(module, QuantizedOperator))
    is_quantized = any(not module.spec.is_float for module in modules)
    if is_quantized == (config.format is not None):
        given = "has float weights: give --format, as --format 8.auto"
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
    """The float model, and what it is."""
    if original is not None:
        return original.model.eval(), ORIGINAL
    if any(isinstance(module, QuantizedOperator) for module in source.model.modules()):
        return decoded(mg).model.eval(), DECODED
    return source.model.eval(), ORIGINAL


def decoded(mg: MaseGraph) -> MaseGraph:
    """A graph without rounding, its weights those that the codes of another stand for."""
    found = mg.sharing_copy()
    for layer in list_layers(found, lambda _, module: isinstance(module, QuantizedOperator)):
        assert isinstance(layer.module, QuantizedOperator)
        twin = layer.module.unpack().with_spec(QuantSpec())
        for node in layer.nodes:
            found.replace(node, twin)
    return found


def packed(mg: MaseGraph) -> MaseGraph:
    """A graph whose weights are found in their formats once, and not again for each target."""
    quantized = (m for m in mg.model.modules() if isinstance(m, QuantizedOperator))
    weighted = [module for module in quantized if not module.spec.weight.is_identity]
    if all(isinstance(module, PackedOperator) for module in weighted):
        return mg
    return passes.pack_transform_pass(mg, {"silent": True})[0]


def get_checkpoint(name: str) -> Path | None:
    """The checkpoint that a path names: of a run, or itself, with a suffix or not."""
    path = Path(name).expanduser().resolve()
    stem = path.with_suffix("") if path.suffix in (".mz", ".pt") else path
    found = (place for place in (path / CHECKPOINT, stem) if place.name)
    return next((x for x in found if x.with_name(f"{x.name}.mz").is_file()), None)


def _workload(config: ExportConfig) -> tuple[Workload | None, str | None]:
    """The model's data and task, where they are known; and why they cannot be had."""
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
    if get_checkpoint(config.model) is not None:
        return _settings_of_run(run, given)
    if config.dataset is None:
        return None
    return WorkloadConfig(model=config.model, device="cpu", out=config.out, **given)


def _settings_of_run(run: Path, given: Mapping[str, Any]) -> WorkloadConfig | None:
    try:
        found = compressed_run(run)
    except DamagedRunError:
        raise
    except CheckpointError:
        if given:
            raise
        return None  # a checkpoint of a graph
    return workload_config(found, {**given, "device": "cpu", "out": run})


def load_tokenizer(config: ExportConfig) -> Any:
    """The tokenizer or processor of the model's folder or file, or of a run's folder `model`."""
    path = Path(config.model).expanduser()
    if is_gguf(config.model):
        from chop.export.gguf.reader import read_tokenizer

        return read_tokenizer(get_place(str(path)))
    places = [str(place) for place in (path / CHECKPOINT, path) if place.is_dir()] or [config.model]
    processors = map(find_processor, [] if builtin_model(config.model) else places)
    return next((processor for processor in processors if processor is not None), None)


def is_gguf(name: str) -> bool:
    """Returns true if a model is a file of GGUF, or a folder with one."""
    if builtin_model(name) or get_checkpoint(name) is not None:
        return False
    return gguf_file(get_place(str(Path(name).expanduser()))) is not None
