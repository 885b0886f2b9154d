"""Groups of weights, written out with loops."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from chop.errors import ConfigError
from chop.formats import QuantSpec
from chop.nn.quantized import QuantLinear
from chop.nn.sparsity import (
    SCORES,
    Granularity,
    Scored,
    attach_mask,
    describe_pruning,
    detach_mask,
    get_masked,
    get_sparsity,
    lowest_weights,
    make_permanent,
)
from tests.subcases import subcases

LAYERS = {
    "linear": lambda: nn.Linear(8, 5),
    "conv1d": lambda: nn.Conv1d(8, 3, 3),
    "conv2d": lambda: nn.Conv2d(8, 3, (2, 3)),
    "conv_transpose2d": lambda: nn.ConvTranspose2d(8, 3, 2),
    "embedding": lambda: nn.Embedding(5, 8),
}


def hide(layers, granularity, sparsity, score="l1-norm", scope="local"):
    axes = [0 if isinstance(m, nn.ConvTranspose2d) else 1 for m in layers]
    weights = [m.weight.detach().abs() for m in layers]
    scored = [Scored(x, axis, sparsity) for x, axis in zip(weights, axes, strict=True)]
    return lowest_weights(scored, SCORES[score], Granularity.parse(granularity), scope)


@subcases("kept, group", [(2, 4), (1, 4), (1, 2), (4, 8), (7, 8)])
@subcases("name", LAYERS)
def test_n_of_m_neighbors_along_the_input_stay(name, kept, group):
    layer = LAYERS[name]()
    (hidden,) = hide([layer], f"{kept}:{group}", 1 - kept / group)
    axis = 0 if name == "conv_transpose2d" else 1
    weights = layer.weight.detach().movedim(axis, -1).reshape(-1, group).abs()
    marks = hidden.movedim(axis, -1).reshape(-1, group)
    assert marks.sum(1).tolist() == [group - kept] * len(marks)
    for row, mark in zip(weights, marks, strict=True):
        assert row[mark].max() <= row[~mark].min()


def test_columns_of_several_layers_are_ranked_by_their_mean():
    layers = [nn.Linear(4, 2), nn.Linear(6, 9)]
    with torch.no_grad():
        layers[0].weight.copy_(torch.tensor([1.0, 8.0, 3.0, 9.0]).expand(2, 4))
        layers[1].weight.copy_(torch.tensor([2.0, 7.0, 4.0, 6.0, 0.5, 5.0]).expand(9, 6))
    first, second = hide(layers, "column", 0.5, scope="global")
    assert first[0].tolist() == [True, False, True, False] and (first[0] == first[1]).all()
    assert second[0].tolist() == [True, False, True, False, True, False]


@settings(max_examples=60, deadline=None)
@given(
    shapes=st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=4),
    sparsity=st.floats(0, 0.999),
    levels=st.integers(1, 4),
    scope=st.sampled_from(["local", "global"]),
    score=st.sampled_from(["l1-norm", "wanda"]),
)
def test_the_count_is_exact_whatever_the_ties(shapes, sparsity, levels, scope, score):
    values = [torch.randint(levels, shape).float() for shape in shapes]
    scored = [Scored(x, 1, sparsity) for x in values]
    marks = lowest_weights(scored, SCORES[score], Granularity("elementwise"), scope)
    counts = [int(mark.sum()) for mark in marks]
    if scope == "global":
        assert sum(counts) == round(sparsity * sum(x.numel() for x in values))
        kept = [x[~mark].min() for x, mark in zip(values, marks, strict=True) if not mark.all()]
        gone = [x[mark].max() for x, mark in zip(values, marks, strict=True) if mark.any()]
        assert not gone or not kept or max(gone) <= min(kept)
    else:
        assert counts == [round(sparsity * x.numel()) for x in values]


@pytest.mark.parametrize("text", ["2:2", "0:4", "2:4:8", "", "rows", "-1:4"])
def test_unknown_granularities_are_refused(text):
    with pytest.raises(ConfigError, match="granularity"):
        Granularity.parse(text)


def test_masks_are_put_on_counted_and_taken_off():
    layer = QuantLinear.from_float(nn.Linear(4, 4), QuantSpec())
    assert get_sparsity(layer) is None and get_masked(nn.Linear(2, 2)) is None
    weight = layer.weight.detach().clone()
    attach_mask(layer, torch.eye(4).bool(), {"method": "by hand"})
    buffer = layer.weight_mask
    attach_mask(layer, ~torch.eye(4).bool(), {"method": "by hand"})
    assert layer.weight_mask is buffer and get_sparsity(layer) == 0.75
    assert describe_pruning(layer) == {"method": "by hand"}
    detach_mask(layer)
    assert (
        not layer.is_pruned and describe_pruning(layer) == {} and torch.equal(layer.weight, weight)
    )
    attach_mask(layer, torch.eye(4).bool(), {})
    with torch.no_grad():
        layer.weight[0, 0] = math.nan
    make_permanent(layer)
    assert not layer.is_pruned and (layer.weight.diagonal() == 0).all()
    assert layer.weight.count_nonzero() == 12
