"""Calls with gradients, after which a model and its capture have to be the same."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import torch
from torch import Tensor, nn

from chop.captured.leaves import tensors_in


def trained_call(module: nn.Module, training: bool, batch: int, seed: int) -> dict[str, Any]:
    """Results, gradients and state of one call; None stands for no gradient."""
    module.train(training)
    module.zero_grad()
    torch.manual_seed(seed)
    x = torch.randn(batch, 4, requires_grad=True)
    outputs = tensors_in(module(x * 1))
    if any(y.requires_grad for y in outputs):
        weights = torch.Generator().manual_seed(seed)
        parts = [y * torch.randn(y.shape, generator=weights, dtype=y.dtype) for y in outputs]
        torch.stack([part.sum() for part in parts if part.requires_grad]).sum().backward()
    state = {name: value.clone() for name, value in module.state_dict().items()}
    gradients = {name: copy.copy(p.grad) for name, p in module.named_parameters()}
    return {"outputs": outputs, "x": x.grad, "state": state, "gradients": gradients}


def assert_trains_alike(model: nn.Module, captured: nn.Module) -> None:
    """Calls of both modes, one after the other, give what they give of the model."""
    theirs, ours = copy.deepcopy(model), copy.deepcopy(captured)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for training, batch, seed in ((True, 3, 1), (False, 5, 2), (True, 5, 3), (False, 3, 4)):
            expected = trained_call(theirs, training, batch, seed)
            found = trained_call(ours, training, batch, seed)
            for name, value in _flat(expected).items():
                other = _flat(found)[name]
                assert (other is None) == (value is None), name
                torch.testing.assert_close(other, value, msg=lambda text, n=name: f"{n}: {text}")


def _flat(value: Any, name: str = "") -> dict[str, Tensor | None]:
    if isinstance(value, Tensor | None):
        return {name: value}
    parts = value.items() if isinstance(value, dict) else enumerate(value)
    return {k: x for key, part in parts for k, x in _flat(part, f"{name} {key}").items()}
