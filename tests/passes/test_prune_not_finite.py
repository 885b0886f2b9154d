"""Pruning of what is not finite: NaN has no place among magnitudes."""

import math

import pytest
import torch
from torch import nn

from chop import MaseGraph, passes
from chop.errors import ConfigError

NOT_FINITE = [math.nan, math.inf, -math.inf]


def rows():
    return torch.randn(6, 8, generator=torch.Generator().manual_seed(0))


def graph(bad=None):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))
    mg = MaseGraph(net.eval(), dummy_in={"input": rows()})
    if bad is not None:
        with torch.no_grad():
            mg.model.get_parameter("2.weight")[3, 1] = bad
    return mg


@pytest.mark.parametrize("scope", ["local", "global"])
@pytest.mark.parametrize("method", ["l1-norm", "l2-norm"])
@pytest.mark.parametrize("granularity", ["elementwise", "2:4", "column", "channel"])
@pytest.mark.sampled(3)
def test_weights_of_nan_are_refused(scope, method, granularity):
    weight = {"method": method, "scope": scope, "granularity": granularity}
    weight |= {} if granularity == "2:4" else {"sparsity": 0.5}
    with pytest.raises(ConfigError, match="weights of '2' are not finite.*cannot be ranked"):
        passes.prune_transform_pass(graph(math.nan), {"weight": weight})
    _, info = passes.prune_transform_pass(graph(math.nan), {"weight": weight, "exclude": ["2"]})
    assert info["sparsity"] > 0


@pytest.mark.parametrize("bad", NOT_FINITE, ids=str)
@pytest.mark.parametrize("place", [(0, 2, 0), (1, 0, 7), (1, 5, 3)], ids=str)
def test_rows_that_are_not_finite_set_no_threshold(bad, place):
    batches = [{"input": rows()}, {"input": rows()}]
    number, row, column = place
    batches[number]["input"][row, column] = bad
    activation = {"sparsity": 0.5, "scope": "global"}
    expected = rf"prune_transform_pass.batches: row {row} of batch {number} brings .* leave the row"
    with pytest.raises(ConfigError, match=expected):
        passes.prune_transform_pass(graph(), {"activation": activation, "batches": batches})


@pytest.mark.parametrize("scope", ["local", "global"])
def test_a_random_choice_needs_no_ranks(scope):
    weight = {"method": "random", "scope": scope, "sparsity": 0.5}
    _, info = passes.prune_transform_pass(graph(math.nan), {"weight": weight})
    assert info["sparsity"] == pytest.approx(0.5, abs=0.01)
