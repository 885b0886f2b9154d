import math

import pytest
import torch
from transformers.modeling_outputs import SequenceClassifierOutput

from chop.bench.outputs import copied, largest_difference, list_tensors
from chop.errors import ConfigError

NAN, INF = math.nan, math.inf


def difference(ours, expected):
    return largest_difference(copied(ours), copied(expected), "ours")


def test_tensors_are_found_in_whatever_models_return():
    hidden = (torch.ones(1), torch.zeros(2))
    output = SequenceClassifierOutput(logits=torch.ones(3), hidden_states=hidden)
    assert [x.numel() for x in list_tensors(output)] == [3, 1, 2]
    assert list(list_tensors([None, "text", 3, {"a": ()}])) == []


@pytest.mark.parametrize(
    "ours, expected, off",
    [
        ([1.0, 2.0], [1.0, 2.5], 0.5),
        ([-0.0, INF, NAN], [0.0, INF, NAN], 0.0),
        ([NAN], [1.0], INF),
        ([INF], [-INF], INF),
        ([1 + 1j], [1 + 0j], 1.0),
        ([], [], None),
    ],
)
def test_the_largest_difference(ours, expected, off):
    assert difference(torch.tensor(ours), torch.tensor(expected)) == off


def test_dtypes_may_differ_and_integers_are_exact():
    half, single = torch.full((2,), 0.1).bfloat16(), torch.full((2,), 0.1)
    assert 0 < difference(half, single) < 1e-3
    assert difference([torch.tensor(2**30 + 1)], [torch.tensor(2**30)]) == 1
    assert difference([torch.ones(1), torch.ones(2)], (torch.ones(1), 3 * torch.ones(2))) == 2


@pytest.mark.parametrize("ours", [torch.ones(3), (torch.ones(2), torch.ones(2)), None])
def test_other_shapes_are_named(ours):
    with pytest.raises(ConfigError, match=r"'ours' returns tensors of shapes .*\(2,\).*outputs"):
        difference(ours, torch.ones(2))


def test_copies_outlive_what_is_overwritten():
    x = torch.zeros(2)
    kept = copied({"logits": x})
    x += 1
    assert kept[0].tolist() == [0, 0]
