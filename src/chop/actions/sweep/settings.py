"""Settings of `chop sweep quantize` and `chop sweep prune`."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from chop.actions.compress.settings import QuantizationSettings, default_operators
from chop.actions.sweep.grid import parse_range, whole
from chop.config import MORE, Range
from chop.errors import ConfigError, check_known
from chop.workloads.settings import DistillConfig, JudgedConfig, WorkloadConfig

DERIVED = ("auto", "minmax", "mse")
"""Rules that calibrate the fraction of each tensor."""
WIDTHS, HALF = "4:32:4", "half"
INTEGER_BITS, FRACTION_BITS = "1:6", "1:12"
Numbers = str | int | tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class QuantizeSweepConfig(JudgedConfig, QuantizationSettings):
    """Settings of `chop sweep quantize`.

    Attributes:
        widths: bit widths, as 2,4,8 or 2:8:1. Ranges are `first:last:step`.
        frac: fraction widths, one curve each. Separated by commas: `half` of the width; numbers
            and ranges (used if below the width); `auto`, `minmax` or `mse` (calibrated by tensor).
        integer_bits: integer bits to vary instead of widths. They include the sign, and are
            numbers or ranges. Integer bits beyond the largest weights and inputs are skipped.
            Default: widths are varied; 1:6 with `fraction_bits`.
        fraction_bits: fraction bits to vary instead of widths. Integer bits are varied first, at
            the most fraction bits; then fraction bits, at the fewest integer bits without a loss by
            PTQ. Default: widths are varied; 1:12 with `integer_bits`.
        seeds: number of seeds of QAT, beginning with `seed`. Tables and figures have their mean
            and range.

    The other settings are those of `JudgedConfig`, `QuantizationSettings`, `DistillConfig` and
    `WorkloadConfig`.
    """

    out: Path = Path("runs/sweep-quantize")
    widths: Numbers = WIDTHS
    frac: str | int = HALF
    integer_bits: Numbers | None = None
    fraction_bits: Numbers | None = None
    seeds: Annotated[int, Range(1, 100)] = 1

    def __post_init__(self) -> None:
        from chop.formats import Integer

        super().__post_init__()
        if self.seeds > 1 and self.qat_epochs == 0:
            raise ConfigError("seeds: without QAT every seed is alike: leave seeds out.")
        if self.splits_widths:
            self._check_split()
            return
        for width in whole(parse_range(self.widths, "widths"), "widths"):
            Integer(width, 0)
        for settings in self.lines().values():
            for width, frac_width in settings:
                Integer(width, frac_width)  # type: ignore[arg-type]

    @property
    def splits_widths(self) -> bool:
        """True if integer bits and fraction bits are varied instead of widths."""
        return self.integer_bits is not None or self.fraction_bits is not None

    def split(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Returns integer bits and fraction bits of the sweep in ascending order."""
        given = {
            "integer_bits": INTEGER_BITS if self.integer_bits is None else self.integer_bits,
            "fraction_bits": FRACTION_BITS if self.fraction_bits is None else self.fraction_bits,
        }
        integer, fraction = (whole(parse_range(bits, name), name) for name, bits in given.items())
        return integer, fraction

    def _check_split(self) -> None:
        from chop.formats import Integer

        if (self.widths, self.frac) != (WIDTHS, HALF):
            raise ConfigError(
                "integer_bits: leave out widths and frac; a width is integer bits + fraction bits."
            )
        integer, fraction = self.split()
        if integer[0] < 1:
            raise ConfigError(f"integer_bits: got {integer[0]}, expected 1 or more for the sign.")
        for bits, frac_width in itertools.product(integer, fraction):
            Integer(bits + frac_width, frac_width)

    def lines(self) -> dict[str, list[tuple[int, int | str]]]:
        """Returns widths and fractions of each curve, by the name of its fraction.

        Raises:
            ConfigError: if a range is malformed, or no fraction is below its width.
        """
        pairs = {label: [*filter(_is_below, each)] for label, each in self._pairs().items()}
        lines = {label: settings for label, settings in pairs.items() if settings}
        if not lines:
            raise ConfigError(f"frac: '{self.frac}': expected a fraction below a width.")
        return lines

    def unmeasured(self) -> list[str]:
        """Returns the settings `width.fraction` without a fraction below the width."""
        pairs = [pair for each in self._pairs().values() for pair in each]
        return [f"{width}.{frac}" for width, frac in pairs if not _is_below((width, frac))]

    def _pairs(self) -> dict[str, list[tuple[int, int | str]]]:
        widths = whole(parse_range(self.widths, "widths"), "widths")
        lines: dict[str, list[tuple[int, int | str]]] = {}
        for part in (part.strip() for part in str(self.frac).split(",")):
            if part == HALF:
                lines[part] = [(width, width // 2) for width in widths]
            elif part in DERIVED:
                lines[part] = [(width, part) for width in widths]
            else:
                for frac in whole(parse_range(part, "frac"), "frac"):
                    lines[str(frac)] = [(width, frac) for width in widths]
        return lines


def _is_below(pair: tuple[int, int | str]) -> bool:
    width, frac = pair
    return isinstance(frac, str) or frac < width


def _default_products() -> tuple[str, ...]:
    """Returns the names of quantizable operators that multiply by a weight."""
    from chop.ir.ops import OPS

    return tuple(name for name in default_operators() if OPS[name].is_product)


class PruneSetting(NamedTuple):
    """Pruning of a point of the sweep.

    Attributes:
        weight: method and share for weights, or None.
        activation: method and share for inputs of operators, or None.
    """

    weight: tuple[str, float] | None
    activation: tuple[str, float] | None

    @property
    def part(self) -> str:
        """One of `PARTS`."""
        if self.weight is None or self.activation is None:
            return "activations" if self.weight is None else "weights"
        return "both"

    @property
    def sparsity(self) -> float:
        """Share of pruned weights; without pruned weights, of pruned inputs."""
        pruned = self.weight or self.activation
        assert pruned is not None
        return pruned[1]

    @property
    def draws(self) -> bool:
        """True if a method is random."""
        return any(each is not None and each[0] == "random" for each in self)


PARTS = ("weights", "activations", "both")


@dataclass(frozen=True, kw_only=True)
class PruneSweepConfig(JudgedConfig, DistillConfig, WorkloadConfig):
    """Settings of `chop sweep prune`.

    Attributes:
        sparsity: shares of weights to prune, as 0.5,0.9. Ranges are `first:last:step`, as
            0.1:0.9:0.1.
        methods: pruning scores, as l1-norm,wanda. Each is a pair of curves.
        activation: scores that also prune inputs of operators. The scores are l1-norm and random.
            Default: inputs are not pruned.
        activation_sparsity: shares of inputs to prune. Default: those of weights, with equal shares
            when both are pruned.
        parts: pruned parts, one figure each: weights, activations, both (every method of weights
            with every method of activations). Default: weights; with `activation` all three.
        start_from: run or checkpoint to prune. It is a folder of `chop sweep quantize` (the point
            with the best metric), one of `chop compress`, or a checkpoint. Model and data are those
            of the folder. Default: the float model.
        scope: pruned share per layer, or over all layers. `local` prunes the share in each layer,
            `global` over all layers together.
        operators: operators to prune, by name: linear, conv2d ... Default: all that multiply by a
            weight.
        finetune_epochs: epochs of fine-tuning after pruning. With 0 only pruning is measured.
            Default: 15 for built-in models, else 1.
        finetune_lr: peak learning rate of fine-tuning. Default: 1e-4; for built-in models 3e-3,
            and less for fewer than 15 epochs.
        calibration_rows: training rows for the scores that need data.
        seeds: number of seeds of random pruning and fine-tuning. They begin with `seed`; tables and
            figures have their mean and range.

    The other settings are those of `JudgedConfig`, `DistillConfig` and `WorkloadConfig`.
    """

    EPOCHS: ClassVar[str] = "finetune_epochs"
    out: Path = Path("runs/sweep-prune")
    sparsity: str | float | tuple[float, ...] = "0.1:0.9:0.1"
    methods: tuple[str, ...] = ("l1-norm", "random")
    activation: tuple[Literal["l1-norm", "random"], ...] = ()
    activation_sparsity: str | float | tuple[float, ...] | None = field(default=None, metadata=MORE)
    parts: tuple[Literal["weights", "activations", "both"], ...] = field(default=(), metadata=MORE)
    start_from: Path | None = None
    scope: Literal["local", "global"] = "local"
    operators: tuple[str, ...] = field(default_factory=_default_products, metadata=MORE)
    finetune_epochs: Annotated[int | None, Range(0, 10_000)] = None
    finetune_lr: Annotated[float | None, Range(1e-9, 10)] = field(default=None, metadata=MORE)
    calibration_rows: Annotated[int, Range(1, 10**9)] = field(default=256, metadata=MORE)
    seeds: Annotated[int, Range(1, 100)] = 1

    def __post_init__(self) -> None:
        from chop.config import convert, parse
        from chop.nn.sparsity import SCORES
        from chop.pruning.settings import PruneConfig
        from chop.quantization.named_operators import check_operators

        super().__post_init__()
        if self.start_from is not None:
            object.__setattr__(self, "start_from", Path(self.start_from).expanduser())
        convert(self.scope, Literal["local", "global"], "scope")
        check_operators(self.operators, default_operators())
        if not self.methods:
            raise ConfigError("methods: expected at least one.")
        for name in self.methods:
            check_known(name, SCORES, "methods: unknown")
        if self.finetune_lr is not None and self.finetune_epochs == 0:
            raise ConfigError("finetune_lr: nothing is trained, since finetune_epochs is 0.")
        for name in self.parts:
            check_known(name, PARTS, "parts: unknown")
        if not self.activation and (self.activation_sparsity is not None or self.inputs_are_pruned):
            raise ConfigError("activation: expected at least one method, such as l1-norm.")
        for setting in self.settings():
            settings = {**self.pass_args(setting, self.seed), "batches": ()}
            parse(PruneConfig, settings, "chop sweep prune")

    @property
    def measured_parts(self) -> tuple[str, ...]:
        """Pruned parts, in the order of `PARTS`."""
        chosen = self.parts or (PARTS if self.activation else PARTS[:1])
        return tuple(part for part in PARTS if part in chosen)

    @property
    def inputs_are_pruned(self) -> bool:
        """True if some points prune inputs."""
        return self.measured_parts != PARTS[:1]

    def settings(self) -> list[PruneSetting]:
        """Returns the points of the sweep, grouped by curve."""
        weights = list(itertools.product(self.methods, _shares(self.sparsity, "sparsity")))
        paired = self.activation_sparsity is None
        shares = self.sparsity if self.activation_sparsity is None else self.activation_sparsity
        inputs = list(itertools.product(self.activation, _shares(shares, "activation_sparsity")))
        points = {
            "weights": [PruneSetting(weight, None) for weight in weights],
            "activations": [PruneSetting(None, activation) for activation in inputs],
            "both": [
                PruneSetting(weight, activation)
                for weight, activation in itertools.product(weights, inputs)
                if not paired or weight[1] == activation[1]
            ],
        }
        return list(dict.fromkeys(point for part in self.measured_parts for point in points[part]))

    def pass_args(self, setting: PruneSetting, seed: int) -> dict[str, Any]:
        """Returns the settings of `prune_transform_pass` for a point, without data."""
        common = {"scope": self.scope, "seed": seed}
        named = {"weight": setting.weight, "activation": setting.activation}
        pruned = {
            operand: {"method": pruning[0], "sparsity": pruning[1], **common}
            for operand, pruning in named.items()
            if pruning is not None
        }
        return {**pruned, "include": self.operators}


def _shares(given: str | float | tuple[float, ...], where: str) -> tuple[float, ...]:
    """Returns the sparsities of a sweep."""
    if pattern := re.search(r"(?<![\d.:])[1-9]\d*:[1-9]\d*(?![\d.:])", str(given)):
        raise ConfigError(
            f"{where}: '{pattern[0]}' is a pattern of the weights, and the sweep prunes shares, as "
            "0.5,0.9. In Python, prune_transform_pass has the pattern: "
            f'{{"weight": {{"granularity": "{pattern[0]}"}}}}.'
        )
    if per_cent := re.search(r"(\d+(?:\.\d+)?)\s*%", str(given)):
        share = float(per_cent[1]) / 100
        raise ConfigError(
            f"{where}: got '{given}', expected shares; for per cent, write {share:g}."
        )
    shares = tuple(map(float, parse_range(given, where)))
    Range(0, below=1).check(shares, where)
    return shares
