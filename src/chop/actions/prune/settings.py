"""Settings of `chop prune`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from chop.config import MORE, Range
from chop.errors import ConfigError
from chop.workloads.settings import WorkloadConfig

SIZES = {
    "layers": "num_hidden_layers",
    "mlp_width": "intermediate_size",
    "kv_heads": "num_key_value_heads",
}
"""Setting -> field of the model's configuration."""


@dataclass(frozen=True)
class PruneDecoderConfig(WorkloadConfig):
    """Settings of `chop prune`.

    Attributes:
        layers: number of layers to keep. The others have the lowest block influence.
            Default: all.
        mlp_width: MLP channels to keep in each layer. Those with the smallest activations are
            removed. Default: all.
        kv_heads: key-value heads to keep in each layer. Their query heads stay with them. Default:
            all.
        calibration_rows: number of training rows that rank layers, channels and heads.

    The other settings are those of `WorkloadConfig`.
    """

    model: str = "gpt-tiny"
    out: Path = Path("runs/prune")
    layers: Annotated[int | None, Range(1)] = None
    mlp_width: Annotated[int | None, Range(1)] = None
    kv_heads: Annotated[int | None, Range(1)] = None
    calibration_rows: Annotated[int, Range(1, 10**9)] = field(default=128, metadata=MORE)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.sizes:
            raise ConfigError(f"chop prune: give at least one of {', '.join(SIZES)}.")

    @property
    def sizes(self) -> dict[str, int]:
        """Given sizes by field of the model's configuration."""
        given = {field: getattr(self, name) for name, field in SIZES.items()}
        return {field: size for field, size in given.items() if size is not None}
