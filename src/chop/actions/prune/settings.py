"""Settings of `chop prune`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar

from chop.config import MORE, Range
from chop.errors import ConfigError
from chop.workloads.settings import DistillConfig, WorkloadConfig

SIZES = {
    "layers": "num_hidden_layers",
    "mlp_width": "intermediate_size",
    "kv_heads": "num_key_value_heads",
    "hidden_size": "hidden_size",
}
"""Setting -> field of the model's configuration."""


@dataclass(frozen=True)
class PruneDecoderConfig(DistillConfig, WorkloadConfig):
    """Settings of `chop prune`.

    Attributes:
        layers: number of layers to keep. The others have the lowest block influence.
            Default: all.
        mlp_width: MLP channels to keep in each layer. Those with the smallest activations are
            removed. Default: all.
        kv_heads: key-value heads to keep in each layer. Their query heads stay with them. Default:
            all.
        hidden_size: channels of the residual stream to keep. Those with the smallest outputs of
            norms are removed. Default: all.
        calibration_rows: number of training rows that rank layers, channels and heads.
        finetune_epochs: epochs of training after pruning. Default: 0; with `distill` 15 for
            built-in models, else 1.
        finetune_lr: peak learning rate of that training. Default: 1e-4; for built-in models 3e-3,
            and less for fewer than 15 epochs.

    The other settings are those of `DistillConfig` and `WorkloadConfig`.
    """

    EPOCHS: ClassVar[str] = "finetune_epochs"
    model: str = "gpt-tiny"
    out: Path = Path("runs/prune")
    layers: Annotated[int | None, Range(1)] = None
    mlp_width: Annotated[int | None, Range(1)] = None
    kv_heads: Annotated[int | None, Range(1)] = None
    hidden_size: Annotated[int | None, Range(1)] = None
    calibration_rows: Annotated[int, Range(1, 10**9)] = field(default=128, metadata=MORE)
    finetune_epochs: Annotated[int | None, Range(0, 10_000)] = None
    finetune_lr: Annotated[float | None, Range(1e-9, 10)] = field(default=None, metadata=MORE)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.sizes:
            raise ConfigError(f"chop prune: pass at least one of {', '.join(SIZES)}.")
        if self.finetune_lr is not None and self.epochs == 0:
            raise ConfigError("finetune_lr: nothing is trained; pass distill or finetune_epochs.")
        if self.distill_hidden and self.distill_teacher and self.layers:
            raise ConfigError(
                "distill_hidden: each remaining layer is compared with its layer in the original; "
                "leave distill_teacher or layers out."
            )

    @property
    def epochs(self) -> int | None:
        """Epochs of training after pruning; None for the default of the model."""
        return 0 if self.finetune_epochs is None and not self.distill else self.finetune_epochs

    @property
    def sizes(self) -> dict[str, int]:
        """Given sizes by field of the model's configuration."""
        given = {field: getattr(self, name) for name, field in SIZES.items()}
        return {field: size for field, size in given.items() if size is not None}
