"""Settings of `chop compress`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from chop.actions.settings.workload import WorkloadConfig
from chop.errors import ConfigError

QUANTIZE_RANGES: Mapping[str, tuple[float, float]] = {
    "qat_epochs": (0, 10_000),
    "qat_lr": (1e-9, 10),
    "calibration_rows": (1, 10**9),
}


def default_operators() -> tuple[str, ...]:
    """The names of quantizable operators with a weight."""
    from chop.actions.ptq import weighted_operators

    return weighted_operators()


@dataclass(frozen=True)
class CompressConfig(WorkloadConfig):
    """Settings of `chop compress`.

    Attributes:
        operators: operators to quantize, by name: linear, conv2d ... Default: all with a weight.
        formats: number formats: integers `width.fraction` (`4.auto` calibrates each tensor's
            fraction), and any format by name: `mxint:width=4`.
        layers: format per layer and operand, as `chop search export` writes them: one more
            configuration to measure. Default: none.
        qat_epochs: epochs of quantization-aware training (QAT); 0 skips QAT. Default: 15 for
            built-in models, else 1.
        qat_lr: peak learning rate of QAT. Default: by model and number of epochs.
        calibration_rows: training rows that calibrate fractions.
        max_drop: largest loss of the metric against float on validation rows, from 0 to 1;
            relative for metrics where lower is better (perplexity, mse).
        keep_best: save the best model if none is within `max_drop`.
        bench_seconds: seconds to measure the saved model's latency, per model and batch size; 0
            skips the measurement.
        onnx: also write `model.onnx`, with 8-bit integer formats as integers and others as floats.

    The other settings are those of `WorkloadConfig`.
    """

    RANGES: ClassVar[Mapping[str, tuple[float, float]]] = {
        **WorkloadConfig.RANGES,
        **QUANTIZE_RANGES,
        "max_drop": (0, 1),
        "bench_seconds": (0, 3600),
    }

    out: Path = Path("runs/compress")
    operators: tuple[str, ...] = field(default_factory=default_operators)
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
        from chop.actions.ptq import check_operators, layer_spec
        from chop.formats import parse_format_string
        from chop.onnx.export import check_onnx_is_installed

        super().__post_init__()
        for text in self.formats:
            parse_format_string(text)
        for path, formats in self.layers.items():
            layer_spec(path, formats)
        check_operators(self.operators)
        if not self.formats and not self.layers:
            raise ConfigError("formats: expected at least one.")
        if self.onnx:
            check_onnx_is_installed()
