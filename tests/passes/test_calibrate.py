import pytest
import torch

from chop import passes
from chop.errors import ConfigError, GraphError
from chop.formats import Integer
from chop.nn.quantized import QuantizedOperator, QuantScaledDotProductAttention

AUTO = {
    "by": "type",
    "default": {"config": {"name": "integer", "width": 6, "frac_width": "minmax"}},
}


def quantised(mg):
    return {n: m for n, m in mg.modules.items() if isinstance(m, QuantizedOperator)}


def test_every_format_that_waits_is_fitted_to_what_flows(bert_graph, bert_inputs):
    quantized, _ = passes.quantize_transform_pass(bert_graph, AUTO)
    seen = {}
    hook = bert_graph.modules["classifier"].register_forward_pre_hook(
        lambda _, args: seen.update(x=args[0])
    )
    bert_graph.model(**bert_inputs)
    hook.remove()
    fitted, info = passes.calibrate_transform_pass(quantized, {"batches": [bert_inputs]})
    assert info["fitted"] > 30
    for module in quantised(fitted).values():
        if isinstance(module, QuantScaledDotProductAttention):
            continue  # its three steps are fitted instead
        assert all(getattr(module.spec, operand).is_fitted for operand in module.operands)
    assert fitted.modules["classifier"].spec.data_in == Integer(6, "minmax").fitted(seen["x"])
    # the graph that came in still waits
    assert not quantized.modules["classifier"].spec.data_in.is_fitted


def test_attention_gets_a_fraction_per_step(bert_graph, bert_inputs):
    quantized, _ = passes.quantize_transform_pass(bert_graph, AUTO)
    fitted, _ = passes.calibrate_transform_pass(quantized, {"batches": [bert_inputs]})
    steps = {
        name.rpartition(".")[2]: module.spec
        for name, module in quantised(fitted).items()
        if ".layer.0." in name and name.endswith(("product", "softmax", "context"))
    }
    # probabilities lie in 0..1: five of six bits are fraction
    assert steps["context"].weight.frac_width >= 5
    assert steps["product"].data_in.is_fitted


def test_more_data_can_only_widen_the_range(bert_graph, bert_inputs):
    quantized, _ = passes.quantize_transform_pass(bert_graph, AUTO)
    other = {**bert_inputs, "input_ids": bert_inputs["input_ids"].flip(0)}
    one, _ = passes.calibrate_transform_pass(quantized, {"batches": [bert_inputs]})
    two, _ = passes.calibrate_transform_pass(quantized, {"batches": [bert_inputs, other]})
    for name, module in quantised(one).items():
        wider = quantised(two)[name].spec.data_in
        if "data_in" in module.operands:
            assert wider.frac_width <= module.spec.data_in.frac_width


def test_modes_and_outputs_are_left_alone(bert_graph, bert_inputs):
    quantized, _ = passes.quantize_transform_pass(bert_graph, AUTO)
    quantized.model.train()
    fitted, _ = passes.calibrate_transform_pass(quantized, {"batches": [bert_inputs]})
    assert fitted.model.training
    assert fitted.modules["bert.embeddings.dropout"].training


def test_no_batches_and_no_quantisation_are_errors(bert_graph):
    with pytest.raises(GraphError, match="run quantize_transform_pass"):
        passes.calibrate_transform_pass(bert_graph, {"batches": []})
    quantized, _ = passes.quantize_transform_pass(bert_graph, AUTO)
    with pytest.raises(ConfigError, match="at least one batch, got none"):
        passes.calibrate_transform_pass(quantized, {"batches": []})
    with pytest.raises(ConfigError, match="missing key 'batches'"):
        passes.calibrate_transform_pass(quantized)


def test_four_derived_bits_beat_four_fixed_bits(bert_graph, bert_inputs):
    exact = bert_graph.model(**bert_inputs)["logits"]

    def error(frac_width):
        config = {"name": "integer", "width": 4, "frac_width": frac_width}
        mg, _ = passes.quantize_transform_pass(
            bert_graph, {"by": "type", "linear": {"config": config}}
        )
        if frac_width == "auto":
            mg, _ = passes.calibrate_transform_pass(mg, {"batches": [bert_inputs]})
        return (mg.model(**bert_inputs)["logits"] - exact).square().mean()

    torch.manual_seed(0)
    assert error("auto") < error(2) / 4
