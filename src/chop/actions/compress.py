"""The main job: a model goes in, the smallest quantised model that still answers well comes out."""

from __future__ import annotations

import dataclasses
import json
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import torch
from rich.console import Console

from chop import passes
from chop.actions.rounding import (
    QUANTIZE_RANGES,
    QUANTIZED_OPERATORS,
    check_operators,
    layer_spec,
    quantize_after_training,
    quantize_layers,
)
from chop.actions.speed import compare_with_float
from chop.actions.subject import Subject, SubjectConfig, load_subject, raise_to_graph
from chop.bench.model import BATCH_SIZES
from chop.errors import ConfigError
from chop.files import write_text
from chop.formats import parse_spelling
from chop.ir.graph import MaseGraph
from chop.nn.packed import obstacle
from chop.nn.quantized import QuantizedOperator
from chop.passes.analysis.summarize_quantization import layer_rows, operator_rows
from chop.passes.interface.export_onnx import check_onnx_is_installed
from chop.report.plots import Curve, plot_accuracy
from chop.tables import markdown_table, print_table
from chop.train import evaluate, fit

SAVED_SHARE = 0.5
"""Training has saved a format when it wins back more than this share of what rounding lost."""
MODEL_FILES = ("model.pt", "model.mz")
"""Tensors, and the graph with all that is known of it."""
ONNX_FILE = "model.onnx"


@dataclass(frozen=True)
class CompressConfig(SubjectConfig):
    """Settings of `chop compress`; a TOML file has the same keys.

    Attributes:
        operators: the operators to quantise, by name.
        formats: integers `width.fraction`, where `4.auto` derives each tensor's fraction, and any
            format by name, `mxint:width=4`.
        layers: formats of single layers, by path and operand: one more graph to measure, with
            these alone, as `chop search export` writes them.
        qat_epochs: passes over the training rows; 0 skips quantisation-aware training. None takes
            15 for built-in models, else 1.
        qat_lr: its largest learning rate; None takes what suits the model and the epochs.
        calibration_rows: training rows that derived fractions are taken from.
        max_drop: accuracy, from 0 to 1, that the saved model may lose against float.
        bench_seconds: of measuring the saved model's speed, per model and batch size; 0 leaves it
            out.
        onnx: also writes `model.onnx`, with the 8-bit integer formats as integers and others as
            floats; `result.json` lists these.

    The other settings are those of `SubjectConfig`.
    """

    RANGES: ClassVar[Mapping[str, tuple[float, float]]] = {
        **SubjectConfig.RANGES,
        **QUANTIZE_RANGES,
        "max_drop": (0, 1),
        "bench_seconds": (0, 3600),
    }

    out: Path = Path("runs/compress")
    operators: tuple[str, ...] = QUANTIZED_OPERATORS
    formats: tuple[str, ...] = ("8.5", "6.4", "4.2", "8.auto", "6.auto", "4.auto")
    layers: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    qat_epochs: int | None = None
    qat_lr: float | None = None
    calibration_rows: int = 256
    max_drop: float = 0.01
    bench_seconds: float = 0.25
    onnx: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        for text in self.formats:
            parse_spelling(text)
        for path, formats in self.layers.items():
            layer_spec(path, formats)
        check_operators(self.operators)
        if not self.formats and not self.layers:
            raise ConfigError("formats: expected at least one.")
        if self.onnx:
            check_onnx_is_installed()


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes:
        method: `float`, `PTQ` (rounded after training) or `QAT` (trained with rounding).
        format: of data, weights and biases of the chosen operators.
        accuracy: share of test rows answered right.
        bits: average storage per parameter of the whole model.
        quantized: how many operators are quantised.
        size_kb: what the parameters take at those widths, in units of 1,000 bytes.
    """

    method: str
    format: str
    accuracy: float
    bits: float
    quantized: int
    size_kb: float


@dataclass(frozen=True)
class Candidate:
    """A measured graph."""

    row: Row
    graph: MaseGraph


def compress(config: CompressConfig) -> dict[str, Any]:
    """Quantises a model in several formats, trains the hardest one back, and writes it all down.

    Writes into `config.out`: `model.pt` and `model.mz` (the smallest model within `max_drop` of
    float, its weights packed: `pack_transform_pass` unpacks them for training), `model.onnx` where
    it is asked for, `graph.svg`, `accuracy.svg`, `table.md` and, last, `result.json`.

    Returns: what is in `result.json`.
    Raises:
        ConfigError: settings that do not fit together.
        UnavailableError: the model, the data set or a library is not there.
    """
    console = Console()
    subject = load_subject(config)
    console.print(f"[bold]{config.model}[/] on {subject.dataset}: raising the model to a graph")
    mg = raise_to_graph(subject)
    baseline = measure(mg, "float", "float", subject)
    rounded = [_round(mg, text, subject, config) for text in config.formats]
    rounded += [_round_layers(mg, subject, config)] if config.layers else []
    trained = list(_train_back(baseline, rounded, subject, config))
    candidates = [baseline, *rounded, *trained]
    chosen = _choose(baseline.row, [*rounded, *trained], config.max_drop)
    print_table(f"{config.model} on {subject.dataset}", _table(candidates))
    result = _write(candidates, chosen, subject, config)
    console.print(
        f"saved [bold]{chosen.row.format} ({chosen.row.method})[/]: "
        f"{chosen.row.accuracy:.1%} against {baseline.row.accuracy:.1%} float, "
        f"{baseline.row.bits / chosen.row.bits:.1f}x fewer bits per weight, in {config.out}/"
    )
    console.print(_sizes(result))
    return result


def measure(mg: MaseGraph, method: str, label: str, subject: Subject) -> Candidate:
    """A graph with its accuracy on the test rows, its bits and how many operators are quantised."""
    accuracy = evaluate(mg.model, subject.test, device=subject.device, progress=f"{method} {label}")
    _, bits = passes.calculate_avg_bits_mg_analysis_pass(mg)
    operators = map(mg.module_of, mg.nodes)
    count = sum(isinstance(op, QuantizedOperator) and not op.spec.is_float for op in operators)
    size_kb = bits["weight_bytes"] / 1000
    return Candidate(Row(method, label, accuracy, bits["w_avg_bit"], count, size_kb), mg)


def _round(mg: MaseGraph, text: str, subject: Subject, config: CompressConfig) -> Candidate:
    number_format = parse_spelling(text)
    quantized = quantize_after_training(
        mg, number_format, config.operators, subject, config.calibration_rows
    )
    return measure(quantized, "PTQ", number_format.label, subject)


def _round_layers(mg: MaseGraph, subject: Subject, config: CompressConfig) -> Candidate:
    quantized = quantize_layers(mg, config.layers, subject, config.calibration_rows)
    return measure(quantized, "PTQ", "mixed", subject)


def _train_back(
    baseline: Candidate, rounded: Sequence[Candidate], subject: Subject, config: CompressConfig
) -> Iterator[Candidate]:
    """Trains the hardest format that lost accuracy; if that is beyond saving, the next one."""
    limit = baseline.row.accuracy - config.max_drop
    lost = [candidate for candidate in rounded if candidate.row.accuracy < limit]
    lost.sort(key=lambda candidate: (candidate.row.bits, candidate.row.accuracy))
    training = subject.tuning(config.qat_epochs, config.qat_lr, config)
    for candidate in lost if training["epochs"] else ():
        graph = candidate.graph.copy()
        label = candidate.row.format
        progress = f"QAT {label}"
        fit(graph.model, subject.train, **training, device=subject.device, progress=progress)
        trained = measure(graph, "QAT", label, subject)
        yield trained
        won = trained.row.accuracy - candidate.row.accuracy
        if won > SAVED_SHARE * (baseline.row.accuracy - candidate.row.accuracy):
            return


def _choose(baseline: Row, candidates: Sequence[Candidate], max_drop: float) -> Candidate:
    """The smallest within `max_drop` of float; if there is none, the most accurate."""
    good = [c for c in candidates if c.row.accuracy >= baseline.accuracy - max_drop]
    if good:
        return min(good, key=lambda c: (c.row.bits, -c.row.accuracy))
    return max(candidates, key=lambda c: c.row.accuracy)


def _table(candidates: Sequence[Candidate]) -> list[dict[str, Any]]:
    return [
        {
            "method": row.method,
            "format": row.format,
            "accuracy": f"{row.accuracy:.2%}",
            "bits": f"{row.bits:.2f}",
            "quantised operators": row.quantized,
            "weights (kB)": f"{row.size_kb:.1f}",
        }
        for row in (candidate.row for candidate in candidates)
    ]


def _curves(rows: Sequence[Row]) -> list[Curve]:
    points: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for row in rows:
        if row.method != "float":
            points.setdefault((row.method, _kind(row.format)), []).append((row.bits, row.accuracy))
    return [Curve(f"{method}, {kind}", found) for (method, kind), found in points.items()]


def _kind(label: str) -> str:
    name = re.split(r"\W", label)[0]
    if name != "integer":
        return name
    return "derived fractions" if label.endswith("auto") else "fixed fractions"


def _write(
    candidates: Sequence[Candidate], chosen: Candidate, subject: Subject, config: CompressConfig
) -> Mapping[str, Any]:
    """Every file is written in one step; `result.json` comes last and vouches for the others."""
    rows = [candidate.row for candidate in candidates]
    for name in ("result.json", ONNX_FILE):  # of an earlier run
        (config.out / name).unlink(missing_ok=True)
    packed = _packed(chosen.graph)
    packed.export(config.out / "model")
    sizes = exported_bytes(candidates[0].graph), _file_bytes(config.out)
    onnx = _write_onnx(chosen.graph, config.out / ONNX_FILE) if config.onnx else None
    packed.draw(config.out / "graph.svg")
    plot_accuracy(
        config.out / "accuracy.svg",
        _curves(rows),
        {"float": rows[0].accuracy, "chance": subject.chance},
        xlabel="average bits per parameter",
        title=f"{config.model} on {subject.dataset}",
    )
    result = {
        "config": {**dataclasses.asdict(config), "out": str(config.out)},
        "dataset": subject.dataset,
        "rows": [dataclasses.asdict(row) for row in rows],
        "saved": dataclasses.asdict(chosen.row),
        "operators": [dataclasses.asdict(row) for row in operator_rows(chosen.graph)],
        "layers": [dataclasses.asdict(row) for row in layer_rows(chosen.graph)],
        "float_bytes": sizes[0],
        "saved_bytes": sizes[1],
        "onnx": onnx,
        "speed": _speed(candidates[0].graph, packed, sizes, subject, config),
        "versions": {"torch": torch.__version__},
    }
    parts = [markdown_table(_table(candidates)), _sizes(result), markdown_table(result["speed"])]
    write_text(config.out / "table.md", "\n\n".join(filter(None, parts)) + "\n")
    write_text(config.out / "result.json", json.dumps(result, indent=2) + "\n")
    return result


def _write_onnx(mg: MaseGraph, path: Path) -> dict[str, Any]:
    """Exports a graph, and says what ONNX has as integers and what became floats."""
    settings = {"path": path, "float_fallback": True}
    _, info = passes.export_onnx_interface_pass(mg, settings)
    if info["fallback"]:
        Console().print(
            f"{path}: {len(info['fallback'])} operands are floats, ONNX lacks their formats"
        )
    return {name: info[name] for name in ("quantized", "fallback", "size_bytes")}


def _speed(
    exact: MaseGraph,
    packed: MaseGraph,
    sizes: tuple[Mapping[str, int], Mapping[str, int]],
    subject: Subject,
    config: CompressConfig,
) -> list[dict[str, Any]]:
    """The saved model beside float, as rows; none where it is not to be measured."""
    batch_sizes = [batch for batch in BATCH_SIZES if batch <= len(subject.test)]
    if not config.bench_seconds or not batch_sizes:
        return []
    found = compare_with_float(
        subject,
        exact,
        packed,
        file_bytes=(sizes[0]["model.pt"], sizes[1]["model.pt"]),
        batch_sizes=batch_sizes,
        seconds=config.bench_seconds,
    )
    found.table("The saved model beside float")
    return found.spelt()


def _packed(mg: MaseGraph) -> MaseGraph:
    """The graph with weights as codes, where it has some in formats."""
    if not any(obstacle(module) is None for module in mg.model.modules()):
        return mg
    return passes.pack_transform_pass(mg, {"silent": True})[0]


def exported_bytes(mg: MaseGraph) -> dict[str, int]:
    """Sizes of the files that a graph is exported to."""
    with tempfile.TemporaryDirectory() as folder:
        mg.export(Path(folder) / "model")
        return _file_bytes(Path(folder))


def _file_bytes(folder: Path) -> dict[str, int]:
    return {name: (folder / name).stat().st_size for name in MODEL_FILES}


def _sizes(result: Mapping[str, Any]) -> str:
    """Both checkpoints' sizes, as one line."""
    exact, saved = result["float_bytes"], result["saved_bytes"]
    texts = [
        f"{name} {saved[name] / 1000:.1f} kB (float {exact[name] / 1000:.1f} kB)"
        for name in MODEL_FILES
    ]
    ratio = exact["model.pt"] / saved["model.pt"]
    return f"Files: {', '.join(texts)}; the weights' file is {ratio:.1f}x smaller."
