"""Adapters in graphs: insertion, training, fusion."""

import pytest
import torch
from torch import nn

from chop import MaseGraph, passes
from chop.errors import ConfigError, GraphError
from chop.formats import Integer
from chop.models import load_model
from chop.nn.lora import list_adapters
from chop.nn.quantized import QuantLinear
from tests.networks import Tied, twice

INT8 = {"by": "type", "linear": {"config": {"name": "integer", "width": 8, "frac_width": 5}}}
MASE = {"rank": 6, "alpha": 1.0, "dropout": 0.5}


def trained(mg, settings=MASE):
    """The graph with adapters that are no longer zero."""
    mg, _ = passes.insert_lora_adapter_transform_pass(mg, settings)
    for layer in list_adapters(mg.model).values():
        nn.init.normal_(layer.lora_B.weight, std=0.2)
    return mg


def trainable(mg):
    return {name for name, p in mg.model.named_parameters() if p.requires_grad}


def logits(mg, inputs):
    return mg.model(**inputs)["logits"]


def test_insertion_changes_no_output_and_the_callers_graph_stays(bert_graph, bert_inputs):
    keys, frozen = set(bert_graph.model.state_dict()), trainable(bert_graph)
    expected = logits(bert_graph, bert_inputs)
    adapted, info = passes.insert_lora_adapter_transform_pass(bert_graph, pass_args=MASE)
    assert torch.equal(logits(adapted, bert_inputs), expected)
    assert not list_adapters(bert_graph.model) and trainable(bert_graph) == frozen
    new = set(adapted.model.state_dict()) - keys
    assert keys < set(adapted.model.state_dict()) and len(new) == 2 * info["inserted"] == 28
    assert "bert.pooler.dense.lora_A.weight" in new
    assert trainable(adapted) == new, "only the adapters train"
    counts = [
        sum(p.numel() for p in mg.model.parameters() if p.requires_grad)
        for mg in (bert_graph, adapted)
    ]
    assert [info["trainable_before"], info["trainable_after"]] == counts
    pooler = next(row for row in info["layers"] if row["layer"] == "bert.pooler.dense")
    assert pooler == {
        "layer": "bert.pooler.dense", "rank": 6, "before": 32 * 33, "after": 6 * (32 + 32)
    }  # fmt: skip


def test_what_was_trainable_is_so_again_after_fusing(bert_graph, bert_inputs):
    bert_graph.model.bert.embeddings.requires_grad_(False)
    bert_graph.model.classifier.bias.requires_grad_(False)
    before = trainable(bert_graph)
    adapted = trained(bert_graph)
    expected = logits(adapted, bert_inputs)
    fused, info = passes.fuse_lora_weights_transform_pass(adapted)
    assert info == {"fused": 14} and trainable(fused) == before
    assert set(fused.model.state_dict()) == set(bert_graph.model.state_dict())
    assert type(fused.modules["classifier"]) is nn.Linear
    torch.testing.assert_close(logits(fused, bert_inputs), expected, atol=1e-5, rtol=0)
    assert (logits(fused, bert_inputs) - logits(bert_graph, bert_inputs)).abs().max() > 1e-3
    assert len(list_adapters(adapted.model)) == 14, "the caller's graph keeps its adapters"


QUERIES = {f"bert.encoder.layer.{i}.attention.self.query" for i in (0, 1)}


@pytest.mark.parametrize(
    "entries, expected",
    [
        (["query"], QUERIES),
        ("query", QUERIES),
        (["bert_encoder_layer_0_attention_self_query", "classifier"], None),
        (r"bert\.encoder\.layer\.\d\.attention\.self\.query", QUERIES),
        ([".*self.query"], QUERIES),
        (["layer.1.attention.self.query", "layer.0.attention.self.query"], QUERIES),
    ],
)
@pytest.mark.sampled(3)
def test_targets(bert_graph, entries, expected):
    adapted, info = passes.insert_lora_adapter_transform_pass(
        bert_graph, {"target_modules": entries}
    )
    expected = expected or {"bert.encoder.layer.0.attention.self.query", "classifier"}
    assert set(list_adapters(adapted.model)) == expected
    assert info["inserted"] == 2
    assert [row["layer"] for row in info["layers"]] == list(list_adapters(adapted.model))


def test_what_else_may_train(bert_graph):
    settings = {"target_modules": ["dense"], "modules_to_save": ["classifier", "bert.pooler"]}
    adapted, info = passes.insert_lora_adapter_transform_pass(bert_graph, settings)
    whole = {f"{m}.{p}" for m in ("classifier", "bert.pooler.dense") for p in ("weight", "bias")}
    assert whole == {name for name in trainable(adapted) if "lora" not in name}
    assert info["inserted"] == 6 and "bert.pooler.dense" not in list_adapters(adapted.model)
    for train_bias, count in (("lora_only", 2), ("all", 19)):
        settings = {"target_modules": "query", "bias": train_bias}
        adapted, _ = passes.insert_lora_adapter_transform_pass(bert_graph, settings)
        biases = {name for name in trainable(adapted) if "lora" not in name}
        assert len(biases) == count and all(name.endswith("bias") for name in biases)


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"rank": 0}, "insert_lora_adapter_transform_pass: rank is 0"),
        ({"lora_alpha": -1}, "alpha is -1, expected a number above 0"),
        ({"lora_dropout": 1.5}, "dropout is 1.5"),
        ({"alpha": 1, "lora_alpha": 1}, "'alpha' is given twice, once as 'lora_alpha'"),
        ({"r": 8, "rank": 4}, "'rank' is given twice, once as 'r'"),
        ({"target_modules": ["qurey"]}, "no Linear .* matches 'qurey': did you mean 'query'"),
        ({"target_modules": ["bert.poler.dense"]}, "did you mean 'bert.pooler.dense'"),
        ({"target_modules": ["bert.encoder"]}, "no Linear in this graph matches 'bert.encoder'"),
        ({"target_modules": ["LayerNorm"]}, "no Linear in this graph matches 'LayerNorm'"),
        ({"target_modules": ["("]}, "matches '('"),
        ({"target_modules": []}, "no Linear remains to adapt; the graph has 14"),
        ({"modules_to_save": ["clasifier"]}, "no module .* did you mean 'classifier'"),
        ({"train_bias": "some"}, "train_bias: got 'some'"),
    ],
)
@pytest.mark.sampled(3)
def test_mistakes_are_named(bert_graph, settings, message):
    message = message.replace("(", r"\(")
    with pytest.raises(ConfigError, match=message):
        passes.insert_lora_adapter_transform_pass(bert_graph, settings)
    assert not list_adapters(bert_graph.model)


def test_adapters_do_not_nest_and_must_be_there_to_fuse(bert_graph):
    adapted, _ = passes.insert_lora_adapter_transform_pass(bert_graph, {"target_modules": "query"})
    with pytest.raises(GraphError, match=r"LoRA adapters \(2, one on .*fuse_lora_weights"):
        passes.insert_lora_adapter_transform_pass(adapted, MASE)
    with pytest.raises(GraphError, match="the graph has no adapter; insert_lora"):
        passes.fuse_lora_weights_transform_pass(bert_graph)


def test_quantized_before_or_after_is_the_same(bert_graph, bert_inputs):
    bert_graph.model.eval()
    after = trained(bert_graph)
    quantized, info = passes.quantize_transform_pass(after, INT8)
    assert info == {"quantized": 14} and len(list_adapters(quantized.model)) == 14
    before, _ = passes.quantize_transform_pass(bert_graph, INT8)
    before, _ = passes.insert_lora_adapter_transform_pass(before, MASE)
    before.model.load_state_dict(after.model.state_dict())
    expected = logits(quantized, bert_inputs)
    assert torch.equal(logits(before, bert_inputs), expected)
    assert not torch.equal(logits(after, bert_inputs), expected)
    fused, _ = passes.fuse_lora_weights_transform_pass(quantized)
    assert type(fused.modules["classifier"]) is QuantLinear
    assert fused.modules["classifier"].spec.weight == Integer(8, 5)
    torch.testing.assert_close(logits(fused, bert_inputs), expected, atol=0.1, rtol=0)


HALF = {"weight": {"sparsity": 0.5, "method": "l1-norm", "scope": "local"}}


@pytest.mark.parametrize("pruned_first", [True, False])
def test_pruned_layers_stay_pruned(bert_graph, bert_inputs, pruned_first):
    bert_graph.model.eval()
    if pruned_first:
        pruned, _ = passes.prune_transform_pass(bert_graph, HALF)
        mg = trained(pruned)
        assert torch.equal(mg.modules["classifier"].weight, pruned.modules["classifier"].weight)
    else:
        mg, _ = passes.prune_transform_pass(trained(bert_graph), HALF)
    expected = logits(mg, bert_inputs)
    assert len(list_adapters(mg.model)) == 14
    fused, _ = passes.fuse_lora_weights_transform_pass(mg)
    torch.testing.assert_close(logits(fused, bert_inputs), expected, atol=1e-5, rtol=0)
    for path, layer in list_adapters(mg.model).items():
        assert torch.equal(fused.modules[path].weight_mask, layer.weight_mask)
        assert (fused.modules[path].effective("weight") == 0).float().mean() >= 0.49


def test_passes_that_cannot_keep_adapters_say_so(bert_graph):
    adapted = trained(bert_graph)
    channels = {"weight": {"sparsity": 0.5, "granularity": "channel"}}
    with pytest.raises(GraphError, match="prune_detach_hook.*: the graph has LoRA adapters"):
        passes.prune_detach_hook_transform_pass(adapted)
    with pytest.raises(GraphError, match=r"\(14, one on 'bert.*run fuse_lora_weights_transform"):
        passes.prune_transform_pass(adapted, channels)


def test_a_layer_that_is_called_twice_has_one_adapter():
    mg = trained(MaseGraph(twice(), dummy_in={"x": torch.randn(2, 4)}), {"rank": 2})
    x = torch.randn(3, 4)
    fc = mg.modules["fc"]
    assert list(list_adapters(mg.model)) == ["fc"]
    torch.testing.assert_close(mg.model(x), fc(fc(x).relu()))


def test_tied_weights_are_untied_by_fusing():
    tokens = torch.tensor([[1, 2, 3]])
    mg = trained(MaseGraph(Tied(7, 4), dummy_in={"ids": tokens}), {"rank": 2})
    expected = mg.model(tokens)
    fused, _ = passes.fuse_lora_weights_transform_pass(mg)
    torch.testing.assert_close(fused.model(tokens), expected)
    assert fused.model.head.weight is not fused.model.table.weight


def test_adapters_train_and_are_exported(bert_graph, bert_inputs, tmp_path):
    adapted, _ = passes.insert_lora_adapter_transform_pass(bert_graph, {"rank": 4, "alpha": 8})
    optimizer = torch.optim.Adam([p for p in adapted.model.parameters() if p.requires_grad], 1e-2)
    losses = []
    for _ in range(15):
        loss = adapted.model(**bert_inputs)["loss"]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 2
    base = bert_graph.model.state_dict()
    state = adapted.model.state_dict()
    assert all(torch.equal(state[key], base[key]) for key in base), "base weights stay"

    adapted.export(tmp_path / "lora")
    loaded = MaseGraph.from_checkpoint(tmp_path / "lora")
    assert torch.equal(logits(loaded, bert_inputs), logits(adapted, bert_inputs))
    assert trainable(loaded) == trainable(adapted)
    fused, _ = passes.fuse_lora_weights_transform_pass(loaded)
    assert trainable(fused) == trainable(bert_graph)


def test_a_bias_that_came_while_all_was_frozen_trains_after_fusion():
    adapted = trained(MaseGraph(load_model("cnn")))
    folded, _ = passes.conv_bn_fusion_transform_pass(adapted)
    assert "conv1.bias" in folded.model.state_dict() and "conv1.bias" not in trainable(folded)
    fused, _ = passes.fuse_lora_weights_transform_pass(folded)
    assert trainable(fused) == set(fused.model.state_dict())
