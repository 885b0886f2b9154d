"""GPTQ of layers of experts: each expert by the rows that it saw."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from chop import MaseGraph, passes
from chop.captured.layers.expert_linear import ExpertLinear
from chop.nn.quantized import QuantLinear
from chop.quantization.rounding.columns import Solver
from chop.quantization.rounding.gptq import correct_block, correctable_layers
from chop.quantization.walk.parts import Part
from chop.quantization.walk.values import Values
from chop.quantization.walk.walk import FloatBlock
from tests.experts import mixture, text

FOUR_BITS = {"name": "mxint", "width": 4, "block_size": 8}


class Experts(nn.Module):
    """A layer of experts, each of which gets the rows of its number."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = ExpertLinear(3, 8, 16)

    def forward(self, x: Tensor, expert: Tensor) -> Tensor:
        y: Tensor = self.layer(x, expert)
        return y


def batch(counts: tuple[int, ...]) -> dict[str, Tensor]:
    expert = torch.repeat_interleave(torch.arange(3), torch.tensor(counts))
    expert = expert[torch.randperm(len(expert))]
    x = torch.randn(len(expert), 8) @ torch.randn(3, 8, 8)[expert[0]]  # inputs that correlate
    return {"x": x, "expert": expert}


def quantized(network: nn.Module, given: dict[str, Tensor], weight: Any) -> MaseGraph:
    mg = MaseGraph(network.eval(), dummy_in=given)
    rules = {"by": "type", "expert_linear": {"config": {"weight": weight}}}
    return passes.quantize_transform_pass(mg, rules)[0]


@pytest.mark.parametrize("rows", ["uniform", "gradient"])
def test_each_expert_is_corrected_as_a_layer_of_its_own(rows: str) -> None:
    torch.manual_seed(1)
    network, given = Experts(), [batch((30, 20, 5)), batch((10, 10, 2))]
    settings = {"batches": given, "row_weights": rows}
    solved, info = passes.gptq_transform_pass(quantized(network, given[0], FOUR_BITS), settings)
    assert list(info["layers"]) == ["layer[0]", "layer[1]"]
    assert all(error["after"] < error["before"] for error in info["layers"].values())
    assert info["skipped"] == {
        "layer[2]": "it got 7 rows, fewer than its 8 inputs: each weight is rounded to nearest"
    }
    found = solved.modules["layer"].weight.detach().view(3, 16, 8)
    assert torch.equal(found[2], network.layer.weight.detach().view(3, 16, 8)[2])
    if rows == "gradient":
        return
    for number in range(2):  # the reference: a Linear with the rows of the expert
        alone = nn.Linear(8, 16, bias=False)
        alone.weight.data = network.layer.weight.detach().view(3, 16, 8)[number].clone()
        own = [{"input": x["x"][x["expert"] == number]} for x in given]
        mg = MaseGraph(nn.Sequential(alone).eval(), dummy_in=own[0])
        rules = {"by": "type", "linear": {"config": {"weight": FOUR_BITS}}}
        mg, _ = passes.quantize_transform_pass(mg, rules)
        mg, _ = passes.gptq_transform_pass(mg, {"batches": own, "row_weights": "uniform"})
        assert type(mg.modules["0"]) is QuantLinear
        torch.testing.assert_close(found[number], mg.modules["0"].weight.detach())


@torch.no_grad()
def test_a_part_is_corrected_and_run_as_the_graph_is(tmp_path: Path) -> None:
    torch.manual_seed(1)
    network, given = Experts(), batch((30, 20, 5))
    mg = quantized(network, given, FOUR_BITS)
    whole, info = passes.gptq_transform_pass(mg, {"batches": [given], "row_weights": "uniform"})
    part = Part("experts", tuple(mg.nodes))
    block = FloatBlock(mg, part, Values(mg.nodes, tmp_path), [given], tmp_path)
    errors, few, values = correct_block(block, correctable_layers(mg)[0], {}, Solver(actorder=True))
    assert (errors, few) == (info["layers"], info["skipped"]) and list(few) == ["layer[2]"]
    assert torch.equal(mg.modules["layer"].weight, whole.modules["layer"].weight)
    # The expert that is left alone is rounded when it is called.
    torch.testing.assert_close(values.get(0)[mg.nodes[-1]], whole.model(**given))


def test_masked_weights_stay_zero() -> None:
    given = batch((30, 30, 30))
    mg = MaseGraph(Experts().eval(), dummy_in=given)
    half = {"sparsity": 0.5, "scope": "local", "granularity": "elementwise", "method": "l1-norm"}
    mg, _ = passes.prune_transform_pass(mg, {"weight": half})
    rules = {"by": "type", "expert_linear": {"config": {"weight": FOUR_BITS}}}
    mg, _ = passes.quantize_transform_pass(mg, rules)
    mg, info = passes.gptq_transform_pass(mg, {"batches": [given], "row_weights": "uniform"})
    layer = mg.modules["layer"]
    assert len(info["layers"]) == 3 and layer.weight_mask.float().mean() == 0.5
    assert not layer.effective("weight")[~layer.weight_mask].any()


def test_one_scale_for_all_experts_is_left_alone() -> None:
    given = batch((30, 30, 30))
    mg = quantized(Experts(), given, {"name": "scale_integer", "width": 4, "granularity": "tensor"})
    _, info = passes.gptq_transform_pass(mg, {"batches": [given]})
    assert info["layers"] == {}
    assert info["skipped"] == {"layer": "it has a weight format with one scale for all experts"}


@pytest.mark.long
def test_a_mixture_is_corrected_without_its_padding() -> None:
    ids = text(16, 12)
    mask = torch.ones_like(ids)
    mask[:, 8:] = 0
    other = ids.clone()
    other[:, 8:] = 7  # what is behind the mask changes nothing
    found = []
    for tokens in (ids, other):
        given = {"input_ids": tokens, "attention_mask": mask}
        mg = quantized(mixture("Mixtral"), given, {"name": "mxint", "width": 4})
        mg, info = passes.gptq_transform_pass(mg, {"batches": [given], "row_weights": "uniform"})
        assert len([*info["layers"], *info["skipped"]]) == 2 * 4
        assert len(info["layers"]) > 0
        found.append(mg.model.state_dict()["model.layers.0.mlp.experts.gate_up_proj"])
    assert torch.equal(*found)


@pytest.mark.long
def test_smoothquant_says_that_it_leaves_experts() -> None:
    given = {"input_ids": text(8, 12)}
    mg = MaseGraph(mixture("Mixtral"), dummy_in=given)
    _, info = passes.smoothquant_transform_pass(mg, {"batches": [given]})
    assert sum("several experts" in why for why in info["skipped"].values()) == 2
