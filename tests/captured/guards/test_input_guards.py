"""Branches on the dtype and the memory layout of an input, which no graph has."""

from __future__ import annotations

import copy
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from chop import MaseGraph
from chop.captured.guards.input_guards import InputGuardWarning
from chop.errors import GuardError


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


def masked(x: Tensor, mask: Tensor) -> Tensor:
    hides = ~mask if not torch.is_floating_point(mask) else mask < 0
    return x.masked_fill(hides, 0.0)


def by_method(x: Tensor, mask: Tensor) -> Tensor:
    return x + mask if mask.is_floating_point() else torch.where(mask, x, 0.0)


def attends(x: Tensor, mask: Tensor) -> Tensor:
    square, query = torch.eye(4), x.unsqueeze(1)
    settings = (4, 2, torch.cat([square] * 3), None, None, None, False, 0.0, square, None)
    attend = torch.nn.functional.multi_head_attention_forward
    return attend(query, query, query, *settings, attn_mask=mask, need_weights=False)[0]


class Masked(nn.Module):
    def __init__(self, function: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return self.function(x, mask)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("function", [masked, by_method, attends], ids=lambda f: f.__name__)
@pytest.mark.parametrize("is_bool", [True, False])
def test_whole_numbers_for_real_ones_are_refused_where_the_model_asks(
    function: Callable[[Tensor, Tensor], Tensor], is_bool: bool
) -> None:
    x, masks = torch.randn(4, 4), [torch.eye(4, dtype=torch.bool), torch.eye(4)]
    example, other = masks if is_bool else masks[::-1]
    graph = MaseGraph(Masked(function), dummy_in={"x": x, "mask": example}).model
    torch.testing.assert_close(graph(x, example), function(x, example))
    for each in (graph, copy.deepcopy(graph)):
        with pytest.raises(GuardError, match=f"for mask of {example.dtype}, got {other.dtype}"):
            each(x, other)


class Takes(nn.Module):
    def forward(self, x: Tensor, mask: Any = None, bias: Any = None, *, scale: Any = 1) -> Tensor:
        y = x * scale
        y = y if mask is None else y * mask
        return y if bias is None else y + bias


def test_more_values_than_the_graph_has_are_those_of_the_model() -> None:
    x, bias = torch.randn(3, 4), torch.randn(4)
    model = Takes()
    graph = MaseGraph(model, dummy_in={"x": x, "bias": bias}).model
    for one in (graph, copy.deepcopy(graph)):
        assert torch.equal(one(x, bias=bias), model(x, bias=bias))
        assert torch.equal(one(x, None, bias), model(x, None, bias))
        with pytest.raises(GuardError, match="mask"):
            one(x, bias, bias)
        with pytest.raises(GuardError, match="got bias by position and by name"):
            one(x, None, bias, bias=bias)
    first = MaseGraph(model, dummy_in={"x": x}).model
    assert torch.equal(first(x, None), model(x, None))
    with pytest.raises(GuardError, match="bias"):
        first(x, None, bias)


@pytest.mark.parametrize(
    ("example", "args", "kwargs", "message"),
    [
        (("x", "bias"), ("x", "bias"), (), "without mask.*by name: x, bias"),
        (("bias", "x"), ("x", "bias"), (), "without mask.*by name: x, bias"),
        (("x", "bias"), ("x", "bias"), ("bias",), "without mask"),
        (("x", "scale"), ("x", "scale"), (), "without mask.*by name: x, scale"),
        (("x",), ("x", "bias"), (), "without mask"),
        (("mask",), ("mask",), (), "captured with x=2.0(?s:.*)by name: mask"),
    ],
)
def test_positions_of_the_graph_alone_are_refused(
    example: tuple[str, ...], args: tuple[str, ...], kwargs: tuple[str, ...], message: str
) -> None:
    given = {name: torch.randn(4, 4) for name in ("x", "mask", "bias", "scale")}
    fixed = {} if "x" in example else {"x": 2.0}
    dummy = {name: given[name] for name in example}
    graph = MaseGraph(Takes(), dummy_in=dummy, cf_args=fixed).model
    for one in (graph, copy.deepcopy(graph), pickle.loads(pickle.dumps(graph))):
        with pytest.raises(GuardError, match=message):
            one(*(given[name] for name in args), **{name: given[name] for name in kwargs})


@pytest.mark.parametrize("example", [("x", "bias"), ("bias", "x"), ("bias", "x", "scale")])
def test_positions_in_the_order_of_the_model(example: tuple[str, ...]) -> None:
    given = {name: torch.randn(4, 4) for name in ("x", "bias", "scale")}
    graph = MaseGraph(Takes(), dummy_in={name: given[name] for name in example}).model
    named = {name: given[name] for name in example if name == "scale"}
    call = (given["x"], None, given["bias"])
    assert torch.equal(graph(*call, **named), Takes()(*call, **named))
    with pytest.raises(GuardError, match="at most 3 arguments by position"):
        graph(*call, 1.0)
