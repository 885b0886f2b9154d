"""What torch's DTensor computes wrongly on shards without an error is right here, or refused."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from chop import MaseGraph, passes
from chop.distributed import ShardingPlan, process
from chop.distributed.checking.check import check_against_one_process
from chop.errors import DistributedError, PlanError
from tests.distributed import cluster

COLUMNS = {"linear.weight": ("S0",), "linear.bias": ("S0",)}
ROWS = {"linear.weight": ("S1",)}


class Made(nn.Module):
    """A module from the text of its layer, and what is done with the layer's result."""

    def __init__(self, layer: nn.Module, then: Any) -> None:
        super().__init__()
        self.linear, self.then = layer, then

    def forward(self, x: Tensor) -> Any:
        return self.then(self.linear(x))


def assigned(y: Tensor) -> Tensor:
    first = y[0]
    y[..., 1:3] = 2 * y[..., 3:5]
    y[:, 0] = 0
    return y + first


def written(y: Tensor) -> Tensor:
    part = y[..., 1:3]
    part.mul_(3)
    return y


def linear() -> nn.Module:
    return nn.Linear(6, 6)


CASES: dict[str, tuple[Any, Any, dict[str, tuple[str, ...]]]] = {
    "scan-from-the-end": (linear, lambda y: y.cumsum(-1) + y.cumprod(-1), COLUMNS),
    "scan": (linear, lambda y: y.cumsum(2) + y.logcumsumexp(1), COLUMNS),
    "assigned": (linear, assigned, COLUMNS),
    "product": (linear, lambda y: y.prod(-1), COLUMNS),
    "kernel": (lambda: nn.Conv1d(5, 8, 3, padding=1), torch.relu, {"linear.weight": ("S2",)}),
    "channels": (lambda: nn.Conv1d(5, 8, 3), torch.relu, COLUMNS),
    "groups": (lambda: nn.Conv1d(5, 10, 3, groups=5), torch.relu, {"linear.weight": ("S0",)}),
    "transposed": (lambda: nn.ConvTranspose1d(5, 8, 2, stride=2), torch.relu, COLUMNS),
}


def graph(layer: Any, then: Any) -> MaseGraph:
    torch.manual_seed(0)
    return MaseGraph(Made(layer(), then).eval(), dummy_in={"x": torch.randn(3, 5, 6)})


def results() -> dict[str, Any]:
    """Of each case the difference from one process, or the error; and what other cases say."""
    process.start((2,), "gloo")
    found: dict[str, Any] = {name: difference(*case) for name, case in CASES.items()}
    found["written"] = error_of(PlanError, lambda: difference(linear, written, COLUMNS))
    found["written, replicated"] = difference(linear, written, {})
    found["state"] = state_after_two_forwards()
    torch.manual_seed(torch.distributed.get_rank())
    mg = MaseGraph(nn.Linear(4, 4).eval(), dummy_in={"input": torch.ones(2, 4)})
    shard = passes.resharding_transform_pass
    found["weights"] = error_of(DistributedError, lambda: shard(mg, {"plan": "rows"}))
    same = graph(linear, torch.relu)
    plan = ShardingPlan((2,), COLUMNS if torch.distributed.get_rank() else ROWS)
    found["plans"] = error_of(DistributedError, lambda: shard(same, {"plan": plan}))
    return found


def difference(layer: Any, then: Any, parameters: dict[str, tuple[str, ...]]) -> float:
    mg = graph(layer, then)
    sharded, _ = passes.resharding_transform_pass(
        mg, {"plan": ShardingPlan((2,), parameters)}
    )  # checked
    x = torch.randn(3, 5, 6, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected, found = mg.model(x), sharded.model(x)
    assert found.shape == expected.shape
    return float((found - expected).abs().max() / expected.abs().max())


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)
        self.register_buffer("seen", torch.zeros(6))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.linear(x)
        self.seen += y.detach().mean((0, 1))
        return y + self.seen


def state_after_two_forwards() -> float:
    torch.manual_seed(0)
    x = torch.randn(3, 5, 6)
    mg = MaseGraph(Counting().eval().requires_grad_(False), dummy_in={"x": x})
    plan = ShardingPlan((2,), {**COLUMNS, "seen": ("S0",)})
    sharded, _ = passes.resharding_transform_pass(mg, {"plan": plan})
    check_against_one_process(mg.model, sharded.model, {"x": x})
    gaps = [(sharded.model(x) - mg.model(x)).abs().max() for _ in range(2)]
    return float(max(gaps))


def error_of(kind: type[Exception], call: Any) -> str:
    try:
        call()
    except kind as error:
        return str(error)
    return "no error"


@functools.cache
def on_two() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = cluster.run(results, 2)
    return found


@pytest.mark.parametrize("case", [*CASES, "written, replicated"])
def test_results_equal_one_process_and_the_check_agrees(case: str):
    assert [found[case] <= 1e-6 for found in on_two()] == [True, True]


def test_a_write_that_would_be_lost_is_refused():
    for found in on_two():
        assert "node 'mul_' writes into a part of a sharded tensor" in found["written"]


def test_the_check_leaves_buffers_that_the_model_writes_as_they_were():
    assert [found["state"] <= 1e-6 for found in on_two()] == [True, True]


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        ("weights", "the same model on all processes, but 'weight' differs between"),
        ("plans", "the same plan on all processes, but the plans of 0 and 1 differ"),
    ],
)
def test_processes_with_other_weights_or_plans_are_refused(case: str, expected: str):
    for found in on_two():
        assert expected in found[case]
