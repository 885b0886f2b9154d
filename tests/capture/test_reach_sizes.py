"""Arithmetic on sizes stays free; what rounds otherwise does not."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from chop.capture.sizes.size_functions import size_arithmetic
from chop.errors import GuardError
from tests.capture.following import assert_follows, example, silent_capture

# --- arithmetic on sizes -----------------------------------------------------------------------


class Takes(nn.Module):
    """Cuts its length to a number computed from it."""

    def __init__(self, length: Callable[[Any], Any]) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.dropout = nn.Dropout(0.3)
        self.length = length

    def forward(self, x: Tensor) -> Tensor:
        count = self.length(x.shape[1])
        return self.dropout(self.layer(x))[:, :count] * count


def half(t: Any) -> int:
    return int(t * 0.5)


def rounded(t: Any) -> int:
    return round(t * 0.3)


def rounded_quotient(t: Any) -> int:
    return round(t / 3)


def floored(t: Any) -> int:
    return math.floor(t * 0.3 + 0.2)


def ceiled(t: Any) -> int:
    return math.ceil(t / 4)


def root(t: Any) -> int:
    return math.floor(math.sqrt(t))


def logarithm(t: Any) -> int:
    return math.ceil(math.log(t))


def logarithm_of_base(t: Any) -> int:
    return math.ceil(math.log(t, 2))


FREE = [rounded, rounded_quotient, floored, ceiled, root, logarithm, logarithm_of_base]


@pytest.mark.parametrize("length", FREE, ids=lambda function: function.__name__)
@pytest.mark.sampled(2)
def test_functions_of_sizes_stay_free(length: Callable[[Any], Any]) -> None:
    model = Takes(length)
    captured = silent_capture(model, example())
    assert_follows(model, captured, example(), example(5, 14), example(2, 9), example(4, 29))


class ScaledByLength(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x / math.sqrt(x.shape[1]) * math.log(x.shape[1] + 1)


def test_a_root_of_a_size_scales_at_every_length() -> None:
    model = ScaledByLength()
    captured = silent_capture(model, example())
    assert captured.record.guards == []
    assert_follows(model, captured, example(), example(2, 31))


def test_int_of_a_size_holds_where_it_gives_the_same_number() -> None:
    model = Takes(half)
    captured = silent_capture(model, example())
    assert_follows(model, captured, example(5, 14), example(2, 15))
    with pytest.raises(GuardError, match=r"int\(0\.5\*float\(x\.shape\[1\]\)\) == 7 \(tested by"):
        captured(**example(5, 16))


def regrouped_product(t: Any) -> int:
    return math.floor(t * 0.01 * 100)


def regrouped_sum(t: Any) -> int:
    return math.floor(t * 0.1 + 0.2 + 0.3) + 1


def merged_terms(t: Any) -> int:
    return math.floor(t * 0.7 - t * 0.1) + 1


def distributed(t: Any) -> int:
    return math.floor((t + 0.1) * 0.3) + 1


def floor_division(t: Any) -> int:
    return int(t // 0.1) // 20


@pytest.mark.parametrize(
    "length",
    [regrouped_product, regrouped_sum, merged_terms, distributed, floor_division],
    ids=lambda function: function.__name__,
)
@pytest.mark.sampled(3)
def test_rounding_that_sympy_would_change_is_not_free(length: Callable[[Any], Any]) -> None:
    model = Takes(length)
    captured = silent_capture(model, example())
    assert_follows(model, captured, example(5, 14))
    model.eval()
    captured.eval()
    for other in range(2, 60):
        inputs = example(2, other)
        try:
            found = captured(**inputs)
        except GuardError:
            continue
        assert torch.equal(found, model(**inputs))


def test_math_is_put_back() -> None:
    before = math.sqrt, math.log, torch.SymFloat.__floordiv__
    with pytest.raises(ZeroDivisionError), size_arithmetic():
        assert math.sqrt is not before[0]
        assert (math.sqrt(4), math.log(8, 2)) == (2.0, 3.0)
        raise ZeroDivisionError
    assert (math.sqrt, math.log, torch.SymFloat.__floordiv__) == before
