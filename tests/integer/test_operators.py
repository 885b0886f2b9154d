"""Lowering of the operators that the built-in models lack, and refusals of their calls."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from chop import MaseGraph, passes
from chop.errors import ConfigError, GuardError
from chop.formats import QuantSpec, parse_format_string
from chop.ir.ops import quantizable_operators


class Pooled(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 6, 3, padding=1)
        self.max_pool, self.average = nn.MaxPool2d(2), nn.AvgPool2d(3, 1, 1)
        self.adaptive, self.norm = nn.AdaptiveAvgPool2d(2), nn.RMSNorm(5)
        self.mixed, self.last = nn.Linear(6, 5), nn.Linear(24, 5)

    def forward(self, x):
        y = self.average(self.conv2(self.max_pool(F.relu(self.conv1(x)))))
        a, b = self.mixed(y.mean((2, 3))), self.last(self.adaptive(y).flatten(1))
        first, second = torch.cat([a, b], 1).chunk(2, 1)
        c = first * second - a
        d = self.last(F.pad(torch.zeros(1), (0, 23)).expand(x.shape[0], 24)) + self.norm(c)
        products = F.silu(torch.tanh(c)) @ torch.sigmoid(b).transpose(0, 1)
        return torch.stack([a, b]), c.sum(1), products, torch.softmax(d, -1) @ d.transpose(0, 1)


class WithNumber(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.a, self.function, self.b = nn.Linear(4, 4), function, nn.Linear(4, 3)

    def forward(self, x):
        return self.b(self.function(self.a(x)))


class Functional(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 4))

    def forward(self, x):
        return F.linear(x, self.weight)


class Sorted(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.layer = nn.Embedding(9, 4), nn.Linear(4, 2)

    def forward(self, x):
        return self.layer(self.table(x % 9))


def quantized(model, x):
    mg = MaseGraph(model.eval(), dummy_in={"x": x})
    mg, _ = passes.add_common_metadata_analysis_pass(mg, {"dummy_in": {"x": x}})
    spec = {"config": QuantSpec.uniform(parse_format_string("8.auto"))}
    present = {mg.operator(node).name for node in mg.nodes}
    rules = dict.fromkeys(present.intersection(quantizable_operators()), spec)
    mg, _ = passes.quantize_transform_pass(mg, {"by": "type", **rules})
    return passes.calibrate_transform_pass(mg, {"batches": [{"x": x}]})[0]


def lowered(mg, *batches):
    return passes.lower_to_integer_transform_pass(mg, {"batches": [{"x": x} for x in batches]})


def test_pools_products_and_what_is_joined():
    mg, x = quantized(Pooled(), torch.randn(5, 1, 8, 8)), torch.randn(5, 1, 8, 8)
    integer, info = lowered(mg, x)
    rows = {row["kind"]: row for row in info["operators"]}
    assert {"max_pool2d", "avg_pool2d", "adaptive_avg_pool2d", "mean", "sum"} < set(rows)
    assert {"mul", "sub", "matmul", "tanh", "silu", "sigmoid", "rms_norm", "softmax"} < set(rows)
    exact = [row for kind, row in rows.items() if kind not in ("rms_norm", "softmax")]
    assert all(row["different"] == 0 for row in exact)
    assert all(row["largest"] <= 1 for row in rows.values())
    with torch.no_grad():
        *same, last = zip(integer.model(x), mg.model(x), strict=True)
    assert all(torch.equal(found, expected) for found, expected in same)
    assert torch.allclose(*last, atol=0.1)


@pytest.mark.parametrize(
    ("model", "x", "named"),
    [
        (Functional, torch.randn(3, 4), r"linear \(linear with parameters that no module owns\)"),
        (Sorted, torch.arange(6).view(2, 3), r"remainder \(remainder of integers\)"),
    ],
    ids=["parameters", "whole numbers"],
)
def test_calls_without_an_integer_form_are_named(model, x, named):
    with pytest.raises(ConfigError, match=f"there is no integer form of {named}"):
        lowered(quantized(model(), x), x)


NUMBERS = {
    "product": lambda x: x * 0.3,
    "number first": lambda x: 1 - x,
    "in-place": lambda x: x.add_(1),
    "negative": lambda x: torch.mul(x, -3),
    "method": lambda x: x.sub(0.7),
    "alpha": lambda x: torch.add(x, 2, alpha=3),
    "several": lambda x: (1 - x) * 0.3 + x,
    "size": lambda x: x * (x.size(-1) ** -0.5),
    "zero": lambda x: x * 0,
}


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", NUMBERS)
def test_sums_and_products_with_numbers_equal_the_quantized_model(name):
    torch.manual_seed(0)
    x = torch.randn(9, 4)
    mg = quantized(WithNumber(NUMBERS[name]), x)
    integer, info = lowered(mg, x)
    assert all(row["different"] == 0 for row in info["operators"])
    assert torch.equal(integer.model(x), mg.model(x))


def test_a_product_with_a_number_can_be_the_result_of_a_model():
    torch.manual_seed(0)
    x, model = torch.randn(9, 4), nn.Sequential(nn.Linear(4, 4), Doubled())
    mg = quantized(Named(model), x)
    assert torch.equal(lowered(mg, x)[0].model(x), mg.model(x))


class Doubled(nn.Module):
    def forward(self, x):
        return x * 2


class Named(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        return self.model(x)


@pytest.mark.long
def test_batches_of_two_sizes_are_refused_where_the_graph_computes_with_the_batch():
    mg = quantized(Pooled(), torch.randn(5, 1, 8, 8))
    with pytest.raises(GuardError, match=r"fixed to x.shape\[0\] == 5 by lower_to_integer"):
        lowered(mg, torch.randn(5, 1, 8, 8), torch.randn(4, 1, 8, 8))
