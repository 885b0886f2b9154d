"""Settings of `chop lower`, and those that it shares with `chop emit`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Literal

from chop.config import MORE
from chop.workloads.settings import Ranges, WorkloadConfig


@dataclass(frozen=True)
class LoweringConfig(WorkloadConfig):
    """Formats and widths of an integer graph.

    Attributes:
        formats: number format of all operators: an integer `width.fraction` (`8.auto` calibrates
            each tensor's fraction), or `name:field=value`, as `scale_integer:width=8`.
        internal_bits: width of integers inside softmax and norms: small, as in a circuit, or
            exact, as wide as 64 bits allow.
        calibration_rows: training rows that calibrate fractions and scales of activations.

    The other settings are those of `WorkloadConfig`.
    """

    RANGES: ClassVar[Ranges] = {"calibration_rows": (1, 10**9)}

    formats: str = "8.auto"
    internal_bits: Literal["small", "exact"] = field(default="small", metadata=MORE)
    calibration_rows: int = field(default=256, metadata=MORE)


@dataclass(frozen=True)
class LowerConfig(LoweringConfig):
    """Settings of `chop lower`.

    Attributes:
        rows: number of test rows, in one batch: of the comparison and of the golden files.

    The other settings are those of `LoweringConfig`.
    """

    RANGES: ClassVar[Ranges] = {"rows": (1, 10**9)}

    out: Path = Path("runs/lower")
    rows: int = 256
