"""Export job: writes a graph for other engines, and lets each engine's library read it back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from chop import passes
from chop.actions.job import Job, Output, load_nothing, run_job
from chop.actions.settings.export import ExportConfig
from chop.bench.record import format_bytes, format_ratio
from chop.bench.statistics import Interval
from chop.bench.timing import Variant, compare
from chop.errors import ConfigError
from chop.export.flat import output_tensors
from chop.export.target import Runner
from chop.export.targets import target
from chop.formats import parse_format_string
from chop.ir.graph import MaseGraph
from chop.ir.propagate import example_inputs
from chop.models import BUILTIN_MODELS, load_model
from chop.nn.packed import PackedOperator
from chop.nn.quantized import QuantizedOperator
from chop.quantization.freezing import freeze_layers
from chop.report.report import Cell, Note, Report, Table, announce

CHECKPOINT = "model"
CHOP, UNMEASURED = "chop", "not measured"


@dataclass(frozen=True)
class Exported:
    """What was written for a target, and what its library makes of it.

    Attributes:
        target: its name.
        path: of the file or folder.
        size_bytes: of the files.
        difference: the largest one between outputs and those of the graph, on its example inputs.
        times_as_fast: as the graph in chop; None where no times were measured, or the library
            computes with floats and no engine is at hand.
    """

    target: str
    path: str
    size_bytes: int
    difference: float
    times_as_fast: Interval | None

    def formatted(self) -> dict[str, Any]:
        """For a table."""
        kind, ratio = target(self.target), self.times_as_fast
        return {
            "target": self.target,
            "file": Path(self.path).name,
            "size": format_bytes(self.size_bytes),
            "read by": kind.library,
            "runs in": kind.engines,
            "largest difference": Cell.of(self.difference, ".2g"),
            "times as fast": UNMEASURED if ratio is None else format_ratio(ratio),
        }


def export(config: ExportConfig) -> list[Exported]:
    """Writes a file for each target to `config.out`, and compares what its engine makes of it.

    Raises:
        ConfigError: the model is not quantized, or a target cannot hold it: nothing is written for
            that target and those after it.
        UnavailableError: the model or a library is not there.
    """
    return run_job(EXPORT, config)


def _export(config: ExportConfig, workload: None, output: Output) -> Report[list[Exported]]:
    loaded = load_graph(config)
    announce(config.model, f"exporting to {', '.join(config.to)}")
    example = example_inputs(loaded.mg.model, "cpu")
    expected = answers(loaded.mg, example)
    written = {}
    for name in config.to:
        kind = target(name)
        path = output.folder / (f"{CHECKPOINT}{kind.suffix}" if kind.suffix else name)
        kind.write(loaded.mg, path, loaded.tokenizer)
        written[name] = path
    runners = {name: target(name).read(path) for name, path in written.items()}
    timed = {name: run for name, run in runners.items() if target(name).is_timed}
    ratios = _ratios(loaded.mg, timed, example, config)
    rows = [
        Exported(
            name,
            str(path),
            target(name).size_of(path),
            largest_difference(runners[name](example), expected),
            ratios.get(name),
        )
        for name, path in written.items()
    ]
    title = f"{config.model} for other engines"
    note = (
        "Largest difference: between an engine's outputs and those of the quantized graph, on its "
        "example inputs. Times as fast: as the graph in chop, with 99 % intervals."
    )
    table = Table(title, [row.formatted() for row in rows])
    plain = [asdict(row) for row in rows]
    return Report(
        title,
        {"table.md": [table, Note(note)]},
        rows,
        plain,
        result_file="",
        written=[file for name, path in written.items() for file in target(name).files_of(path)],
    )


EXPORT = Job("export", _export, load_nothing)


@dataclass(frozen=True)
class Loaded:
    """A graph to export.

    Attributes:
        mg: quantized, its weights packed.
        tokenizer: of its folder; None: none is there.
    """

    mg: MaseGraph
    tokenizer: Any


def load_graph(config: ExportConfig) -> Loaded:
    """The graph that the settings name.

    Raises:
        ConfigError: it is not quantized.
        UnavailableError: it is not there.
    """
    path = Path(config.model).expanduser()
    for checkpoint in (path / CHECKPOINT, path):
        if checkpoint.with_name(checkpoint.name + ".mz").exists() or path.suffix == ".mz":
            if config.format is not None:
                raise ConfigError(f"format: '{config.model}' is quantized already.")
            return Loaded(packed(MaseGraph.from_checkpoint(checkpoint)), None)
    if config.model in BUILTIN_MODELS:
        from chop.train import load_trained

        model = load_trained(config.model, progress=True)
    else:
        model = load_model(config.model)
    mg = MaseGraph(model)
    is_quantized = any(isinstance(module, QuantizedOperator) for module in mg.model.modules())
    if is_quantized == (config.format is not None):
        given = "is quantized already" if is_quantized else "has float weights: give a format"
        raise ConfigError(f"format: '{config.model}' {given}.")
    mg = mg if is_quantized else quantized(mg, str(config.format))
    return Loaded(packed(mg), _tokenizer(config))


def quantized(mg: MaseGraph, number_format: str) -> MaseGraph:
    """A graph with the weights of all operators in a format; the rest stays float."""
    mg, _ = passes.init_metadata_analysis_pass(mg)
    mg, _ = passes.add_common_metadata_analysis_pass(mg)
    rule = {"config": {"weight": parse_format_string(number_format)}}
    used = (mg.operator(node) for node in mg.nodes)
    weighted = {row.name for row in used if row.weight and row.quantized}
    return passes.quantize_transform_pass(mg, {"by": "type", **dict.fromkeys(weighted, rule)})[0]


def packed(mg: MaseGraph) -> MaseGraph:
    """A graph whose weights are found in their formats once, and not again for each target."""
    quantized = (m for m in mg.model.modules() if isinstance(m, QuantizedOperator))
    weighted = [module for module in quantized if not module.spec.weight.is_identity]
    if all(isinstance(module, PackedOperator) for module in weighted):
        return mg
    return passes.pack_transform_pass(mg, {"silent": True})[0]


def _tokenizer(config: ExportConfig) -> Any:
    from chop.data import get_tokenizer

    has_files = any(Path(config.model).expanduser().glob("tokenizer*"))
    return get_tokenizer(config.model) if has_files and config.tokenizer else None


def answers(mg: MaseGraph, example: Mapping[str, Any]) -> dict[str, Tensor]:
    """Outputs by name, from the values that codes stand for: in the order of sums of torch."""
    exact = mg.copy()
    exact.model.cpu().eval()
    freeze_layers(exact, keeps_products=False)
    with torch.no_grad():
        return output_tensors(exact.model(**example))


def largest_difference(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> float:
    """Of the outputs that both have."""
    shared = found.keys() & expected.keys()
    assert shared, f"no output of {[*expected]} is among {[*found]}"
    return max((found[n].double() - expected[n].double()).abs().max().item() for n in shared)


def _ratios(
    mg: MaseGraph, runners: Mapping[str, Runner], example: Mapping[str, Any], config: ExportConfig
) -> dict[str, Interval | None]:
    if not config.seconds or not runners:
        return {}
    model = mg.model.eval()
    variants = [Variant(CHOP, lambda: output_tensors(model(**example)))]
    variants += [Variant(name, partial(run, example)) for name, run in runners.items()]
    found = compare(
        variants,
        CHOP,
        seconds=config.seconds,
        threads=config.threads,
        outputs=False,
        memory=False,
    )
    return {name: found[name].ratio for name in runners}
