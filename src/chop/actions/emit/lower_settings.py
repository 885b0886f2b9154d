"""Settings of `chop lower`, shared in part with `chop emit`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from chop.config import MORE, Range
from chop.workloads.settings import WorkloadConfig


@dataclass(frozen=True)
class LoweringConfig(WorkloadConfig):
    """Formats and widths of an integer graph.

    Attributes:
        formats: number format of all operators. It is an integer `width.fraction` (`8.auto`
            calibrates each tensor's fraction), or `name:field=value`, as `scale_integer:width=8`.
        start_from: run or checkpoint to lower instead of the float model. It is a folder of `chop
            compress`, or a checkpoint. Its layers keep their formats; `formats` applies to other
            operators. Model and data are those of the folder. Default: the float model.
        internal_bits: width of integers inside softmax and norms: small (as in a circuit) or exact
            (up to 64 bits).
        calibration_rows: training rows that calibrate fractions and scales of activations.
        decode: let a decoder read one token at a time. Keys and values of earlier tokens are in
            caches with room for max_length tokens. Default: False.
        weight_memory: fixed, or loadable at run time. With loadable, sums are wide enough for any
            weights of the formats, and a circuit takes all trained numbers after each reset:
            weights, norms, thresholds, scales and embeddings.

    The other settings are those of `WorkloadConfig`.
    """

    takes_formats: ClassVar[bool] = True

    formats: str = "8.auto"
    start_from: Path | None = field(default=None, metadata=MORE)
    internal_bits: Literal["small", "exact"] = field(default="small", metadata=MORE)
    calibration_rows: Annotated[int, Range(1, 10**9)] = field(default=256, metadata=MORE)
    decode: bool = False
    weight_memory: Literal["fixed", "loadable"] = "fixed"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.start_from is not None:
            object.__setattr__(self, "start_from", self.start_from.expanduser())

    @property
    def lowering(self) -> dict[str, Any]:
        """Settings of `lower_to_integer_transform_pass` that do not depend on rows."""
        return {
            "internal_bits": self.internal_bits,
            "decode": self.decode,
            "weights": self.weight_memory,
        }


@dataclass(frozen=True)
class LowerConfig(LoweringConfig):
    """Settings of `chop lower`.

    Attributes:
        rows: number of test rows to compare. They form one batch, which is also that of the golden
            files.

    The other settings are those of `LoweringConfig`.
    """

    out: Path = Path("runs/lower")
    rows: Annotated[int, Range(1, 10**9)] = 256
