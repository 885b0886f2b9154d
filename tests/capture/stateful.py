"""Modules that keep state, and calls in a row that a capture has to give too."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from chop.captured.leaves import tensors_in

Forward = Callable[[Any, Tensor], Any]


class Made(nn.Module):
    """A layer of width 4, attributes and a forward that are given."""

    def __init__(self, forward: Forward, **attributes: Any) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 2.5, 4))
        for name, value in attributes.items():
            if isinstance(value, Tensor) and not isinstance(value, nn.Parameter):
                self.register_buffer(name, value)
            else:
                setattr(self, name, value)
        self.call = forward

    def forward(self, x: Tensor) -> Any:
        return self.call(self, x)


def within(model: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), model)


def draws(batch: int = 3) -> Tensor:
    return torch.randn(batch, 4)


def assert_same_calls(
    model: nn.Module, captured: nn.Module, training: bool = False, calls: int = 3
) -> None:
    """The same calls in a row give the same results, from the state of now."""
    ours, theirs = copy.deepcopy(captured), copy.deepcopy(model)
    for seed in range(calls):
        x = draws(3 + seed)
        torch.manual_seed(seed)
        expected = theirs.train(training)(x)
        torch.manual_seed(seed)
        found = ours.train(training)(x)
        torch.testing.assert_close(tensors_in(found), tensors_in(expected), rtol=0, atol=0)
