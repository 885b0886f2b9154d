"""Calls of functions that stay float, so that a model of the original class can be given back."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from transformers import Gemma3ForCausalLM, Gemma3TextConfig

import chop
from chop import MaseGraph, passes
from chop.base.notices import AdjustedWarning
from chop.errors import GraphError
from chop.nn.quantized import QuantExpertLinear, QuantLinear
from chop.quantization.float_calls import leave_calls_of_forwards
from tests.experts import MIXTURES, TEXT, mixture, text

ROUTERS = {"GptOss": "router"}


class Calls(nn.Module):
    def __init__(self, has_layer=True):
        super().__init__()
        self.layer = nn.Linear(8, 8) if has_layer else nn.Identity()
        self.weight = nn.Parameter(torch.randn(4, 8))

    def forward(self, x):
        return F.linear(self.layer(x), self.weight)


@pytest.mark.parametrize("name", MIXTURES)
@pytest.mark.long
def test_routers_of_experts_stay_float_and_are_named(name):
    model, x = mixture(name), text()
    path = f"model.layers.0.mlp.{ROUTERS.get(name, 'gate')}"
    with pytest.warns(AdjustedWarning, match=rf"1 call stays float.*'{path}' \(\w+Router\)"):
        small = chop.quantize(model, "8.auto")
    assert type(small) is type(model)
    assert torch.equal(small.get_submodule(path).weight, model.get_submodule(path).weight)
    layers = [type(module) for module in small.modules()]
    assert layers.count(QuantExpertLinear) == 2 and QuantLinear in layers
    assert not torch.equal(small(x).logits, model(x).logits)
    torch.testing.assert_close(small(x).logits, model(x).logits, atol=0.5, rtol=0)


@pytest.mark.long
def test_a_graph_and_the_model_that_it_gives_back_compute_the_same():
    mg = MaseGraph(mixture("Mixtral"), dummy_in={"input_ids": text()})
    mxint = {"config": {"name": "mxint", "width": 4}}
    rules = {"linear": mxint, "expert_linear": mxint}
    mg, _ = passes.quantize_transform_pass(mg, rules)
    with pytest.raises(GraphError, match=r"'linear' quantizes a function.*MixtralTopKRouter"):
        mg.to_module()
    with pytest.warns(AdjustedWarning, match="somewhere: 1 call stays float"):
        assert leave_calls_of_forwards(mg, "somewhere") == ("linear",)
    assert leave_calls_of_forwards(mg, "somewhere") == ()
    assert mg.get_module(mg.node("linear")).spec.is_float
    assert torch.equal(mg.to_module()(text()).logits, mg.model(text())["logits"])


def test_functions_of_own_classes_stay_float_beside_layers_alone():
    x = torch.randn(6, 8)
    with pytest.warns(AdjustedWarning, match="module '' \\(Calls\\)"):
        small = chop.quantize(Calls(), "4.auto", x)
    assert isinstance(small.layer, QuantLinear)
    assert torch.equal(small(x), F.linear(small.layer(x), small.weight))
    with pytest.raises(GraphError, match="quantizes a function"):
        chop.quantize(Calls(has_layer=False), "4.auto", x)
    with pytest.raises(GraphError, match="quantizes a function"):  # they were asked for
        chop.quantize(Calls(), "4.auto", x, operators=["linear"])


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.long
def test_a_scaled_embedding_is_rounded_once_before_data_is_known(tied):
    sizes = {**TEXT, "tie_word_embeddings": tied}
    model = Gemma3ForCausalLM(Gemma3TextConfig(**sizes)).eval()
    small = chop.quantize(model, "8.auto")
    table, head = small.get_input_embeddings().weight, small.get_output_embeddings()
    assert (table is head.weight) is tied
    assert not torch.equal(table, model.get_input_embeddings().weight)
    assert torch.equal(head.operand_format("weight")(table), table) is tied
