"""Settings of `chop compress`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from chop.base.notices import assume
from chop.config import MORE, Range
from chop.errors import ConfigError, check_distinct, check_known
from chop.workloads.settings import DistillConfig, JudgedConfig, WorkloadConfig

if TYPE_CHECKING:
    from chop.formats.recipe import Recipe


def default_operators() -> tuple[str, ...]:
    """Returns the names of quantizable operators with a weight."""
    from chop.quantization.named_operators import weighted_operators

    return weighted_operators()


@dataclass(frozen=True, kw_only=True)
class QuantizationSettings(DistillConfig, WorkloadConfig):
    """Quantization after training, and quantization-aware training.

    Attributes:
        operators: operators to quantize, by name: linear, conv2d ... Default: all with a weight.
        qat_epochs: epochs of training in each format (QAT). With 0 only PTQ is measured. Default:
            15 for built-in models, else 1.
        qat_lr: peak learning rate of QAT. Default: 1e-4; for built-in models 3e-3,
            and less for fewer than 15 epochs.
        calibration_rows: training rows that calibrate fractions.

    The other settings are those of `DistillConfig` and `WorkloadConfig`.
    """

    EPOCHS: ClassVar[str] = "qat_epochs"
    operators: tuple[str, ...] = field(default_factory=default_operators, metadata=MORE)
    qat_epochs: Annotated[int | None, Range(0, 10_000)] = None
    qat_lr: Annotated[float | None, Range(1e-9, 10)] = field(default=None, metadata=MORE)
    calibration_rows: Annotated[int, Range(1, 10**9)] = field(default=256, metadata=MORE)

    def __post_init__(self) -> None:
        from chop.quantization.named_operators import check_operators

        super().__post_init__()
        check_operators(self.operators)
        for name in ("qat_lr", "loss"):
            if self.qat_epochs == 0 and getattr(self, name, None) is not None:
                raise ConfigError(f"{name}: nothing is trained, since qat_epochs is 0.")

    @property
    def has_default_operators(self) -> bool:
        """True if the operators are the default ones."""
        return set(self.operators) == set(default_operators())


@dataclass(frozen=True, kw_only=True)
class CompressConfig(JudgedConfig, QuantizationSettings):
    """Settings of `chop compress`.

    Attributes:
        formats: number formats to try. They are integers `width.fraction` (`4.auto` calibrates
            each tensor's fraction), or any format by name: `mxint:width=4`.
        method: rounding methods, such as gptq or smoothquant,awq. They round weights with
            calibration rows, in one run. Default: none, each weight is rounded to nearest.
        rotation: channels that rotate mixes: `group` (those of a group of the format) or `all`,
            both at run time; or `merged`, all channels, merged into the weights where possible
            (decoders such as Llama, Mistral, Qwen and Gemma). Default: group.
        by_block: hold one block of a decoder in memory. Float weights are read, rounded by
            `method` in one format, and written block by block. A killed run resumes after the last
            block. Other models are compressed as a whole, with a note.
        overrides: weights with another format in each of `formats`, by pattern. A pattern is the
            path of a module or its end, or a regular expression after re:. The first match counts.
            Example: `re:.*down_proj=mxint8`. Default: none.
        skip: patterns of modules that stay float in each of `formats`. Default: none.
        skip_vision: leave a vision-language model's vision tower and projector float, in each of
            `formats`.
        operands: operands in each of `formats`: data_in (inputs), weight, bias; others stay float.
            Default: all of them; for language models (causal-lm) weight, except with method
            smoothquant or operators without a weight.
        layers: format per layer and operand, as one more candidate; chop search export writes
            them. Example: 'fc1 = {"weight": "4.auto", "data_in": "8.auto"}'. Default: none.
        qat: formats to train by QAT: worst (the smallest format beyond `max_drop`, and the next one
            if training does not recover it, unless a smaller one needs no training) or all.
        max_drop: largest loss of the metric against float, 0 to 1. It is measured on validation
            rows. It is relative for `evaluate` and for metrics with lower is better (perplexity,
            mse).
        keep_best: save the best model if none is within `max_drop`.
        bench_seconds: seconds to measure the saved model's latency, per model and batch size; 0
            skips the measurement.
        onnx: write `model.onnx` for onnxruntime. Integers of up to 8 bits stay integers. With this
            option, other formats become floats. Default: yes if speed is measured and ONNX has the
            formats.
        samples: number of texts that float and saved model continue. The texts are beginnings of
            test rows of a causal language model, written to `table.md` and the page. With 0, no
            output has texts of rows.

    The other settings are those of `QuantizationSettings`, `JudgedConfig`, `DistillConfig` and
    `WorkloadConfig`.
    """

    out: Path = Path("runs/compress")
    formats: tuple[str, ...] = ("8.5", "6.4", "4.2", "8.auto", "6.auto", "4.auto")
    method: tuple[str, ...] = ()
    rotation: Literal["group", "all", "merged"] | None = field(default=None, metadata=MORE)
    by_block: bool = False
    overrides: Mapping[str, str] = field(default_factory=dict, metadata=MORE)
    skip: tuple[str, ...] = field(default=(), metadata=MORE)
    skip_vision: bool = field(default=False, metadata=MORE)
    operands: tuple[str, ...] | None = field(default=None, metadata=MORE)
    layers: Mapping[str, Mapping[str, str]] = field(
        default_factory=dict,
        metadata={**MORE, "hint": """Example: --layers 'fc1={"weight": "4.auto"}'."""},
    )
    qat: Literal["worst", "all"] = field(
        default="worst", metadata={**MORE, "hint": "--qat-epochs 0 measures without QAT."}
    )
    max_drop: Annotated[float, Range(0, 1)] = 0.01
    keep_best: bool = False
    bench_seconds: Annotated[float, Range(0, 3600)] = field(default=0.25, metadata=MORE)
    onnx: bool | None = None
    samples: Annotated[int, Range(0, 1000)] = 0

    def __post_init__(self) -> None:
        from chop.actions.compress.ptq import METHODS, layer_spec
        from chop.base.installed import require
        from chop.export.onnx.export import NEEDS
        from chop.formats import INPUT_OPERANDS, parse_format_string

        super().__post_init__()
        # One format may have two spellings.
        check_distinct(map(parse_format_string, self.formats), "formats")
        for name in self.method:
            check_known(name, METHODS, "method: unknown")
        for name in self.operands or ():
            check_known(name, INPUT_OPERANDS, "operands: unknown")
        if self.operands == ():
            raise ConfigError("operands: expected at least one.")
        if "weight" not in (self.operands or INPUT_OPERANDS) and (self.method or self.overrides):
            raise ConfigError(
                "operands: expected weight, because method and overrides round weights."
            )
        if self.rotation is not None and "rotate" not in self.method:
            raise ConfigError(f"rotation: '{self.rotation}' needs method rotate.")
        self._check_recipe()
        for path, formats in self.layers.items():
            layer_spec(path, formats)
        if not self.formats and not self.layers:
            raise ConfigError("formats: expected at least one.")
        if self.by_block:
            self._check_by_block()
        if self.onnx:
            require("ONNX", *NEEDS, extra="")

    def with_operands(self, *, is_language_model: bool) -> CompressConfig:
        """Returns the settings with the default operands of a model, unless some are given."""
        from chop.formats import INPUT_OPERANDS

        if self.operands is not None:
            return self
        # SmoothQuant moves outliers out of inputs, which costs accuracy if inputs stay float.
        needs_inputs = "smoothquant" in self.method or {*self.operators} - {*default_operators()}
        if not is_language_model or needs_inputs:
            return replace(self, operands=INPUT_OPERANDS)
        if self.formats:
            assume(
                "Inputs and biases of a language model stay float, because most engines store "
                f"weights only. --operands {','.join(INPUT_OPERANDS)} rounds them as well."
            )
        return replace(self, operands=("weight",))

    @property
    def recipe(self) -> Recipe:
        """Exceptions from each of `formats`."""
        from chop.formats.recipe import Recipe

        return Recipe.read(self.overrides, self.skip, "chop compress")

    def _check_recipe(self) -> None:
        recipe = self.recipe
        if "awq" in self.method and recipe.overrides:
            raise ConfigError("overrides: expected none, since awq scales weights for one format.")
        if (recipe.plain() or self.skip_vision) and not self.formats:
            raise ConfigError(
                "overrides, skip and skip_vision are exceptions from formats: expected formats."
            )

    def _check_by_block(self) -> None:
        from chop.actions.compress.ptq import BY_BLOCK

        if not self.method or set(self.method) - {*BY_BLOCK} or len(self.formats) != 1:
            raise ConfigError(
                f"by_block: expected one format, and methods among {', '.join(BY_BLOCK)}; got "
                f"{len(self.formats)} formats and the methods {', '.join(self.method) or 'none'}."
            )
        own = ("overrides", "skip", "skip_vision", "layers", "onnx", "qat_epochs", "train_epochs")
        for name in (*own, "samples", "evaluate", "loss", "distill"):
            if getattr(self, name):
                raise ConfigError(f"{name}: not supported with by_block; leave it out.")
