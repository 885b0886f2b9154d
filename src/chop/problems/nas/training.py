"""Training objective: a configuration is evaluated by training its model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from chop.base.files import write_json
from chop.errors import ConfigError
from chop.problems.nas.compression import Compression, raise_graph, size_bytes
from chop.search.objective import NotANumberError, Report
from chop.search.space import Config
from chop.train import Judge, Rows, evaluate, fit_and_report
from chop.train import split_rows as split_rows
from chop.train.tasks import CLASSIFICATION, Task

TRAINING = {"epochs": 5, "lr": 3e-3, "batch_size": 64, "seed": 0}
"""Default training arguments of `chop.train.fit`."""


@dataclass
class TrainedMeasure:
    """Objective that trains a configuration and evaluates it on held-out rows.

    It is an objective of `chop.search.Search`, and returns the task metric by its name (`accuracy`,
    0 to 1), `parameters` and `size_bytes`. With a pruner, it reports the metric after each epoch.

    Attributes:
        build: configuration -> untrained model, the same each time.
        train: training rows.
        validation: validation rows; `split_rows` makes both from training rows.
        training: arguments of `chop.train.fit`. The seed is fixed unless given.
        compression: compression of the trained model before evaluation, see `Compression`.
        device: training device. None leaves the model where it was built.
        task: task of the model.
        judge: user's function that evaluates models in place of the rows.
        last: latest measured model, for `save`.
    """

    build: Callable[[Config], nn.Module]
    train: Rows
    validation: Rows
    training: Mapping[str, Any] = field(default_factory=dict)
    compression: Compression = field(default_factory=Compression)
    device: torch.device | str | None = None
    task: Task = CLASSIFICATION
    judge: Judge | None = None
    last: nn.Module | None = field(default=None, init=False, repr=False)

    def __call__(self, config: Config, report: Report) -> dict[str, float]:
        """Measures one configuration; exceptions of `report` propagate."""
        self.last = model = self.trained(config, report)
        return {
            self.task.metric.name: self._value(model),
            "parameters": float(sum(p.numel() for p in model.parameters())),
            "size_bytes": size_bytes(model),
        }

    def _value(self, model: nn.Module) -> float:
        if self.judge is None:
            return evaluate(model, self.validation, device=self.device, task=self.task)
        try:
            return self.judge.score(model).value
        except ConfigError as error:  # specific to this model: only its trial fails
            raise NotANumberError(str(error)) from error

    def save(self, config: Config, folder: Path) -> None:
        """Saves the latest measured model, for `chop.search.Search(save=...)`.

        `model.pt` and `model.mz` are its graph, readable by `MaseGraph.from_checkpoint`.
        `choices.json` has the configuration.
        """
        assert self.last is not None
        raise_graph(self.last, self.train).export(folder / "model")
        write_json(folder / "choices.json", dict(config))

    def trained(self, config: Config, report: Report | None = None) -> nn.Module:
        """Returns the trained and optionally compressed model of a configuration."""
        model = self.build(config)
        training = {**TRAINING, "device": self.device, "task": self.task, **self.training}
        fit_and_report(model, self.train, training, report, lambda: self._value(model))
        return self.compression.apply(model, self.train, training)
