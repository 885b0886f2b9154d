"""What nodes read by a plan: inputs of the graph too, and one copy for all who read alike."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from chop import MaseGraph
from chop.distributed import process, runtime
from chop.distributed.apply import shard_graph
from chop.distributed.plan import ShardingPlan
from tests.distributed import cluster

CUT = ("S0",)


class Readers(nn.Module):
    """Three readers of the input."""

    def forward(self, x: Tensor) -> Tensor:
        """Elements of `x`, several times."""
        return torch.sin(x) + torch.cos(x) + torch.tanh(x)


class Written(nn.Module):
    """Two readers of one value, which is written between them."""

    def forward(self, x: Tensor) -> Tensor:
        """Before and after."""
        y = torch.relu(x)
        before = torch.sin(y)
        y[0].add_(1.0)
        return before + torch.cos(y)


@pytest.fixture
def alone() -> Iterator[None]:
    yield
    torch.distributed.destroy_process_group()


def sharded(model: nn.Module, plan: ShardingPlan) -> MaseGraph:
    mg = MaseGraph(model, dummy_in={"x": torch.ones(4, 2)})
    shard_graph(mg, plan, process.start(plan.mesh, "gloo"))
    return mg


def copies(mg: MaseGraph) -> list[set[str]]:
    """Of each copy in another layout, who reads it."""
    made = [node for node in mg.nodes if node.target is runtime.redistribute]
    return [{user.name for user in node.users} for node in made]


def cut_reads(readers: list[str], source: str) -> ShardingPlan:
    return ShardingPlan((1,), reads={name: {source: CUT} for name in readers})


def test_readers_of_an_input_share_one_copy(alone: None):
    mg = sharded(Readers(), cut_reads(["sin", "cos"], "x"))
    assert copies(mg) == [{"sin", "cos"}]


def test_a_write_between_readers_asks_for_another_copy(alone: None):
    mg = sharded(Written(), cut_reads(["sin", "cos"], "relu"))
    assert len(copies(mg)) == 2
    assert all(len(readers) == 1 for readers in copies(mg))


def differences() -> list[float]:
    found = []
    plans = [(Readers(), "x"), (Written(), "relu")]
    for model, source in plans:
        reads = {name: {source: CUT} for name in ("sin", "cos")}
        x = torch.linspace(-2, 2, 8).view(4, 2)
        with torch.no_grad():
            found.append(
                float(
                    (sharded(model, ShardingPlan((2,), reads=reads)).model(x) - model(x))
                    .abs()
                    .max()
                )
            )
    return found


def test_numbers_are_those_of_one_process():
    assert cluster.run(differences, 2) == [[0.0, 0.0], [0.0, 0.0]]
