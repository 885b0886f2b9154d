"""Layers whose weight a parametrization or a hook of torch computes."""

import copy
import warnings

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune, spectral_norm, weight_norm

from chop import MaseGraph, passes
from chop.formats import Integer, QuantSpec
from chop.nn.quantized import QuantLinear
from chop.passes.module import quantize_module_transform_pass
from tests.networks import Square

from .conftest import with_metadata


def masked(layer):
    prune.l1_unstructured(layer, "weight", 0.5)
    prune.l1_unstructured(layer, "bias", 0.5)
    return prune.random_unstructured(layer, "weight", 0.25)


KINDS = {
    "prune": masked,
    "old weight norm": weight_norm,
    "old spectral norm": spectral_norm,
    "weight norm": parametrizations.weight_norm,
    "spectral norm": parametrizations.spectral_norm,
    "orthogonal": parametrizations.orthogonal,
    "own": lambda layer: parametrize.register_parametrization(layer, "weight", Square()) or layer,
}
HOOKED = ["prune", "old weight norm", "old spectral norm"]
EXACT = QuantSpec(weight=Integer(24, 20))
RULE = {"by": "type", "linear": {"config": EXACT}}
X = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))


def network(kind):
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own deprecations
        computed = KINDS[kind](nn.Linear(8, 8))
    return nn.Sequential(nn.LayerNorm(8), computed, nn.ReLU(), nn.Linear(8, 4)).eval()


@pytest.fixture(params=KINDS)
def case(request):
    """A network, its graph, and whether a pass loses how the weight is computed."""
    net = network(request.param)
    return net, with_metadata(MaseGraph(net, dummy_in={"input": X})), request.param != "prune"


def told(loses, run, *args):
    """What a pass gives; it names the layer where training is not constrained any more."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = run(*args)
    said = [str(w.message) for w in caught if "plain parameters" in str(w.message)]
    assert len(said) == loses and all("'1'" in text and "'3'" not in text for text in said)
    return found


@pytest.mark.sampled(1)
def test_a_graph_copies(case):
    net, mg, _ = case
    for twin in (mg.copy(), copy.deepcopy(mg), mg.sharing_copy()):
        assert torch.equal(twin.model(X), net(X))
    copied = mg.copy()
    with torch.no_grad():
        for parameter in copied.model.parameters():
            parameter.mul_(0.5)
        for parameter in net.parameters():
            parameter.mul_(0.5)
    assert torch.equal(copied.model(X), net(X))  # what computes the weight came along
    assert torch.equal(mg.to_module()(X), mg.model(X))


@pytest.mark.sampled(3)
def test_the_computed_weight_is_quantized_and_the_layer_named(case):
    net, mg, loses = case
    net(X)  # hooks compute it at a call
    weight = net[1].weight.detach().clone()
    quantized, _ = told(loses, passes.quantize_transform_pass, mg, RULE)
    torch.testing.assert_close(quantized.model(X), net(X), atol=1e-4, rtol=1e-4)
    assert type(quantized.modules["1"]) is QuantLinear
    torch.testing.assert_close(quantized.modules["1"].effective("weight"), weight)
    assert torch.equal(mg.model(X), net(X)) and torch.equal(net[1].weight, weight)
    by_module, _ = told(loses, quantize_module_transform_pass, net, RULE)
    torch.testing.assert_close(by_module(X), net(X), atol=1e-4, rtol=1e-4)
    packed, info = passes.pack_transform_pass(quantized, {"silent": True})
    assert info["packed"] == 2
    torch.testing.assert_close(packed.model(X), net(X), atol=1e-4, rtol=1e-4)
    _, info = passes.gptq_transform_pass(quantized, {"batches": [{"input": X}]})
    assert list(info["layers"]) == ["1", "3"]
    assert torch.equal(quantized.to_module()(X), quantized.model(X))


@pytest.mark.sampled(1)
def test_adapters_masks_and_files_keep_the_function(case, tmp_path):
    net, mg, loses = case
    adapted, info = told(loses, passes.insert_lora_adapter_transform_pass, mg, {"rank": 2})
    assert info["inserted"] == 2
    torch.testing.assert_close(adapted.model(X), net(X))
    rule = {"weight": {"sparsity": 0.25, "method": "l1-norm"}}
    pruned, info = told(loses, passes.prune_transform_pass, mg, rule)
    # A share of what torch has left: it masked a half, and a quarter of the rest.
    assert info["layers"] == {"1": 0.25 if loses else 0.71875, "3": 0.25}
    assert (pruned.modules["1"].weight == 0).sum() >= 16
    _, info = passes.prune_transform_pass(
        mg, {"weight": {**rule["weight"], "granularity": "channel"}}
    )
    assert "the weight of '1' is computed by" in info["skipped"]["1"]
    _, info = passes.smoothquant_transform_pass(mg, {"batches": [{"input": X}]})
    assert "computed by" in info["skipped"]["_1"]
    quantized, _ = told(loses, passes.quantize_transform_pass, mg, RULE)
    quantized.export(tmp_path / "quantized")
    loaded = MaseGraph.from_checkpoint(tmp_path / "quantized")
    assert torch.equal(loaded.model(X), quantized.model(X))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", HOOKED)
def test_a_file_has_the_computed_weight_as_a_parameter_that_counts(kind, tmp_path):
    net = network(kind)
    mg = MaseGraph(net, dummy_in={"input": X})
    told(kind != "prune", mg.export, tmp_path / "model")
    loaded = MaseGraph.from_checkpoint(tmp_path / "model")
    torch.testing.assert_close(loaded.model(X), net(X))
    assert "weight" in loaded.modules["1"]._parameters
    with torch.no_grad():
        loaded.modules["1"].weight.mul_(2)
    assert not torch.allclose(loaded.model(X), net(X))


def test_a_mask_of_torch_is_the_operators_own():
    net = network("prune")
    kept, full = net[1].weight_mask.bool(), net[1].weight_orig.detach().clone()
    mg = with_metadata(MaseGraph(net, dummy_in={"input": X}))
    layer = passes.quantize_transform_pass(mg, RULE)[0].modules["1"]
    assert torch.equal(layer.weight_mask, kept) and torch.equal(layer.weight_orig, full * kept)
    optimizer = torch.optim.SGD(layer.parameters(), lr=1.0, momentum=0.9)
    layer(X).sum().backward()
    optimizer.step()
    assert (layer.weight[~kept] == 0).all() and (layer.weight[kept] != full[kept]).any()
    assert [*net[1]._buffers] == ["weight_mask", "bias_mask"]  # the user's is as it was


def test_training_mode_takes_no_step_of_a_spectral_norm():
    net = network("spectral norm").train()
    before = {name: x.clone() for name, x in net.state_dict().items()}
    told(True, quantize_module_transform_pass, net, RULE)
    assert all(torch.equal(x, before[name]) for name, x in net.state_dict().items())
    assert net[1].parametrizations.weight.training
