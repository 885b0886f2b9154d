"""Branches on the dtype and the memory layout of an input, which no graph has."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from torch import Tensor, nn

from chop import MaseGraph
from chop.capture.input_guards import InputGuardWarning


class ByDtype(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = x + 1
        return y * 2 if y.dtype == torch.float32 else y * 3


class ByLayout(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 2 if x.is_contiguous() else x * 3


class ByStride(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 2 if x.stride(-1) == 1 else x * 3


OTHER = {
    ByDtype: (torch.randn(3, 4).double(), "dtype torch.float32, got torch.float64"),
    ByLayout: (torch.randn(4, 3).t(), "memory layout contiguous, got not contiguous"),
    ByStride: (torch.randn(4, 3).t(), "memory layout contiguous, got not contiguous"),
}


@pytest.mark.parametrize("kind", OTHER, ids=lambda kind: kind.__name__)
def test_an_input_of_which_the_model_would_be_told_something_else_is_warned_of(kind) -> None:
    x, (other, message) = torch.randn(3, 4), OTHER[kind]
    graph = MaseGraph(kind(), dummy_in={"x": x}).model
    assert torch.equal(graph(x), kind()(x))
    assert torch.equal(graph(torch.randn(5, 4).fill_(1)), kind()(torch.ones(5, 4)))
    for each in (graph, copy.deepcopy(graph)):
        with pytest.warns(InputGuardWarning, match=f"captured for x of {message}.*:\\d+, and"):
            each(other)


def test_nothing_is_said_of_a_model_that_does_not_ask() -> None:
    graph = MaseGraph(nn.Sequential(nn.Flatten()), dummy_in={"input": torch.ones(2, 3, 4)}).model
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert graph(torch.ones(2, 4, 3).double().transpose(1, 2)).shape == (2, 12)


def test_an_example_that_is_not_contiguous_is_what_later_inputs_are_compared_with() -> None:
    graph = MaseGraph(ByLayout(), dummy_in={"x": torch.randn(4, 3).t()}).model
    transposed = torch.randn(4, 3).t()
    assert torch.equal(graph(transposed), transposed * 3)
    with pytest.warns(InputGuardWarning, match="not contiguous, got contiguous"):
        graph(torch.randn(3, 4))
