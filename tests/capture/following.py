"""A capture that equals eager, its copies and pickles too."""

from __future__ import annotations

import copy
import pickle
import warnings
from typing import Any

import torch
from torch import Tensor, nn

from chop.capture.tracer import capture
from chop.captured.leaves import tensors_in
from chop.captured.module import CapturedModule
from chop.captured.record import CaptureWarning


def example(batch: int = 3, length: int = 14) -> dict[str, Tensor]:
    return {"x": torch.randn(batch, length, 8)}


def silent_capture(model: nn.Module, inputs: dict[str, Any]) -> CapturedModule:
    with warnings.catch_warnings():
        warnings.simplefilter("error", CaptureWarning)
        return capture(model, inputs)


def assert_follows(
    model: nn.Module, captured: CapturedModule, *inputs: dict[str, Any], pickles: bool = True
) -> None:
    """The capture, a copy and a pickle of it equal the model in `eval()` and in `train()`."""
    twins = [captured, copy.deepcopy(captured)]
    if pickles:
        twins.append(pickle.loads(pickle.dumps(captured)))
    for training in (False, True):
        for given in inputs:
            outputs = []
            for module in (model.train(training), *(twin.train(training) for twin in twins)):
                torch.manual_seed(0)
                outputs.append(tensors_in(module(**copy.deepcopy(given))))
            assert outputs[0]
            for found in outputs[1:]:
                torch.testing.assert_close(found, outputs[0], rtol=0, atol=0)
