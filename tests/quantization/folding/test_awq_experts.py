"""AWQ of experts: the function stays, and scales are of the tokens that each expert saw."""

import functools

import pytest
import torch

from chop import MaseGraph, passes
from chop.quantization.folding.awq_experts import ExpertScales
from chop.quantization.folding.scale_search import awq_scale
from tests.experts import MIXTURES, mixture

GATE_UP, DOWN = (f"model.layers.0.mlp.experts.{name}" for name in ("gate_up", "down"))
IDS = torch.randint(2, 60, (16, 12), generator=torch.Generator().manual_seed(3))


@functools.cache
def captured(name, has_mask=False):
    """The graph of a mixture, which no test changes: capturing is what costs most."""
    given = {"input_ids": IDS, **({"attention_mask": torch.ones_like(IDS)} if has_mask else {})}
    return MaseGraph(mixture(name), dummy_in=given)


def scaled(name, batches, weight="mxint:width=4", **settings):
    mg = captured(name, "attention_mask" in batches[0])
    settings = {
        "batches": batches,
        "weight": weight,
        "row_weights": "uniform",
        "grid": 4,
        **settings,
    }
    return passes.awq_transform_pass(mg, settings)


def matrices(mg):
    """(experts, outputs, inputs) of the gate, of the other half and of the second layer."""
    first, down = (mg.modules[path] for path in (GATE_UP, DOWN))
    gate, up = first.weight.detach().unflatten(0, (first.num_experts, 2, -1)).unbind(1)
    return gate, up, down.weight.detach().unflatten(0, (down.num_experts, -1))


@pytest.mark.parametrize("name", [name for name in MIXTURES if name != "GptOss"])
@pytest.mark.long
def test_the_function_stays_and_each_expert_has_scales_of_its_own(name):
    mg, info = scaled(name, [{"input_ids": IDS[:8]}, {"input_ids": IDS[8:]}])
    before = matrices(captured(name))
    (gate, up, down), (_, old_up, old_down) = matrices(mg), before
    assert torch.equal(gate, before[0])
    scale = (down / old_down)[:, 0]
    torch.testing.assert_close(down, old_down * scale[:, None])
    torch.testing.assert_close(up, old_up / scale[:, :, None])
    assert (scale != 1).any(1).sum() > 1 and not torch.allclose(scale[0], scale[1])
    found = {key: row for key, row in info["scaled"].items() if key.startswith(GATE_UP)}
    assert found.keys() == {f"{GATE_UP}[{number}]" for number in range(len(up))}
    for number, row in enumerate(found.values()):
        assert row["readers"] == [f"{DOWN}[{number}]"] and row["after"] <= row["before"]
    with torch.no_grad():
        expected = mixture(name)(IDS).logits
        torch.testing.assert_close(mg.model(IDS)["logits"], expected, atol=1e-5, rtol=1e-4)
    assert (
        info["skipped"][GATE_UP.replace(".", "_")]
        == "its inputs are also read by a router and by all experts"
    )


@pytest.mark.long
def test_scales_are_those_of_the_tokens_that_an_expert_saw():
    mg, info = scaled("Mixtral", [{"input_ids": IDS}])
    original = captured("Mixtral").copy()
    _, _, old_down = matrices(original)
    seen = []
    original.modules[DOWN].register_forward_hook(lambda _, given, __: seen.append(given))
    with torch.no_grad():
        original.model(IDS)
    ((x, expert),) = seen
    for number in range(4):
        row = info["scaled"][f"{GATE_UP}[{number}]"]
        expected = awq_scale(x[expert == number].double().abs().mean(0), row["exponent"])
        found = (matrices(mg)[2] / old_down)[number, 0]
        torch.testing.assert_close(found, expected.float(), rtol=1e-4, atol=0)


@pytest.mark.long
def test_padding_does_not_count():
    mask = torch.ones_like(IDS)
    mask[:, 9:] = 0
    whole, other = IDS.clone(), IDS.clone()
    other[:, 9:] = 5
    ways = [scaled("Mixtral", [{"input_ids": x, "attention_mask": mask}]) for x in (whole, other)]
    for ours, theirs in zip(*(matrices(mg) for mg, _ in ways), strict=True):
        torch.testing.assert_close(ours, theirs)


SKIPPED = {
    "few tokens": ("Mixtral", IDS[:2, :3], "mxint:width=4", "[0]", "fewer than its 48 inputs"),
    "one scale for all": (
        "Mixtral",
        IDS,
        "scale_integer:width=4:granularity=tensor",
        "",
        "of all experts",
    ),
    "no product of a half": ("GptOss", IDS, "mxint:width=4", "", "do not read a product with half"),
}


@pytest.mark.parametrize("case", SKIPPED)
@pytest.mark.long
def test_experts_that_stay_as_they_are_are_named(case):
    name, ids, weight, number, reason = SKIPPED[case]
    mg, info = scaled(name, [{"input_ids": ids}], weight)
    assert reason in info["skipped"][f"{DOWN.replace('.', '_')}{number}"]
    assert not any(key.startswith(GATE_UP) for key in info["scaled"])
    assert torch.equal(mg.modules[DOWN].weight, captured(name).modules[DOWN].weight)


@pytest.mark.long
def test_scales_that_would_change_what_experts_compute_are_undone(monkeypatch):
    monkeypatch.setattr(ExpertScales, "_divide", lambda *_: None)
    with pytest.warns(UserWarning, match=f"not moved.*'{GATE_UP}': .* changes on batch"):
        mg, info = scaled("Mixtral", [{"input_ids": IDS[:8]}, {"input_ids": IDS[8:]}])
    assert "changes on batch 0" in info["skipped"][DOWN.replace(".", "_")]
    assert not any(key.startswith(GATE_UP) for key in info["scaled"])
    for found, expected in zip(matrices(mg), matrices(captured("Mixtral")), strict=True):
        assert torch.equal(found, expected)
