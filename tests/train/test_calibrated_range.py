"""Rows on another scale than those of the calibration are noted."""

import pytest
import torch
from torch import nn

import chop
from chop.base.notices import collected_assumptions
from chop.train import evaluate

X = torch.randn(60, 4, generator=torch.Generator().manual_seed(0))
Y = torch.arange(60) % 2


@pytest.mark.parametrize("packs", [False, True])
@pytest.mark.parametrize(
    ("text", "factor", "is_noted"),
    [
        ("8.auto", 1, False),
        ("2.auto", 1, False),
        ("8.auto", 255, True),
        ("8.auto", 1 / 255, True),
        ("mxint:width=4", 255, False),
    ],
)
def test_rows_on_another_scale_than_the_calibration_are_noted(
    text, factor, is_noted, packs, tmp_path
):
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    model = chop.quantize(net, text, X * factor)
    if packs:
        chop.save(model, tmp_path / "small", X)
        model = chop.MaseGraph.from_checkpoint(tmp_path / "small").to_module(like=net)
    with collected_assumptions() as found:
        evaluate(model, (X, Y))
    assert ["inputs of '0' does not fit these rows" in x.text for x in found] == [True] * is_noted


@pytest.mark.parametrize(
    ("rows", "is_noted"), [(torch.zeros(8, 4), True), (X, False), (X[:, :1].expand(60, 4), False)]
)
def test_a_calibration_on_a_constant_is_noted(rows, is_noted):
    with collected_assumptions() as found:
        chop.quantize(nn.Sequential(nn.Linear(4, 2)), "8.auto", rows)
    assert ["are 0 in the rows of the calibration" in x.text for x in found] == [True] * is_noted
