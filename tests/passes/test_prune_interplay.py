"""Pruning beside everything else: training, copies, files, number formats, pictures, reports."""

import copy
import io
import pickle

import pytest
import torch
from torch import nn
from torch.nn.utils import prune as oracle
from transformers import GPT2Config, GPT2LMHeadModel

from chop import MaseGraph, passes
from chop.base.notices import forget_notices
from chop.formats import Integer
from chop.ir.drawing.draw import to_svg
from chop.nn.quantized import QuantizedOperator, QuantLinear
from chop.nn.sparsity import PruneActivation, get_masked, get_sparsity
from chop.quantization.summary import layer_rows

SHARE = 0.6
PRUNE = {"weight": {"sparsity": SHARE}, "activation": {"sparsity": 0.2}}
INTEGER = {"name": "integer", "width": 8, "frac_width": 6}
QUANTIZE = {"by": "type", "linear": {"config": INTEGER}, "conv2d": {"config": INTEGER}}


def x(batch=3):
    return torch.randn(batch, 1, 6, 7)


def prune(mg):
    return passes.prune_transform_pass(mg, PRUNE)[0]


def quantize(mg):
    return passes.quantize_transform_pass(mg, QUANTIZE)[0]


def exported(mg, folder):
    mg.export(folder / "graph")
    return MaseGraph.from_checkpoint(folder / "graph")


def pickled(mg, folder):
    return pickle.loads(pickle.dumps(mg))


def state_only(mg, folder):
    mg.export(folder / "graph", save_format="state_dict")
    return MaseGraph.from_checkpoint(folder / "graph")


ROUND_TRIPS = {
    "export": exported,
    "state_dict": state_only,
    "pickle": pickled,
    "deepcopy": lambda mg, folder: copy.deepcopy(mg),
}
ORDERS = {
    "pruned": prune,
    "pruned, quantized": lambda mg: quantize(prune(mg)),
    "quantized, pruned": lambda mg: prune(quantize(mg)),
}


@pytest.mark.sampled(6)
@pytest.mark.parametrize("trip", ROUND_TRIPS)
@pytest.mark.parametrize("order", ORDERS)
def test_outputs_and_sparsity_survive_round_trips(net_graph, order, trip, tmp_path):
    mg = ORDERS[order](net_graph)
    again = ROUND_TRIPS[trip](mg, tmp_path)
    inputs = x()
    assert torch.equal(again.model(inputs), mg.model(inputs))
    shares = [get_sparsity(again.modules[name]) for name in ("conv", "fc1", "fc2")]
    assert shares == pytest.approx([SHARE] * 3, abs=0.02)
    assert again.modules["fc1"].pruned_by["method"] == "l1-norm"
    assert sum(isinstance(m, PruneActivation) for m in again.modules.values()) == 3


def test_both_orders_of_pruning_and_quantizing_agree(net_graph):
    inputs = x()
    one, other = quantize(prune(net_graph)), prune(quantize(net_graph))
    assert torch.equal(one.model(inputs), other.model(inputs))
    layer = one.modules["fc1"]
    entering = layer.quantize("weight", layer.weight)
    by_hand = Integer(8, 6).round(layer.weight * layer.weight_mask)
    assert torch.equal(entering, by_hand) and (entering[~layer.weight_mask] == 0).all()


@pytest.mark.parametrize("order", ORDERS)
def test_training_never_shows_a_hidden_weight(net_graph, order):
    mg = ORDERS[order](net_graph)
    mg.model.train()
    before = {name: get_masked(m) for name, m in mg.modules.items() if get_masked(m) is not None}
    weights = {name: mg.modules[name].weight.detach().clone() for name in before}
    step = torch.optim.AdamW(mg.model.parameters(), lr=0.05, weight_decay=0.5)
    for _ in range(4):
        step.zero_grad()
        mg.model(x()).square().sum().backward()
        step.step()
    inputs = x()
    expected = mg.model.eval()(inputs)
    for name, hidden in before.items():
        layer = mg.modules[name]
        assert torch.equal(get_masked(layer), hidden)
        assert (layer.weight[~hidden] != weights[name][~hidden]).any()
        with torch.no_grad():
            layer.weight[hidden] = 1e6
    assert torch.equal(mg.model(inputs), expected)


def test_calibration_sees_the_pruned_weights_only(net_graph):
    auto = {"name": "integer", "width": 6, "frac_width": "minmax"}
    with torch.no_grad():
        net_graph.modules["fc1"].weight[0, 0] = 64.0
    pruned, _ = passes.prune_transform_pass(
        net_graph, {"weight": {"sparsity": 0.5, "method": "random", "seed": 1}}
    )
    pruned.modules["fc1"].weight_mask[0, 0] = False
    mg, _ = passes.quantize_transform_pass(pruned, {"by": "type", "linear": {"config": auto}})
    mg, _ = passes.calibrate_transform_pass(mg, {"batches": [{"x": x()}]})
    layer = mg.modules["fc1"]
    kept = layer.weight[layer.weight_mask]
    assert layer.spec.weight == Integer(6, "minmax").fitted(kept)


def test_a_float_pruned_layer_is_drawn_as_pruned_and_not_as_quantized(net_graph):
    pruned, _ = passes.prune_transform_pass(
        net_graph, {"weight": {"sparsity": 0.75}, "include": ["fc1"]}
    )
    picture = to_svg(pruned.model)
    assert "75% pruned" in picture and "quantized" not in picture
    both = to_svg(quantize(pruned).model)
    assert "75% pruned" in both and "thick border: quantized" in both
    assert "20% pruned" in to_svg(prune(net_graph).model)
    assert "pruned" not in to_svg(net_graph.model)


def test_float_pruned_layers_are_not_counted_as_quantized(net_graph):
    _, info = passes.quantize_transform_pass(
        prune(net_graph), {"by": "type", "linear": {"config": INTEGER}}
    )
    assert info["quantized"] == 2
    _, info = passes.summarize_quantization_analysis_pass(prune(net_graph), {"silent": True})
    assert {row["formats"] for row in info["operators"]} == {""} and info["layers"] == []


def test_the_summary_looks_at_what_is_kept(net_graph):
    mg = quantize(prune(net_graph))
    layer = mg.modules["fc1"]
    with torch.no_grad():
        layer.weight[~layer.weight_mask] = 1e-6
        layer.weight[layer.weight_mask] = 0.5
    row = next(row for row in layer_rows(mg) if row.layer == "fc1")
    assert row.share_rounded_to_zero == 0 and row.share_saturated == 0 and row.weights == 32


@pytest.mark.long
def test_a_pruned_graph_is_compiled_and_exported_by_torch(net_graph):
    mg = quantize(prune(net_graph))
    mg.model.eval()
    inputs = x(4)
    expected = mg.model(inputs)
    compiled = torch.compile(mg.model, fullgraph=True)
    torch.testing.assert_close(compiled(inputs), expected)
    program = torch.export.export(mg.model, (inputs,))
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    torch.testing.assert_close(torch.export.load(file).module()(inputs), expected)


def test_new_masks_follow_device_and_dtype_of_the_weight(net_graph):
    net_graph.model.to(torch.bfloat16)
    mg = prune(net_graph)
    assert mg.modules["fc1"].weight_mask.dtype == torch.bool
    assert mg.model(x().bfloat16()).dtype == torch.bfloat16
    assert mg.modules["fc1"].weight_mask.device == mg.modules["fc1"].weight.device


def test_modes_stay(net_graph):
    net_graph.model.train()
    mg = prune(net_graph)
    added = [m for m in mg.modules.values() if isinstance(m, QuantizedOperator | PruneActivation)]
    assert all(module.training for module in added) and len(added) == 6
    assert isinstance(mg.modules["fc1"], QuantLinear) and isinstance(mg.modules["fc1"], nn.Linear)


@pytest.mark.long
def test_gpt2_that_torch_has_pruned_keeps_its_masks(tmp_path):
    torch.manual_seed(0)
    config = GPT2Config(n_embd=16, n_layer=1, n_head=2, vocab_size=40, use_cache=False)
    model = GPT2LMHeadModel(config).eval()
    layer = model.transformer.h[0].attn.c_attn
    oracle.l1_unstructured(layer, "weight", 0.5)
    ids = torch.arange(3, 21).view(2, 9)
    mg = MaseGraph(model, hf_input_names=["input_ids"])
    assert torch.equal(mg.model(input_ids=ids).logits, model(input_ids=ids).logits)
    optimizer = torch.optim.SGD(mg.model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(2):
        mg.model(input_ids=ids).logits.square().mean().backward()
        optimizer.step()
    mg.model(input_ids=ids)
    assert int((mg.modules["transformer.h.0.attn.c_attn"].weight == 0).sum()) == 16 * 48 // 2
    with pytest.warns(UserWarning, match="c_attn' .torch.nn.utils.prune, no operator for its mask"):
        mg.export(tmp_path / "graph")
    again = MaseGraph.from_checkpoint(tmp_path / "graph")
    assert torch.equal(again.model(input_ids=ids).logits, mg.model(input_ids=ids).logits)
    assert "weight_mask" not in again.modules["transformer.h.0.attn.c_attn"]._buffers


def test_a_mask_of_torch_on_a_bias_is_told():
    model = nn.Sequential(nn.Linear(4, 4))
    nn.init.ones_(model[0].bias)
    for name in ("weight", "bias"):
        oracle.l1_unstructured(model[0], name, amount=2)
    forget_notices()
    mg = MaseGraph(model, dummy_in={"input": torch.randn(2, 4)})
    with pytest.warns(UserWarning, match="masks its bias, but quantized operators support masks"):
        mg, _ = passes.quantize_transform_pass(mg, {"by": "type", "linear": {"config": INTEGER}})
    assert int((mg.modules["0"].bias == 0).sum()) == 2
