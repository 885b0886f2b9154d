"""Settings of `chop bench model`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from chop.config import MORE, Range, check_fields
from chop.errors import ConfigError


@dataclass(frozen=True)
class BenchModelConfig:
    """Settings of `chop bench model`.

    Attributes:
        model: float model: built-in name, folder or hub name. `file.py:Net` and `timm:NAME` work
            too. Default: that of `compressed`, else vit.
        dataset: data set of the inputs. Default: that of `compressed`, else the model's own.
        compressed: output folder of `chop compress`. Default: the model is compressed in a
            temporary folder, without training.
        format: number format if no run is given.
        out: folder for the table, plots and measurements.
        batch_sizes: batch sizes to measure.
        seconds: seconds to measure per model and batch size. More seconds narrow the confidence
            intervals.
        threads: threads of torch; one gives the steadiest ratios.
        compile: also measure torch.compile. Compiling the frozen model takes a minute.
        max_length: number of tokens to truncate texts to. Default: that of `compressed`, else the
            model's limit.
        device: torch device: cpu, cuda, cuda:1 and so on.
        matmul_precision: precision of float32 products. As in `torch.set_float32_matmul_precision`;
            with medium, packed layers may round to bfloat16 if that is faster. Default: torch's
            setting, highest.
    """

    model: str | None = None
    dataset: str | None = None
    compressed: Path | None = None
    format: str = "8.auto"
    out: Path = Path("runs/bench/model")
    batch_sizes: Annotated[tuple[int, ...], Range(1)] = (1, 16)
    seconds: Annotated[float, Range(above=0)] = 1.0
    threads: Annotated[int, Range(1, 1024)] = field(default=1, metadata=MORE)
    compile: bool = True
    max_length: int | None = field(default=None, metadata=MORE)
    device: str = "cpu"
    matmul_precision: Literal["highest", "high", "medium"] | None = field(
        default=None, metadata=MORE
    )

    def __post_init__(self) -> None:
        check_fields(self, type(self).__name__)
        if not self.batch_sizes:
            raise ConfigError("batch_sizes: expected at least one.")
        if self.compressed is not None and self.format != BenchModelConfig.format:
            raise ConfigError(
                f"format: '{self.compressed}' is quantized already: leave --format out."
            )
