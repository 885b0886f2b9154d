"""Settings of `chop sweep quantize` and `chop sweep prune`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

from chop.actions.settings.compress import QuantizationSettings, default_operators
from chop.actions.settings.workload import Ranges, WorkloadConfig
from chop.actions.sweep.grid import parse_range, whole
from chop.errors import ConfigError

DERIVED = ("auto", "minmax", "mse")
"""Rules that calibrate the fraction of each tensor."""


@dataclass(frozen=True, kw_only=True)
class QuantizeSweepConfig(QuantizationSettings):
    """Settings of `chop sweep quantize`.

    Attributes:
        widths: bit widths: numbers by commas, or ranges `first:last:step`.
        frac: fraction widths by commas, one curve each: `half` of the width; numbers and ranges
            (those below the width); `auto`, `minmax` or `mse`, which calibrate each tensor's.

    The other settings are those of `QuantizationSettings` and `WorkloadConfig`.
    """

    out: Path = Path("runs/sweep-quantize")
    widths: str | int | tuple[int, ...] = "4:32:4"
    frac: str | int = "half"

    def __post_init__(self) -> None:
        from chop.formats import Integer

        super().__post_init__()
        for settings in self.lines().values():
            for width, frac_width in settings:
                Integer(width, frac_width)  # type: ignore[arg-type]

    def lines(self) -> dict[str, list[tuple[int, int | str]]]:
        """Widths and fractions of each curve, by the name of its fraction.

        Raises:
            ConfigError: a range is malformed, or no fraction is below its width.
        """
        pairs = {label: [*filter(_is_below, found)] for label, found in self._pairs().items()}
        lines = {label: settings for label, settings in pairs.items() if settings}
        if not lines:
            raise ConfigError(f"frac: '{self.frac}': no fraction is below a width.")
        return lines

    def left_out(self) -> list[str]:
        """What is not measured, as `width.fraction`: the fraction is not below the width."""
        pairs = [pair for found in self._pairs().values() for pair in found]
        return [f"{width}.{frac}" for width, frac in pairs if not _is_below((width, frac))]

    def _pairs(self) -> dict[str, list[tuple[int, int | str]]]:
        widths = whole(parse_range(self.widths, "widths"), "widths")
        lines: dict[str, list[tuple[int, int | str]]] = {}
        for part in (part.strip() for part in str(self.frac).split(",")):
            if part == "half":
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


def default_products() -> tuple[str, ...]:
    """The names of quantizable operators that multiply by a weight."""
    from chop.ir.ops import OPS

    return tuple(name for name in default_operators() if OPS[name].is_product)


@dataclass(frozen=True, kw_only=True)
class PruneSweepConfig(WorkloadConfig):
    """Settings of `chop sweep prune`.

    Attributes:
        sparsity: shares of weights to prune: numbers by commas, or ranges `first:last:step`.
        methods: pruning scores, one pair of curves each: l1-norm, l2-norm, random, movement, snip,
            wanda.
        scope: `local` prunes the share in each layer, `global` over all layers together.
        operators: operators to prune, by name: linear, conv2d ... Default: all that multiply by a
            weight.
        finetune_epochs: epochs of fine-tuning after pruning; 0 measures pruning only. Default: 15
            for built-in models, else 1.
        finetune_lr: peak learning rate of fine-tuning. Default: by model and number of epochs.
        calibration_rows: training rows for the scores that need data.

    The other settings are those of `WorkloadConfig`.
    """

    RANGES: ClassVar[Ranges] = {
        "finetune_epochs": (0, 10_000),
        "finetune_lr": (1e-9, 10),
        "calibration_rows": (1, 10**9),
    }

    out: Path = Path("runs/sweep-prune")
    sparsity: str | float | tuple[float, ...] = "0.1:0.9:0.1"
    methods: tuple[str, ...] = ("l1-norm", "random")
    scope: Literal["local", "global"] = "local"
    operators: tuple[str, ...] = field(default_factory=default_products)
    finetune_epochs: int | None = None
    finetune_lr: float | None = None
    calibration_rows: int = 256

    def __post_init__(self) -> None:
        from chop.actions.ptq import check_operators
        from chop.config import convert, parse
        from chop.pruning.settings import PruneConfig

        super().__post_init__()
        convert(self.scope, Literal["local", "global"], "scope")
        check_operators(self.operators, default_operators())
        if not self.methods:
            raise ConfigError("methods: expected at least one.")
        for value in self.shares():
            if not 0 <= value < 1:
                raise ConfigError(f"sparsity: got {value}, expected 0 to below 1.")
        for method in self.methods:
            parse(PruneConfig, {**self.pass_args((method, 0.5)), "batches": ()}, "chop sweep prune")

    def shares(self) -> tuple[float, ...]:
        """The sparsities of the sweep."""
        return tuple(map(float, parse_range(self.sparsity, "sparsity")))

    def pass_args(self, setting: tuple[str, float]) -> dict[str, Any]:
        """The settings of `prune_transform_pass` for a method and a sparsity, without data."""
        method, share = setting
        weight = {"method": method, "sparsity": share, "scope": self.scope, "seed": self.seed}
        return {"weight": weight, "include": self.operators}
