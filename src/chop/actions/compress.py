"""The main job: a model goes in, the smallest quantised model that still answers well comes out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from rich.console import Console

from chop import passes
from chop.actions.compress_results import (
    MODEL_FILES,
    Candidate,
    Row,
    footnotes,
    sizes_of,
    table_of,
    write_results,
)
from chop.actions.interrupt import told_when_interrupted
from chop.actions.rounding import (
    QUANTIZE_RANGES,
    QUANTIZED_OPERATORS,
    check_operators,
    layer_spec,
    quantize_after_training,
    quantize_layers,
)
from chop.actions.subject import Subject, SubjectConfig, load_subject, raise_to_graph
from chop.errors import ConfigError
from chop.formats import parse_spelling
from chop.ir.graph import MaseGraph
from chop.nn.quantized import QuantizedOperator
from chop.passes.analysis.summarize_quantization import layer_rows, poor_fit
from chop.passes.interface.export_onnx import check_onnx_is_installed
from chop.tables import print_table
from chop.train import evaluate, fit

SAVED_SHARE = 0.5
"""Training has saved a format when it wins back more than this share of what rounding lost."""


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
        max_drop: accuracy on validation rows, from 0 to 1, that the saved model may lose against
            float.
        keep_best: saves the most accurate model where none keeps within `max_drop`; else none is
            saved then.
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
    keep_best: bool = False
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


def compress(config: CompressConfig) -> dict[str, Any]:
    """Quantises a model in several formats, trains the hardest one back, and writes it all down.

    Formats are chosen by their accuracy on validation rows; that on test rows is only reported.

    Writes into `config.out`: `model.pt` and `model.mz` (the smallest model within `max_drop` of
    float, its weights packed: `pack_transform_pass` unpacks them for training), `model.onnx` where
    it is asked for, `graph.svg`, `accuracy.svg`, `table.md` and, last, `result.json`. Where no
    format keeps within `max_drop`, and `keep_best` does not ask for one all the same, no model is
    saved: files of an earlier run's model stay.

    Returns: what is in `result.json`; its `saved` is None where no model was saved.
    Raises:
        ConfigError: settings that do not fit together.
        UnavailableError: the model, the data set or a library is not there.
    """
    with told_when_interrupted(
        lambda: (
            f"no results were written to {config.out}/, those of an earlier run are as they were; "
            "the same command starts again."
        )
    ):
        return _compress(config)


def _compress(config: CompressConfig) -> dict[str, Any]:
    console = Console()
    subject = load_subject(config).with_validation()
    console.print(f"[bold]{config.model}[/] on {subject.dataset}: raising the model to a graph")
    mg = raise_to_graph(subject)
    baseline = measure(mg, "float", "float", subject)
    rounded = [_round(mg, text, subject, config) for text in config.formats]
    rounded += [_round_layers(mg, subject, config)] if config.layers else []
    trained = list(_train_back(baseline, rounded, subject, config))
    candidates = [baseline, *rounded, *trained]
    print_table(f"{config.model} on {subject.dataset}", table_of(candidates))
    notes = [*footnotes(candidates), _about_training(rounded, trained, config), _about(subject)]
    console.print("\n".join(filter(None, notes)), highlight=False)
    chosen = _smallest([*rounded, *trained], baseline.row.validation - config.max_drop)
    nearest = max([*rounded, *trained], key=lambda c: c.row.validation)
    saved = chosen or (nearest if config.keep_best else None)
    result = dict(write_results(candidates, saved, subject, config))
    if chosen is None:
        console.print(_nothing_within(nearest.row, baseline.row, config), highlight=False)
    if saved is not None:
        console.print(_saved(saved.row, baseline.row, config))
        console.print(sizes_of(result))
    return result


def _saved(row: Row, exact: Row, config: CompressConfig) -> str:
    return (
        f"saved [bold]{row.format} ({row.method})[/]: {row.accuracy:.1%} of the test rows against "
        f"{exact.accuracy:.1%} float, {exact.bits / row.bits:.1f}x fewer bits per weight, in "
        f"{config.out}/"
    )


def _nothing_within(nearest: Row, exact: Row, config: CompressConfig) -> str:
    drop = exact.validation - nearest.validation
    told = (
        f"No format keeps within {config.max_drop:.2%} of float on the validation rows: the "
        f"nearest, {nearest.format} ({nearest.method}), loses {drop:.2%}"
    )
    if config.keep_best:
        return f"{told}; it is saved because --keep-best asks for it."
    kept = "; the model in it is an earlier run's" if (config.out / MODEL_FILES[0]).exists() else ""
    return (
        f"{told}. No model was saved in {config.out}/{kept}. Give other --formats, more "
        "--qat-epochs or a larger --max-drop, or save it all the same with --keep-best."
    )


def _about_training(
    rounded: Sequence[Candidate], trained: Sequence[Candidate], config: CompressConfig
) -> str | None:
    """Why no format was trained back, where none was."""
    if trained:
        return None
    if config.qat_epochs == 0:
        return "No QAT: --qat-epochs is 0."
    kept = "the format is" if len(rounded) == 1 else f"all {len(rounded)} formats are"
    return f"No QAT: {kept} within --max-drop {config.max_drop:g} of float on the validation rows."


def _about(subject: Subject) -> str | None:
    """What there is to know of the validation rows of models that were trained elsewhere."""
    if not subject.has_seen_validation:
        return None
    count = 0 if subject.validation is None else len(subject.validation)
    return (
        f"The {count} validation rows are held out of the training rows: a model that was trained "
        "on them elsewhere loses less there. Rows of a split 'validation' are taken instead."
    )


def measure(mg: MaseGraph, method: str, label: str, subject: Subject) -> Candidate:
    """A graph with its accuracies, its bits and how many operators are quantised."""
    subject = subject.with_validation()
    splits = {"validation": subject.validation, "test": subject.test}
    shares = (
        evaluate(mg.model, rows, device=subject.device, progress=f"{method} {label}, {name}")
        for name, rows in splits.items()
    )
    _, bits = passes.calculate_avg_bits_mg_analysis_pass(mg)
    operators = map(mg.module_of, mg.nodes)
    count = sum(isinstance(op, QuantizedOperator) and not op.spec.is_float for op in operators)
    size_kb = bits["weight_bytes"] / 1000
    lost = poor_fit(layer_rows(mg))
    return Candidate(Row(method, label, *shares, bits["w_avg_bit"], count, size_kb, lost), mg)


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
    exact = baseline.row.validation
    lost = [c for c in rounded if c.row.validation < exact - config.max_drop]
    lost.sort(key=lambda candidate: (candidate.row.bits, candidate.row.validation))
    training = subject.tuning(config.qat_epochs, config.qat_lr, config)
    for candidate in lost if training["epochs"] else ():
        graph = candidate.graph.copy()
        label = candidate.row.format
        progress = f"QAT {label}"
        fit(graph.model, subject.train, **training, device=subject.device, progress=progress)
        trained = measure(graph, "QAT", label, subject)
        yield trained
        won = trained.row.validation - candidate.row.validation
        if won > SAVED_SHARE * (exact - candidate.row.validation):
            return


def _smallest(candidates: Sequence[Candidate], least: float) -> Candidate | None:
    """The smallest that answers so large a share of the validation rows; None if none does."""
    good = [candidate for candidate in candidates if candidate.row.validation >= least]
    return min(good, key=lambda c: (c.row.bits, -c.row.validation), default=None)
