"""How weights fit their formats, counted in parts."""

import dataclasses

import pytest
import torch
from torch import nn

from chop import MaseGraph, passes
from chop.formats import parse_format_string
from chop.quantization import summary


@pytest.mark.parametrize("text", ["mxint:width=3", "4.2", "nvfp4", "scale_integer:width=3"])
def test_parts_of_a_weight_count_as_the_whole(text, monkeypatch):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 48))
    with torch.no_grad():
        model[0].weight.mul_(torch.logspace(-3, 2, 48)[:, None])
        model[0].weight[3:9] = 0
    rule = {"config": {"weight": parse_format_string(text)}}
    mg, _ = passes.quantize_transform_pass(
        MaseGraph(model, dummy_in={"input": torch.ones(1, 64)}), {"linear": rule}
    )
    (whole,) = summary.layer_rows(mg)
    monkeypatch.setattr(summary, "PART", 200)
    (parts,) = summary.layer_rows(mg)
    told = dataclasses.asdict(parts)
    assert told.pop("weight_error") == pytest.approx(whole.weight_error)
    assert told.items() <= dataclasses.asdict(whole).items() and whole.weights == 64 * 48
    weight, number_format = model[0].weight.detach(), mg.modules["0"].spec.number_format("weight")
    alive = weight != 0
    lost = ((number_format.round(weight) == 0) & alive).sum() / alive.sum()
    assert 0 < whole.share_rounded_to_zero == pytest.approx(lost.item())
    error = (number_format.round(weight) - weight).square().sum() / weight.square().sum()
    assert 0 < whole.weight_error == pytest.approx(error.item(), rel=1e-4)
    beyond = number_format.saturates(weight).sum() / alive.sum()
    assert whole.share_saturated == pytest.approx(beyond.item())


@pytest.mark.parametrize(
    ("text", "way_out"), [("4.0", "frac_width 'auto'"), ("4.auto", "more bits")]
)
def test_a_derived_fraction_is_no_way_out_of_itself(text, way_out):
    model = nn.Sequential(nn.Linear(64, 2))
    with torch.no_grad():
        model[0].weight.copy_(torch.linspace(-0.03, 0.03, 128).view(2, 64))
        model[0].weight[:, :8] = 0.4
    mg, _ = passes.quantize_transform_pass(
        MaseGraph(model, dummy_in={"input": torch.ones(1, 64)}),
        {"linear": {"config": {"weight": parse_format_string(text)}}},
    )
    mg, _ = passes.calibrate_transform_pass(mg, {"batches": [{"input": torch.ones(1, 64)}]})
    rows = summary.layer_rows(mg)
    assert summary.poor_fit(mg, rows).endswith(f"Try {way_out}.")
