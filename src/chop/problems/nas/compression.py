"""Compression-aware objective: models evaluated as trained, compressed, or fine-tuned."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import nn

from chop import passes
from chop.config import convert
from chop.errors import ConfigError
from chop.ir.graph import MaseGraph
from chop.nn.sparsity import SCORES
from chop.pipelines import CompressionPipeline
from chop.train import Rows, calibration_batches, fit
from chop.train.calibration import calibrated, example_inputs

Mode = Literal["none", "compress", "compress-train"]
PASS_ARGS: dict[str, Any] = {
    "quantize_transform_pass": {
        "by": "type",
        "linear": {"config": {"name": "integer", "width": 4, "frac_width": "auto"}},
    },
    "prune_transform_pass": {"weight": {"sparsity": 0.5, "method": "l1-norm", "scope": "local"}},
}
"""Default compression settings."""


@dataclass(frozen=True)
class Compression:
    """Compression of a trained model before its evaluation.

    Attributes:
        mode: "none" evaluates the trained model; "compress" quantizes and prunes it first;
            "compress-train" then trains it again with rounding and masks in place.
        pass_args: settings of `CompressionPipeline` by pass. Data for pruning methods are supplied,
            and automatic fractions are calibrated.
        epochs: passes over the training rows for "compress-train".
        lr: maximum learning rate for "compress-train". None uses a third of the training's.
        calibration_rows: number of training rows for calibration and pruning.

    Raises:
        ConfigError: if an unknown mode, or one that compresses without settings.
    """

    mode: Mode = "none"
    pass_args: Mapping[str, Any] = field(default_factory=dict)
    epochs: int = 1
    lr: float | None = None
    calibration_rows: int = 256

    def __post_init__(self) -> None:
        convert(self.mode, Mode, "compression.mode")
        if self.mode != "none" and not self.pass_args:
            raise ConfigError(
                f"compression '{self.mode}' needs pass_args with settings for "
                "quantize_transform_pass, prune_transform_pass or both."
            )

    def apply(self, model: nn.Module, rows: Rows, training: Mapping[str, Any]) -> nn.Module:
        """Returns the model to evaluate.

        Args:
            model: trained model. It is not modified.
            rows: training rows.
            training: arguments of `chop.train.fit` used to train `model`.
        Returns: `model` in mode "none", else the model of a new graph in evaluation mode.
        Raises:
            ConfigError: if a pass setting is invalid for the model.
        """
        if self.mode == "none":
            return model
        compressed = self.compress(model, rows).model
        if self.mode == "compress-train":
            lr = training["lr"] / 3 if self.lr is None else self.lr
            fit(compressed, rows, **{**training, "epochs": self.epochs, "lr": lr})
        return compressed

    def compress(self, model: nn.Module, rows: Rows) -> MaseGraph:
        """Returns a new graph of `model`, quantized, pruned and calibrated on `rows`."""
        pass_args = self._with_batches(model, rows)
        mg, _ = CompressionPipeline()(raise_graph(model, rows), pass_args=pass_args)
        return calibrated(mg, rows, self.calibration_rows)

    def _with_batches(self, model: nn.Module, rows: Rows) -> dict[str, Any]:
        """Returns the settings with data for pruning methods that need them."""
        pruning = self.pass_args.get("prune_transform_pass") or {}
        method = pruning.get("weight", {}).get("method")
        if method not in SCORES or SCORES[method].needs is None or "batches" in pruning:
            return dict(self.pass_args)
        count = self.calibration_rows  # a list, because a pass may iterate twice
        batches = list(calibration_batches(model, rows, rows=count, with_labels=True))
        return {**self.pass_args, "prune_transform_pass": {**pruning, "batches": batches}}


def raise_graph(model: nn.Module, rows: Rows) -> MaseGraph:
    """Captures the graph of a classifier in evaluation mode with a few rows."""
    return MaseGraph(model.eval(), dummy_in=example_inputs(model, rows))


def size_bytes(model: nn.Module) -> float:
    """Returns the storage of the parameters in their formats; hidden weights count in full."""
    with torch.no_grad():
        _, info = passes.module.calculate_avg_bits_module_analysis_pass(model)
    return float(info["weight_bytes"])
