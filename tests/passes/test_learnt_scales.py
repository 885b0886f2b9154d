"""Learned scales in graphs: calibrated, trained, exported, packed."""

import copy

import pytest
import torch

from chop import MaseGraph, passes
from chop.errors import ConfigError
from chop.formats import MXInt, QuantSpec, ScaleInteger, initial_scales
from chop.ir.verify import verify
from chop.nn.packed import PackedLinear
from chop.nn.quantized import QuantizedOperator, QuantScaledDotProductAttention

SPEC = QuantSpec(ScaleInteger(8), ScaleInteger(4, granularity="channel"), gradient="lsq")
RULES = {
    "by": "type",
    "linear": {"config": SPEC},
    "scaled_dot_product_attention": {"config": SPEC},
    "layer_norm": {"config": {"data_in": {"name": "scale_integer", "width": 8}, "gradient": "lsq"}},
}


@pytest.fixture
def learning(bert_graph):
    return passes.quantize_transform_pass(bert_graph, RULES)[0]


def waiting(mg):
    return {
        f"{path}.{operand}"
        for path, module in mg.modules.items()
        if isinstance(module, QuantizedOperator)
        for operand in module.waiting
    }


def trained(mg, inputs):
    """A few steps; the graph is left alone."""
    mg = mg.copy()
    optimizer = torch.optim.Adam(mg.model.parameters(), lr=1e-2)
    for _ in range(3):
        optimizer.zero_grad()
        mg.model(**inputs)["loss"].backward()
        optimizer.step()
    mg.model.eval()
    return mg


def test_calibration_starts_what_waits_and_forgets_the_trial_runs(learning, bert_inputs):
    seen = []
    learning.modules["classifier"].register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    assert "classifier.data_in" in waiting(learning)
    started, info = passes.calibrate_transform_pass(learning, {"batches": [bert_inputs]})
    assert not waiting(started) and info["fitted"] > 20
    expected = initial_scales(SPEC.data_in, seen[0].reshape(1, -1))
    torch.testing.assert_close(started.modules["classifier"].data_in_scale.detach(), expected)
    assert "classifier.data_in" in waiting(learning)  # the graph that came in


def test_analyzes_start_nothing(learning, bert_inputs):
    before = waiting(learning)
    mg, _ = passes.add_common_metadata_analysis_pass(learning, {"dummy_in": bert_inputs})
    assert waiting(mg) == before == waiting(learning)
    verify(mg)


def test_training_moves_all_scales_and_a_checkpoint_keeps_them(learning, bert_inputs, tmp_path):
    mg = trained(learning, bert_inputs)
    scales = {name: p for name, p in mg.model.named_parameters() if name.endswith("_scale")}
    assert len(scales) > 30 and not waiting(mg)
    first = passes.calibrate_transform_pass(learning, {"batches": [bert_inputs]})[0]
    starts = dict(first.model.named_parameters())
    moved = [not torch.equal(scale, starts[name]) for name, scale in scales.items()]
    assert sum(moved) > 0.9 * len(moved)
    expected = mg.model(**bert_inputs)["logits"]
    mg.export(tmp_path / "learned")
    again = MaseGraph.from_checkpoint(tmp_path / "learned")
    assert not waiting(again)
    assert torch.equal(again.model(**bert_inputs)["logits"], expected)
    assert torch.equal(copy.deepcopy(mg).model(**bert_inputs)["logits"], expected)
    learning.export(tmp_path / "waiting")
    assert waiting(MaseGraph.from_checkpoint(tmp_path / "waiting")) == waiting(learning)


def test_packing_settles_what_was_learned_bit_for_bit(learning, bert_inputs, tmp_path):
    mg = trained(learning, bert_inputs)
    expected = mg.model(**bert_inputs)["logits"]
    packed, info = passes.pack_transform_pass(mg, {"silent": True})
    assert torch.equal(packed.model(**bert_inputs)["logits"], expected)
    assert not any(name.endswith("_scale") for name, _ in packed.model.named_parameters())
    assert info["packed"] == 14 and isinstance(packed.modules["classifier"], PackedLinear)
    attention = [
        m for m in packed.modules.values() if isinstance(m, QuantScaledDotProductAttention)
    ]
    assert attention and not any(module.spec.lsq_operands for module in attention)
    packed.export(tmp_path / "small")
    again = MaseGraph.from_checkpoint(tmp_path / "small")
    assert torch.equal(again.model(**bert_inputs)["logits"], expected)
    assert mg.modules["classifier"].spec.lsq_operands == ["data_in", "weight"]


def test_the_bits_of_scales_count_once(learning, bert_inputs):
    measured = passes.quantize_transform_pass(
        learning, {"by": "type", "linear": {"config": QuantSpec(SPEC.data_in, SPEC.weight)}}
    )[0]
    mg = trained(learning, bert_inputs)
    bits = [passes.calculate_avg_bits_mg_analysis_pass(g)[1]["w_avg_bit"] for g in (mg, measured)]
    assert bits[0] == pytest.approx(bits[1], rel=1e-12)


def test_what_waits_cannot_be_packed_and_other_formats_cannot_learn(learning, bert_graph):
    with pytest.raises(ConfigError, match="scales of its data_in are uninitialized"):
        passes.pack_transform_pass(learning, {"silent": True})
    with pytest.raises(ConfigError, match="scale_integer .* instead of integer"):
        config = {"name": "integer", "width": 8, "frac_width": 4, "gradient": "lsq"}
        passes.quantize_transform_pass(bert_graph, {"by": "type", "linear": {"config": config}})


def test_an_operand_without_scales_trains_beside_one_with(bert_graph, bert_inputs):
    spec = QuantSpec(MXInt(), ScaleInteger(4), gradient="lsq")
    mg, _ = passes.quantize_transform_pass(bert_graph, {"by": "type", "linear": {"config": spec}})
    mg.model(**bert_inputs)["loss"].backward()
    layer = mg.modules["bert.encoder.layer.0.intermediate.dense"]
    names = {name for name, _ in layer.named_parameters()}
    assert names == {"weight", "bias", "weight_scale"}
    assert all(p.grad.isfinite().all() and p.grad.abs().sum() > 0 for p in layer.parameters())
