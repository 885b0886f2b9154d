"""The main job: a model goes in, the smallest quantised model that still answers well comes out."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from chop import passes
from chop.actions.subject import Subject, load_subject
from chop.errors import ConfigError, did_you_mean
from chop.files import write_text
from chop.formats import Integer, QuantSpec
from chop.ir.graph import MaseGraph
from chop.ir.ops import OPS
from chop.nn.quantized import QuantizedOperator
from chop.passes.analysis.summarize_quantization import layer_rows, operator_rows
from chop.report.plots import plot_accuracy_against_bits
from chop.tables import markdown_table, print_table
from chop.train import calibration_batches, evaluate, fit

SAVED_SHARE = 0.5
"""Training has saved a format when it wins back more than this share of what rounding lost."""


RANGES: dict[str, tuple[float, float]] = {
    "qat_epochs": (0, 10_000),
    "qat_lr": (1e-9, 10),
    "train_epochs": (0, 10_000),
    "calibration_rows": (1, 10**9),
    "max_drop": (0, 1),
    "limit": (1, 10**9),
    "max_length": (1, 10**6),
    "batch_size": (1, 10**6),
}
"""Least and largest value of each number among the settings."""


@dataclass(frozen=True)
class CompressConfig:
    """Settings of `chop compress`; a TOML file has the same keys.

    Attributes:
        model: built-in name, local Hugging Face folder or hub name.
        dataset: built-in name, local folder or hub name; None takes the built-in model's own.
        out: folder for everything that is written.
        operators: the operators to quantise, by name.
        formats: integer formats `width.fraction`; `4.auto` derives each tensor's fraction.
        qat_epochs: passes over the training rows; 0 skips quantisation-aware training. None takes
            15 for built-in models, else 1.
        qat_lr: its largest learning rate; None takes 3e-3 for built-in models, else 1e-4.
        train_epochs: fine-tunes a model that is not built in before compressing it.
        calibration_rows: training rows that derived fractions are taken from.
        max_drop: accuracy, from 0 to 1, that the saved model may lose against float.
        limit: keeps that many rows of each split, for a quick look.
        max_length: cuts texts to that many tokens.
        batch_size: rows of a training step.
        seed: of training and of whatever is drawn.
        device: "cpu", "cuda" ...; None takes a GPU where there is one.
    """

    model: str = "vit"
    dataset: str | None = None
    out: Path = Path("runs/compress")
    operators: tuple[str, ...] = ("linear", "conv1d", "conv2d", "conv_transpose2d", "embedding")
    formats: tuple[str, ...] = ("8.5", "6.4", "4.2", "8.auto", "6.auto", "4.auto")
    qat_epochs: int | None = None
    qat_lr: float | None = None
    train_epochs: int = 0
    calibration_rows: int = 256
    max_drop: float = 0.01
    limit: int | None = None
    max_length: int | None = None
    batch_size: int = 64
    seed: int = 0
    device: str | None = None

    def __post_init__(self) -> None:
        for text in self.formats:
            parse_width(text)
        for name in self.operators:
            if name not in OPS or not OPS[name].is_quantizable:
                choices = [row.name for row in OPS.values() if row.is_quantizable]
                raise ConfigError(f"operators: unknown '{name}': {did_you_mean(name, choices)}")
        if not self.formats or not self.operators:
            raise ConfigError("formats, operators: expected at least one of each.")
        for name, (least, most) in RANGES.items():
            value = getattr(self, name)
            if value is not None and not least <= value <= most:
                raise ConfigError(f"{name}: got {value}, expected {least:g} to {most:g}.")
        if self.out.is_file():
            raise ConfigError(f"out: '{self.out}' is a file, expected a folder.")


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


def parse_width(text: str) -> Integer:
    """`"8.4"` or `"4.auto"` as an integer format.

    >>> parse_width("4.auto").label
    'integer 4.auto'

    Raises:
        ConfigError: it is spelt differently, or a width is out of range.
    """
    width, _, fraction = text.partition(".")
    try:
        return Integer(int(width), "auto" if fraction == "auto" else int(fraction))
    except ValueError as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"format '{text}': expected width.fraction, as 8.4 or 4.auto.") from None


def compress(config: CompressConfig) -> dict[str, Any]:
    """Quantises a model in several formats, trains the hardest one back, and writes it all down.

    Writes into `config.out`: `model.pt` and `model.mz` (the smallest model within `max_drop` of
    float), `graph.svg`, `accuracy.svg`, `table.md` and, last, `result.json`.

    Returns: what is in `result.json`.
    Raises:
        ConfigError: settings that do not fit together.
        UnavailableError: the model or the data set is not there.
    """
    console = Console()
    subject = load_subject(
        config.model,
        config.dataset,
        train_epochs=config.train_epochs,
        batch_size=config.batch_size,
        limit=config.limit,
        max_length=config.max_length,
        seed=config.seed,
        device=config.device,
    )
    console.print(f"[bold]{config.model}[/] on {subject.dataset}: raising the model to a graph")
    mg = MaseGraph(subject.model, dummy_in=subject.example())
    mg, _ = passes.init_metadata_analysis_pass(mg)
    mg, _ = passes.add_common_metadata_analysis_pass(mg)
    baseline = _measure(mg, "float", "float", subject)
    rounded = [_round(mg, text, subject, config) for text in config.formats]
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
    return result


def _measure(mg: MaseGraph, method: str, label: str, subject: Subject) -> Candidate:
    accuracy = evaluate(mg.model, subject.test, device=subject.device, progress=f"{method} {label}")
    _, bits = passes.calculate_avg_bits_mg_analysis_pass(mg)
    count = sum(isinstance(mg.module_of(node), QuantizedOperator) for node in mg.nodes)
    size_kb = bits["weight_bytes"] / 1000
    return Candidate(Row(method, label, accuracy, bits["w_avg_bit"], count, size_kb), mg)


def _round(mg: MaseGraph, text: str, subject: Subject, config: CompressConfig) -> Candidate:
    """Quantises after training; derived fractions are calibrated on training rows."""
    number_format = parse_width(text)
    present = {mg.operator(node).name for node in mg.nodes}
    spec = QuantSpec.uniform(number_format)
    rules = {name: {"config": spec} for name in config.operators if name in present}
    if not rules:
        raise ConfigError(
            f"the model has none of the operators {', '.join(config.operators)}; "
            f"it has: {', '.join(sorted(name for name in present if name in OPS))}."
        )
    quantized, _ = passes.quantize_transform_pass(mg, {"by": "type", **rules})
    if not number_format.is_fitted:
        batches = calibration_batches(mg.model, subject.train, rows=config.calibration_rows)
        quantized, _ = passes.calibrate_transform_pass(
            quantized, {"batches": batches}, inplace=True
        )
    return _measure(quantized, "PTQ", number_format.label, subject)


def _train_back(
    baseline: Candidate, rounded: Sequence[Candidate], subject: Subject, config: CompressConfig
) -> Iterator[Candidate]:
    """Trains the hardest format that lost accuracy; if that is beyond saving, the next one."""
    limit = baseline.row.accuracy - config.max_drop
    lost = [candidate for candidate in rounded if candidate.row.accuracy < limit]
    lost.sort(key=lambda candidate: (candidate.row.bits, candidate.row.accuracy))
    epochs = subject.qat_epochs if config.qat_epochs is None else config.qat_epochs
    for candidate in lost if epochs else ():
        graph = candidate.graph.copy()
        label = candidate.row.format
        fit(
            graph.model,
            subject.train,
            epochs=epochs,
            lr=subject.qat_lr if config.qat_lr is None else config.qat_lr,
            batch_size=config.batch_size,
            seed=config.seed,
            device=subject.device,
            progress=f"QAT {label}",
        )
        trained = _measure(graph, "QAT", label, subject)
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


def _curves(rows: Sequence[Row]) -> dict[str, list[tuple[float, float]]]:
    curves: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        if row.method != "float":
            kind = "derived fractions" if row.format.endswith("auto") else "fixed fractions"
            curves.setdefault(f"{row.method}, {kind}", []).append((row.bits, row.accuracy))
    return curves


def _write(
    candidates: Sequence[Candidate], chosen: Candidate, subject: Subject, config: CompressConfig
) -> Mapping[str, Any]:
    """Every file is written in one step; `result.json` comes last and vouches for the others."""
    rows = [candidate.row for candidate in candidates]
    (config.out / "result.json").unlink(missing_ok=True)
    chosen.graph.export(config.out / "model")
    chosen.graph.draw(config.out / "graph.svg")
    plot_accuracy_against_bits(
        config.out / "accuracy.svg",
        _curves(rows),
        rows[0].accuracy,
        chance=subject.chance,
        title=f"{config.model} on {subject.dataset}",
    )
    write_text(config.out / "table.md", markdown_table(_table(candidates)) + "\n")
    result = {
        "config": {**dataclasses.asdict(config), "out": str(config.out)},
        "dataset": subject.dataset,
        "rows": [dataclasses.asdict(row) for row in rows],
        "saved": dataclasses.asdict(chosen.row),
        "operators": [dataclasses.asdict(row) for row in operator_rows(chosen.graph)],
        "layers": [dataclasses.asdict(row) for row in layer_rows(chosen.graph)],
        "checkpoint_bytes": sum(
            (config.out / name).stat().st_size for name in ("model.pt", "model.mz")
        ),
        "versions": {"torch": torch.__version__},
    }
    write_text(config.out / "result.json", json.dumps(result, indent=2) + "\n")
    return result
