"""Fused experts as layers: what they compute, hold and say."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chop.captured.layers.expert_linear import ExpertLinear, expert_linear
from chop.captured.layers.experts import FusedExperts, matrices_by_parameter
from tests.experts import MIXTURES, fused_in, mixture, text, with_layers


@pytest.mark.parametrize("name", MIXTURES)
@torch.no_grad()
def test_layers_compute_what_every_implementation_does(name: str) -> None:
    model = mixture(name).double()
    found = {}
    for implementation in ("eager", "batched_mm"):
        model.set_experts_implementation(implementation)
        found[implementation] = model(text()).logits
    state = {key: x.clone() for key, x in model.state_dict().items()}
    addresses = {x.data_ptr() for x in model.parameters()}
    layered = with_layers(model)
    if name != "GptOss":  # whose matrices lie the other way round
        assert {x.data_ptr() for x in layered.parameters()} == addresses
    y = layered(text()).logits
    for logits in found.values():
        torch.testing.assert_close(y, logits, rtol=1e-9, atol=1e-11)
    after = layered.state_dict()
    assert list(after) == list(state) and all(torch.equal(after[key], state[key]) for key in state)
    layered.load_state_dict({key: x * 2 for key, x in state.items()})
    assert all(torch.equal(x, 2 * state[key]) for key, x in layered.state_dict().items())
    layered.float().load_state_dict(mixture(name).state_dict())
    model = mixture(name)
    model.set_experts_implementation("grouped_mm")
    torch.testing.assert_close(layered(text()).logits, model(text()).logits, rtol=1e-4, atol=1e-4)


def test_copies_and_pickles_compute_the_same() -> None:
    model = with_layers(mixture("GptOss"))
    (path,) = [path for path, x in model.named_modules() if isinstance(x, FusedExperts)]
    experts = model.get_submodule(path)
    x, index = torch.randn(3, 32), torch.tensor([[0, 1], [3, 1], [2, 3]])
    given = (x, index, torch.rand(3, 2))
    for other in (copy.deepcopy(experts), pickle.loads(pickle.dumps(experts))):
        assert torch.equal(other(*given), experts(*given))
        assert list(other.state_dict()) == list(experts.state_dict())


def unlike(module: Any, change: str) -> Any:
    if change == "norm":
        module.has_post_expert_norm = True
    elif change == "parallel":
        module._is_expert_parallel = True
    elif change == "forward":
        module.forward = lambda *given: given[0]
    elif change == "parameter":
        module.scale = nn.Parameter(torch.ones(4))
    elif change == "codes":
        module.down_proj = nn.Parameter(module.down_proj.detach().to(torch.uint8), False)
    elif change == "child":
        module.norm = nn.LayerNorm(4)
    return module


@pytest.mark.parametrize("change", ["norm", "parallel", "forward", "parameter", "codes", "child"])
def test_other_experts_stay_as_they_are(change: str) -> None:
    (module,) = fused_in(mixture("Mixtral")).values()
    assert matrices_by_parameter(module) == {"gate_up_proj": "gate_up", "down_proj": "down"}
    assert matrices_by_parameter(unlike(module, change)) == {}


def get_rows(count: int, experts: int) -> tuple[Tensor, Tensor]:
    return torch.randn(count, 6, dtype=torch.float64), torch.randint(0, experts, (count,))


@pytest.mark.parametrize("count", [0, 1, 9])
@pytest.mark.parametrize("bias", [False, True])
def test_each_row_goes_through_the_layer_of_its_expert(count: int, bias: bool) -> None:
    torch.manual_seed(0)
    layer = ExpertLinear(3, 6, 4, bias).double()
    x, expert = get_rows(count, 3)
    x.requires_grad_()
    y = layer(x, expert)
    assert y.shape == (count, 4)
    matrices = layer.weight.view(3, 4, 6)
    for row, number, found in zip(x, expert, y, strict=True):
        b = layer.bias[number] if bias else None
        torch.testing.assert_close(found, F.linear(row, matrices[number], b))
    if count:
        given = [x, *layer.parameters()]
        gathered = torch.bmm(matrices[expert], x.unsqueeze(-1)).squeeze(-1)
        gathered = gathered + layer.bias[expert] if bias else gathered
        expected = torch.autograd.grad(gathered.square().sum(), given)
        for one, other in zip(torch.autograd.grad(y.square().sum(), given), expected, strict=True):
            torch.testing.assert_close(one, other)


def test_an_expert_that_is_not_there_is_refused() -> None:
    layer = ExpertLinear(3, 6, 4)
    with pytest.raises(IndexError, match="expected experts 0 to 2, got 3"):
        layer(torch.randn(2, 6), torch.tensor([0, 3]))


@pytest.mark.long
def test_a_compiled_layer_computes_the_same() -> None:
    layer = ExpertLinear(3, 6, 4).double()
    x, expert = get_rows(5, 3)
    compiled = torch.compile(expert_linear, backend="eager", fullgraph=True)
    found = compiled(x, expert, layer.weight, layer.bias, 3)
    torch.testing.assert_close(found, layer(x, expert))
