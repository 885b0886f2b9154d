"""Export job: writes a graph for other engines, and reads each file back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from chop import passes
from chop.actions.job import Job, Output, load_nothing, run_job
from chop.actions.settings.export import ExportConfig
from chop.bench import outputs
from chop.bench.record import format_bytes, format_ratio
from chop.bench.statistics import Interval
from chop.bench.timing import Variant, compare, surroundings
from chop.errors import ChopError, ConfigError, VerificationError
from chop.export.flat import RENAMED, output_tensors
from chop.export.gguf_header import gguf_file
from chop.export.target import Runner, Written
from chop.export.targets import target
from chop.formats import NumberFormat, parse_format_string
from chop.formats.static import is_dynamic
from chop.ir.graph import MaseGraph
from chop.ir.propagate import example_inputs
from chop.models import BUILTIN_MODELS, load_model
from chop.models.places import place_of
from chop.nn.packed import PackedOperator
from chop.nn.quantized import QuantizedOperator
from chop.pipelines.packed_weights import pack_weights
from chop.quantization.freezing import freeze_layers
from chop.report.report import Cell, Note, Report, Table, announce
from chop.train import load_trained

CHECKPOINT = "model"
MOST = 0.05
"""Of the largest output: beyond it the file is another model."""
MOST_DYNAMIC = 0.5
"""The same where layers find scales of their inputs: the last bit of a quotient then picks one of
two codes, and deep models amplify it, to as much as the rounding itself changes them."""
CHOP, UNMEASURED = "chop", "not measured"


@dataclass(frozen=True)
class Exported:
    """What was written for a target, and what its library, or chop, makes of it.

    Attributes:
        target: its name.
        path: of the file or folder.
        size_bytes: of the files.
        difference: the largest one between outputs and those of the graph, on its example inputs.
        times_as_fast: as the graph in chop; None where no times were measured, or the library
            computes with floats and no engine is at hand.
        notes: sentences on what a user of the files would not expect.
    """

    target: str
    path: str
    size_bytes: int
    difference: float
    times_as_fast: Interval | None
    notes: tuple[str, ...]

    def formatted(self) -> dict[str, Any]:
        """For a table."""
        kind, ratio = target(self.target), self.times_as_fast
        return {
            "target": self.target,
            "file": Path(self.path).name,
            "size": format_bytes(self.size_bytes),
            "read back by": kind.library,
            "made for": kind.engines,
            "largest difference": Cell.of(self.difference, ".2g"),
            "times as fast": UNMEASURED if ratio is None else format_ratio(ratio),
        }


def export(config: ExportConfig) -> list[Exported]:
    """Writes a file for each target to `config.out`, and compares what its library makes of it.

    Raises:
        ConfigError: the model is not quantized, or a target cannot hold it: nothing is written for
            that target and those after it.
        VerificationError: an engine computes something else.
        UnavailableError: the model or a library is not there.
    """
    return run_job(EXPORT, config)


def _export(config: ExportConfig, workload: None, output: Output) -> Report[list[Exported]]:
    loaded = load_graph(config)
    announce(config.model, f"exporting to {', '.join(config.to)}")
    example = example_inputs(loaded.mg.model, "cpu")
    expected, most = answers(loaded.mg, example), _most(loaded.mg)
    written: dict[str, Written] = {}
    for name in config.to:
        written[name] = _written(name, loaded, output.folder, written)
    with surroundings(config.threads, inference=True):
        runners = {name: target(name).read(made.path) for name, made in written.items()}
        differences = {
            name: largest_difference(run(example), expected, name, most)
            for name, run in runners.items()
        }
    timed = {name: run for name, run in runners.items() if target(name).is_timed}
    ratios = _ratios(loaded.mg, timed, example, config)
    rows = [
        Exported(
            name, str(made.path), made.size_bytes, differences[name], ratios.get(name), made.notes
        )
        for name, made in written.items()
    ]
    title = f"{config.model} for other engines"
    note = (
        "Largest difference: between outputs of what was read back and of the quantized graph, on "
        "its example inputs. Times as fast: as the graph in chop, with 99 % intervals."
    )
    table = Table(title, [row.formatted() for row in rows])
    told = [Note(f"{row.target}: {text}.") for row in rows for text in row.notes]
    if config.tokenizer and loaded.tokenizer is None and _is_gguf(config.model):
        told.append(Note(f"No tokenizer: '{config.model}' has none that transformers reads."))
    plain = [asdict(row) for row in rows]
    return Report(
        title,
        {"table.md": [table, Note(note), *told]},
        rows,
        plain,
        result_file="",
        written=[file for made in written.values() for file in made.files],
    )


def _written(name: str, loaded: Loaded, folder: Path, before: Iterable[str]) -> Written:
    """What a target wrote; an error says which files of others stay."""
    kind = target(name)
    try:
        return kind.export(
            loaded.mg, folder / (kind.stem if kind.suffix else name), loaded.tokenizer
        )
    except ChopError as error:
        if not (kept := ", ".join(before)):
            raise
        raise type(error)(f"{error}\nWhat was written before stays: {kept}.") from error


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
    checkpoint = _checkpoint(config.model)
    if checkpoint is not None:
        mg = MaseGraph.from_checkpoint(checkpoint)
    elif config.model in BUILTIN_MODELS:
        mg = MaseGraph(load_trained(config.model, progress=True))
    else:
        mg = MaseGraph(load_model(config.model))
    modules = (module for module in mg.model.modules() if isinstance(module, QuantizedOperator))
    is_quantized = any(not module.spec.is_float for module in modules)
    if is_quantized == (config.format is not None):
        given = "is quantized already" if is_quantized else "has float weights: give a format"
        raise ConfigError(f"format: '{config.model}' {given}.")
    if is_quantized:
        mg = packed(mg)
    else:
        inputs = None if config.inputs is None else parse_format_string(config.inputs)
        mg = pack_weights(mg, parse_format_string(str(config.format)), inputs)
    return Loaded(mg, _tokenizer(config) if config.tokenizer else None)


def _checkpoint(name: str) -> Path | None:
    """The checkpoint that a path names: of a run, or itself, with a suffix or not."""
    path = Path(name).expanduser().resolve()
    stem = path.with_suffix("") if path.suffix in (".mz", ".pt") else path
    found = (place for place in (path / CHECKPOINT, stem) if place.name)
    return next((x for x in found if x.with_name(f"{x.name}.mz").is_file()), None)


def packed(mg: MaseGraph) -> MaseGraph:
    """A graph whose weights are found in their formats once, and not again for each target."""
    quantized = (m for m in mg.model.modules() if isinstance(m, QuantizedOperator))
    weighted = [module for module in quantized if not module.spec.weight.is_identity]
    if all(isinstance(module, PackedOperator) for module in weighted):
        return mg
    return passes.pack_transform_pass(mg, {"silent": True})[0]


def _tokenizer(config: ExportConfig) -> Any:
    """The tokenizer of the model's folder or file, or of the folder for transformers of a run."""
    from transformers import AutoTokenizer

    path = Path(config.model).expanduser()
    if _is_gguf(config.model):
        from chop.export.gguf_reader import read_tokenizer

        return read_tokenizer(place_of(str(path)))
    places = [str(place) for place in (path / CHECKPOINT, path) if place.is_dir()] or [config.model]
    for place in [] if config.model in BUILTIN_MODELS else places:
        try:
            # Without an answer it would ask on the terminal whether to run a folder's code.
            return AutoTokenizer.from_pretrained(place, trust_remote_code=False)
        except (OSError, ValueError, KeyError):  # it has none, or one of a class of its own
            continue
    return None


def _is_gguf(name: str) -> bool:
    if name in BUILTIN_MODELS or _checkpoint(name) is not None:
        return False
    return gguf_file(place_of(str(Path(name).expanduser()))) is not None


def answers(mg: MaseGraph, example: Mapping[str, Any]) -> dict[str, Tensor]:
    """Outputs by name, from the values that codes stand for: in the order of sums of torch."""
    exact = mg.copy()
    exact.model.cpu().eval()
    freeze_layers(exact)
    with torch.no_grad():
        return output_tensors(exact.model(**example))


def _most(mg: MaseGraph) -> float:
    """The difference between outputs that rounding explains, as a share of the largest one."""
    inputs = (
        m.format_of("data_in") for m in mg.model.modules() if isinstance(m, QuantizedOperator)
    )
    finds = any(isinstance(x, NumberFormat) and is_dynamic(x) for x in inputs)
    return MOST_DYNAMIC if finds else MOST


def largest_difference(
    found: Mapping[str, Tensor], expected: Mapping[str, Tensor], name: str, most: float = MOST
) -> float:
    """Of all outputs; those that files call otherwise, since an input has the name, too.

    Args:
        found: outputs of the target's library by name.
        expected: outputs of the graph.
        name: of the target.
        most: share of the largest output that rounding explains.

    Raises:
        VerificationError: an output is missing, or differs by more than rounding explains.
        ConfigError: one has another shape.
    """
    given = {key: found.get(key, found.get(f"{key}{RENAMED}")) for key in expected}
    missing = [key for key, x in given.items() if x is None]
    if missing:
        raise VerificationError(f"{name}: expected the output '{missing[0]}', got {[*found]}.")
    ours = [x for x in given.values() if x is not None]
    off = outputs.largest_difference(ours, [*expected.values()], name) or 0.0
    largest = max((x.abs().max().item() for x in expected.values() if x.numel()), default=0.0)
    if off > most * largest:
        raise VerificationError(
            f"{name}: outputs differ by {off:.2g} of {largest:.2g}, more than rounding explains: "
            "do not use the file."
        )
    return off


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
