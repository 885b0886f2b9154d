import copy

import pytest
import torch

from chop import passes
from chop.errors import ConfigError, GraphError
from chop.formats import Integer, QuantSpec
from chop.nn import quantized as q

WIDE = QuantSpec.uniform(Integer(24, 16))
BERT_OPERATORS = (
    "linear",
    "layer_norm",
    "embedding",
    "gelu",
    "add",
    "tanh",
    "scaled_dot_product_attention",
)


def integer(width, frac_width, *operands):
    config = {"name": "integer"}
    for operand in operands or ("data_in", "weight", "bias"):
        config |= {f"{operand}_width": width, f"{operand}_frac_width": frac_width}
    return {"config": config}


def by_type(**rules):
    return {"by": "type", "default": {"config": {"name": None}}, **rules}


def test_a_wide_format_changes_no_output_of_bert(bert_graph, bert_inputs):
    rules = {name: {"config": WIDE} for name in BERT_OPERATORS}
    quantized, info = passes.quantize_transform_pass(bert_graph, by_type(**rules))
    expected, actual = bert_graph.model(**bert_inputs), quantized.model(**bert_inputs)
    torch.testing.assert_close(actual["logits"], expected["logits"], atol=1e-4, rtol=0)
    torch.testing.assert_close(actual["loss"], expected["loss"], atol=1e-4, rtol=0)
    assert list(quantized.model.state_dict()) == list(bert_graph.model.state_dict())
    attention = [
        m for m in quantized.modules.values() if isinstance(m, q.QuantScaledDotProductAttention)
    ]
    assert len(attention) == 2
    # 14 linear, 5 layer norms, 3 embeddings, 2 gelu, 6 real additions, 1 tanh, 2 attentions
    assert info == {"quantized": 14 + 5 + 3 + 2 + 6 + 1 + 2}


def test_two_widths_from_one_graph_are_independent(bert_graph, bert_inputs):
    before = bert_graph.model(**bert_inputs)["logits"]
    weights = copy.deepcopy(bert_graph.model.state_dict())
    config = by_type(linear=integer(8, 5))
    kept = copy.deepcopy(config)
    eight, _ = passes.quantize_transform_pass(bert_graph, config)
    four, _ = passes.quantize_transform_pass(bert_graph, pass_args=by_type(linear=integer(4, 2)))
    assert config == kept
    outputs = [mg.model(**bert_inputs)["logits"] for mg in (bert_graph, eight, four)]
    assert torch.equal(outputs[0], before)
    assert not torch.equal(outputs[1], outputs[2])
    assert not any(isinstance(m, q.QuantizedOperator) for m in bert_graph.modules.values())
    with torch.no_grad():
        for parameter in four.model.parameters():
            parameter.zero_()
    assert torch.equal(eight.model(**bert_inputs)["logits"], outputs[1])
    for key, value in bert_graph.model.state_dict().items():
        assert torch.equal(value, weights[key])


def test_functions_methods_and_modules_are_quantized_alike(net_graph):
    rules = {
        name: {"config": {"name": "integer", "width": 9, "frac_width": 6}}
        for name in ("conv2d", "batch_norm2d", "relu", "linear", "add", "softmax", "matmul")
    }
    quantized, info = passes.quantize_transform_pass(net_graph, by_type(**rules))
    kinds = [
        type(m).__name__ for m in quantized.modules.values() if isinstance(m, q.QuantizedOperator)
    ]
    modules = ["QuantConv2d", "QuantBatchNorm2d", "QuantLinear", "QuantLinear"]
    calls = [*["QuantCall"] * 3, "QuantContext"]  # relu, add, softmax, and a product of its weights
    assert sorted(kinds) == sorted([*modules, *calls])
    assert info == {"quantized": 8}
    x = torch.randn(5, 1, 6, 7)
    net, grid = net_graph.model, Integer(9, 6)
    y = q.QuantConv2d.from_float(copy.deepcopy(net.conv), QuantSpec.uniform(grid))(x)
    y = q.QuantBatchNorm2d.from_float(copy.deepcopy(net.bn), QuantSpec.uniform(grid))(y)
    y = grid.round(y).relu().mean((2, 3))
    fc1, fc2 = (
        q.QuantLinear.from_float(copy.deepcopy(fc), QuantSpec.uniform(grid))
        for fc in (net.fc1, net.fc2)
    )
    y = fc1(y)
    z = grid.round(fc2(y)) + grid.round(y)
    expected = grid.round(grid.round(z).softmax(0)) @ torch.ones(8, 2)
    assert torch.equal(quantized.model(x), expected)
    assert len(expected.unique()) > 1


def test_selecting_by_name_path_and_pattern(bert_graph):
    node = "bert_encoder_layer_0_attention_self_query"
    path = "bert.encoder.layer.1.attention.self.key"
    config = {"by": "name", node: integer(8, 4), path: integer(4, 2)}
    quantized, info = passes.quantize_transform_pass(bert_graph, config)
    assert info == {"quantized": 2}
    assert quantized.modules["bert.encoder.layer.0.attention.self.query"].spec.weight == Integer(
        8, 4
    )
    assert quantized.modules[path].spec.weight == Integer(4, 2)

    pattern = r"bert\.encoder\.layer\.\d+\.attention\.self\.(query|key)"
    quantized, info = passes.quantize_transform_pass(
        bert_graph, {"by": "regex_name", pattern: integer(8, 4)}
    )
    assert info == {"quantized": 4}


def test_the_default_holds_for_the_rest(bert_graph):
    config = {
        "by": "type",
        "default": {"config": {"name": "integer", "width": 8, "frac_width": 4}},
        "linear": integer(4, 2),
        "gelu": {"config": {"bypass": True, "name": "integer"}},
    }
    quantized, _ = passes.quantize_transform_pass(bert_graph, config)
    formats = {
        name: module.spec.data_in
        for name, module in quantized.modules.items()
        if isinstance(module, q.QuantizedOperator) and "weight" in dict(module.named_parameters())
    }
    assert formats["classifier"] == Integer(4, 2)
    assert formats["bert.embeddings.LayerNorm"] == Integer(8, 4)
    gelus = [
        m
        for m in quantized.modules.values()
        if getattr(m, "function", None) is torch.nn.functional.gelu
    ]
    assert all(m.spec == QuantSpec() for m in gelus)


@pytest.mark.parametrize(
    "config, message",
    [
        (
            by_type(linaer=integer(8, 4)),
            "no quantizable operator .* 'linaer': did you mean 'linear'",
        ),
        (by_type(conv2d=integer(8, 4)), "matches 'conv2d'; it has: add, embedding"),
        (by_type(dropout=integer(8, 4)), "matches 'dropout'; it has"),
        ({"by": "name", "classifierr": integer(8, 4)}, "did you mean 'classifier'"),
        ({"by": "regex_name", "nothing.*": integer(8, 4)}, "matches 'nothing"),
        ({"by": "regex_name", "encoder": integer(8, 4)}, r"write '\.\*encoder\.\*' for a part"),
        ({"by": "typ", "linear": integer(8, 4)}, "did you mean 'type'"),
        ({"by": "type"}, "nothing to quantize"),
        (by_type(linear={"name": "integer"}), "expected {'config'"),
        (by_type(linear=integer(-8, 4)), "got -8, expected 1 to 32 bits"),
        (by_type(linear=integer(8.5, 4)), "expected int or 'auto', got 8.5"),
        (
            by_type(linear=integer(8, 4, "data_in", "weight")),
            r"\['linear'\]: missing key 'bias_width'",
        ),
        (by_type(linear={"config": {"name": "intger"}}), "did you mean 'integer'"),
        (
            by_type(linear={"config": {"name": "integer", "weigth_width": 8}}),
            "did you mean 'weight_width'",
        ),
        ("linear", "expected a mapping"),
    ],
)
@pytest.mark.sampled(3)
def test_mistakes_are_named_and_change_nothing(bert_graph, config, message):
    before = [(node.op, node.target) for node in bert_graph.nodes]
    with pytest.raises(ConfigError, match=message):
        passes.quantize_transform_pass(bert_graph, config)
    assert [(node.op, node.target) for node in bert_graph.nodes] == before


@pytest.mark.parametrize(
    "by, key", [("name", "zzz"), ("regex_name", "zzz"), ("regex_name", ".* of type object at .*")]
)
def test_functions_are_called_by_the_names_of_their_nodes(net_graph, by, key):
    """Not by their text, `<built-in method matmul of type object at 0x...>`."""
    with pytest.raises(ConfigError, match="no quantizable node") as error:
        passes.quantize_transform_pass(net_graph, {"by": by, key: integer(8, 4)})
    assert ", matmul" in str(error.value) and "<" not in str(error.value)


def test_profiling_lists_functions_by_the_names_of_their_nodes(net_graph):
    config = {
        "by": "name",
        "target_weight_nodes": ["zzz"],
        "weight_statistics": {"range_min_max": {}},
    }
    with pytest.raises(ConfigError, match="has no node 'zzz'") as error:
        passes.profile_statistics_analysis_pass(net_graph, config)
    assert ", matmul" in str(error.value) and "<" not in str(error.value)


def test_what_is_no_graph_is_named():
    with pytest.raises(GraphError, match="expected a MaseGraph, got Linear"):
        passes.quantize_transform_pass(torch.nn.Linear(1, 1), {})


def test_a_missing_bias_needs_no_format():
    from chop import MaseGraph
    from tests.passes.conftest import with_metadata

    model = torch.nn.Sequential(torch.nn.Linear(4, 4, bias=False))
    mg = with_metadata(MaseGraph(model, dummy_in={"input": torch.randn(2, 4)}))
    config = by_type(linear=integer(8, 4, "data_in", "weight"))
    quantized, info = passes.quantize_transform_pass(mg, config)
    assert info == {"quantized": 1}
    assert quantized.modules["0"].bias is None


def test_device_dtype_and_mode_follow_the_model(bert_graph):
    bert_graph.model.to(torch.bfloat16).train()
    quantized, _ = passes.quantize_transform_pass(
        bert_graph, by_type(linear=integer(8, 4), gelu=integer(8, 4, "data_in"))
    )
    assert {p.dtype for p in quantized.model.parameters()} == {torch.bfloat16}
    assert all(m.training for m in quantized.modules.values())
    quantized.model.eval()
    assert not any(m.training for m in quantized.modules.values())


@pytest.mark.long
def test_the_quantized_bert_compiles_as_one_graph(bert_graph, bert_inputs):
    torch._dynamo.reset()
    config = {"by": "type", "default": {"config": {"name": "integer", "width": 8, "frac_width": 5}}}
    quantized, _ = passes.quantize_transform_pass(bert_graph, config)
    compiled = torch.compile(quantized.model, fullgraph=True, backend="aot_eager")
    expected = quantized.model(**bert_inputs)["logits"]
    torch.testing.assert_close(compiled(**bert_inputs)["logits"], expected)
