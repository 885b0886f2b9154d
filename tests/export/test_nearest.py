"""Nearest formats: a target replaces a format that it cannot store by one that it can."""

import pytest
import torch
from torch import nn

from chop import MaseGraph, passes
from chop.errors import ConfigError
from chop.export.nearest import describe, nearest_graph, ranked
from chop.export.packed_model import packed_layers
from chop.export.targets import TARGETS, target
from chop.formats import parse_format_string
from chop.nn.quantized import QuantizedOperator
from tests.export.decoders import captured, quantized

QUERY = "model.layers.0.self_attn.q_proj"


def packed(mg):
    return passes.pack_transform_pass(mg, {"silent": True})[0]


def available(name):
    pytest.importorskip(target(name).library, reason="its library is not installed")
    return target(name)


# target, format -> nearest
NEAREST = {
    ("compressed-tensors", "log:width=8"): "group_integer(width=8)",
    ("compressed-tensors", "mxint:width=12"): "group_integer(width=8)",
    ("compressed-tensors", "mxfp:width=6"): "mxfp(width=8)",
    ("gptq", "group_affine:width=4"): "group_integer(width=4)",
    ("gptq", "mxint:width=5"): "group_integer(width=8)",
    ("gguf", "mxfp:width=6"): "mxint(width=8)",
    ("gguf", "scale_integer:width=8"): "mxint(width=8)",
    ("qonnx", "mxint:width=6"): "scale_integer(width=6, granularity=channel)",
}


@pytest.mark.parametrize(("case", "expected"), NEAREST.items(), ids=map(":".join, NEAREST))
@pytest.mark.sampled(1)
def test_each_module_gets_the_nearest_format(case, expected):
    name, text = case
    source = quantized(captured("Llama"), {"linear": text})
    mg, kind = packed(source), available(name)
    found, changes = nearest_graph(kind, mg, source)
    assert {describe(change.new) for change in changes} == {expected}
    assert {change.path for change in changes} == {*packed_layers(mg.model)}
    assert dict(kind.refusals(found)) == {} and len(kind.refusals(mg)) == len(changes) == 8
    layer = found.model.get_submodule(QUERY)
    exact = source.model.get_submodule(QUERY).weight.detach()
    assert torch.equal(layer.weight, layer.spec.weight.round(exact))  # and of no rounded values
    assert all(change.is_from_float for change in changes)


def test_what_is_held_stays_and_packed_weights_are_rounded_from_what_they_are():
    rules = {"lm_head": "mxint:width=8", "model.layers.0.mlp.*": "mxint:width=4"}
    mg = packed(quantized(captured("Llama"), rules, by="regex_name"))
    found, (change,) = nearest_graph(target("gptq"), mg, mg)
    assert (change.path, describe(change.new)) == ("lm_head", "group_integer(width=4)")
    assert (
        change.reason
        == "it has 8 bits in groups of 32, but most modules have 4 bits in groups of 32"
    )
    assert not change.is_from_float
    up, head = "model.layers.0.mlp.up_proj", found.model.get_submodule("lm_head")
    codes = [x.model.get_submodule(up).encoded("weight").codes for x in (mg, found)]
    assert codes[0] is codes[1]
    rounded = mg.model.get_submodule("lm_head").weight
    assert torch.equal(head.weight, head.spec.weight.round(torch.Tensor(rounded)))
    assert describe(mg.model.get_submodule("lm_head").spec) == "mxint(width=8)"


@pytest.mark.parametrize("name", ["compressed-tensors", "gptq", "gguf", "pt2"])
@pytest.mark.sampled(2)
def test_inputs_that_a_target_cannot_round_become_floats(name):
    kind, mx = available(name), parse_format_string("mxint:width=8")
    rule = {"config": {"weight": mx, "data_in": mx}}
    rules = {"linear": rule, "scaled_dot_product_attention": rule}
    mg = passes.quantize_transform_pass(captured("Llama"), {"by": "type", **rules})[0]
    found, changes = nearest_graph(kind, packed(mg), mg)
    told = {change.path: (describe(change.old), describe(change.new)) for change in changes}
    attention = "model.layers.0.self_attn.scaled_dot_product_attention"
    assert told.pop(attention)[1] == "float"
    assert {*told.values()} == {("mxint(width=8), inputs mxint(width=8)", "mxint(width=8)")}
    assert len(told) == 8 and dict(kind.refusals(found)) == {}


def test_targets_that_hold_all_formats_change_nothing():
    mg = packed(quantized(captured("Llama"), {"linear": "log:width=8"}))
    for name in ("onnx", "openvino", "pt2"):
        assert nearest_graph(target(name), mg, mg) == (mg, [])


@pytest.mark.long
def test_layers_that_no_format_helps_become_floats():
    import transformers

    available("compressed-tensors")
    sizes = {"vocab_size": 96, "n_embd": 64, "n_layer": 1, "n_head": 4, "n_positions": 32}
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes)).eval()
    source = quantized(model, {"linear": "mxint:width=8"})
    found, changes = nearest_graph(target("compressed-tensors"), packed(source), source)
    assert {describe(change.new) for change in changes} == {"float"}
    modules = [x for x in found.model.modules() if isinstance(x, QuantizedOperator)]
    kept = [x for x in modules if not x.spec.is_float]
    assert len(changes) == 4 and len(kept) == 1  # the head
    assert target("compressed-tensors").refusals(found) == {}


def test_models_that_a_target_never_holds_are_refused():
    mg = quantized(MaseGraph(nn.Sequential(nn.Linear(32, 4)).eval()), {"linear": "mxint:width=8"})
    with pytest.raises(ConfigError, match="expected a transformers model"):
        nearest_graph(target("gptq"), mg, mg)


def test_ranks_of_candidates():
    values = torch.randn(8, 64, generator=torch.Generator().manual_seed(0))
    given = ["mxint:width=4", "mxint:width=8", "group_integer:width=6", "mxfp:width=6", "ternary"]
    old = parse_format_string("mxint:width=5")
    labels = [found.label for found in ranked([*given, old, "group_integer:width=4"], old, values)]
    assert labels[:3] == ["group_integer(width=6)", "mxint(width=8)", "mxfp(width=6)"]
    assert labels[3:5] == ["group_integer(width=4)", "mxint(width=4)"]  # of less error first
    assert len(labels) == len(given) + 1


@pytest.mark.parametrize("name", TARGETS)
def test_candidates_of_targets_are_formats(name):
    for text in target(name).formats:
        fmt = parse_format_string(text)
        assert fmt.layout() is not None or fmt.is_nested or text in ("binary", "ternary")
