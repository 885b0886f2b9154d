"""Mixtures of coded folders whose experts have scales of their own."""

import copy
import logging

import numpy as np
import pytest
import torch

from chop import MaseGraph
from chop.distributed import process
from chop.distributed.apply import shard_graph
from chop.distributed.builtin_plans import PLANS
from chop.errors import CheckpointError, ConfigError
from chop.models import load_model
from tests.experts import text
from tests.export.foreign.test_stored_experts import (
    BY_TENSOR,
    CHANNEL,
    EXPERTS,
    FLOATS,
    LOWEST,
    NV4,
    ONLY_EXPERTS,
    TOKENS,
    check,
    get_name,
    small_floats,
    write,
)
from tests.export.tools import change_tensors, floats, groups


def whole_integers(inputs_scale):
    """Codes in bytes with a scale for each row, and a static scale of inputs."""

    def get_parts(draw, inputs, outputs):
        codes = torch.from_numpy(draw.integers(-128, 128, (outputs, inputs))).to(torch.int8)
        scale = torch.from_numpy(draw.random((outputs, 1)) * 0.01 + 1e-3).float()
        parts = {"weight": codes, "weight_scale": scale}
        parts["input_scale"] = torch.tensor([inputs_scale()])
        return parts, (codes.double() * scale.double()).T

    return get_parts


def write_static(folder, stored, kind, get_scale):
    """A mixture whose experts alone are coded, with static scales by expert and name of matrix."""
    get_parts, weights = {
        "float-quantized": (floats("tensor", inputs_scale=lambda: 0.5), BY_TENSOR),
        "int-quantized": (whole_integers(lambda: 0.5), CHANNEL),
    }[stored]
    static = {**weights, "strategy": "tensor", "dynamic": False}
    settings = groups(stored, weights, static, target=r"re:.*experts\.\d+\..*")
    floats_of = write(folder, (get_parts, settings), kind, coded=ONLY_EXPERTS)

    def set_scales(tensors):
        for name in [x for x in tensors if x.endswith(".input_scale")]:
            *_, expert, matrix, _ = name.split(".")
            tensors[name] = torch.tensor([get_scale(int(expert), matrix)])

    change_tensors(folder, set_scales)
    return floats_of


def rounding_experts(module, stored, scales):
    """Forward of experts, one token and expert at a time, by the definition of the scheme."""
    low, dtype = LOWEST[stored]
    high = -low if dtype.is_floating_point else -low - 1

    def rounded(x, scale):
        quotient = x / scale if dtype.is_floating_point else (x / scale).round()
        return quotient.clamp(low, high).to(dtype).float() * scale

    def forward(hidden, chosen, weights):
        result = torch.zeros_like(hidden)
        for token, place in np.ndindex(*chosen.shape):
            expert = int(chosen[token, place])
            of_first, of_last = scales[expert]
            x = module.gate_up_proj[expert] @ rounded(hidden[token], of_first)
            gate, up = x.chunk(2)
            inner = rounded(torch.nn.functional.silu(gate) * up, of_last)
            result[token] += weights[token, place] * (module.down_proj[expert] @ inner)
        return result

    return forward


@pytest.mark.parametrize(
    ("kind", "stored"), [("Mixtral", "float-quantized"), ("Qwen3Moe", "int-quantized")]
)
@torch.no_grad()
def test_static_scales_of_each_expert_round_its_inputs(kind, stored, tmp_path):
    last = {"Mixtral": "w2", "Qwen3Moe": "down_proj"}[kind]
    scales = [(0.005 + 0.003 * n, 0.02 + 0.01 * n) for n in range(8)]
    floats_of = write_static(tmp_path, stored, kind, lambda n, matrix: scales[n][matrix == last])
    model, reference = load_model(tmp_path), load_model(floats_of)
    module = reference.get_submodule(EXPERTS)
    module.forward = rounding_experts(module, stored, scales)
    expected, found = (x(input_ids=text()).logits for x in (reference, model))
    plain = load_model(floats_of)(input_ids=text()).logits
    assert (plain - expected).abs().max() > 0.02  # the scales matter
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    layers = model.get_submodule(EXPERTS)
    count = layers.down.num_experts
    for layer, place in ((layers.gate_up, 0), (layers.down, 1)):
        assert layer.spec.data_in.scales == pytest.approx([x[place] for x in scales[:count]])
    model.save_pretrained(tmp_path / "again")
    for other in (copy.deepcopy(model), load_model(tmp_path / "again")):
        assert torch.equal(other(input_ids=text()).logits, found)


@pytest.mark.long
def test_scales_of_each_expert_are_on_each_process(tmp_path):
    write_static(tmp_path, "float-quantized", "Mixtral", lambda n, matrix: 0.01 + 0.01 * n)
    graph = MaseGraph(load_model(tmp_path), hf_input_names=["input_ids"])
    with torch.no_grad():
        expected = graph.model(text())["logits"]
    mesh = process.start((1,), "gloo")
    try:
        shard_graph(graph, PLANS["rows"](graph, (1,)), mesh)
        with torch.no_grad():
            found = graph.model(text())["logits"]
    finally:
        torch.distributed.destroy_process_group()
    torch.testing.assert_close(found, expected)


def test_other_scales_of_inputs_are_refused_by_name(tmp_path):
    stored = "float-quantized"
    write_static(tmp_path, stored, "Mixtral", lambda n, matrix: 0.5 + (n == 2 and matrix == "w3"))
    match = r"experts\.2\.w3' and '.*experts\.2\.w1' round their inputs"
    with pytest.raises(ConfigError, match=match):
        load_model(tmp_path)
    write_static(tmp_path, stored, "Mixtral", lambda n, matrix: 0.5)
    change_tensors(tmp_path, lambda x: x.pop(f"{get_name('Mixtral', 1, 2)}.input_scale"))
    with pytest.raises(CheckpointError, match=r"experts\.1\.w2.*lacks input_scale"):
        load_model(tmp_path)
    settings = groups("float-quantized", FLOATS, {**TOKENS, "strategy": "tensor"})
    write(tmp_path / "dynamic", (floats(), settings))
    with pytest.raises(ConfigError, match="one dynamic scale for all inputs"):
        load_model(tmp_path / "dynamic")


def test_tensor_scales_of_each_expert_are_read_as_integers(tmp_path, caplog):
    drawn = iter(range(1, 10**6))
    scheme = small_floats(lambda: 37.7 * next(drawn))
    floats_of = write(tmp_path, (scheme, groups("nvfp4-pack-quantized", NV4)))
    with caplog.at_level(logging.WARNING):
        model = load_model(tmp_path)
    assert caplog.text.count("experts have different tensor scales in 2 layers") == 1
    check(model, floats_of)
    layers = model.get_submodule(EXPERTS)
    for layer in (layers.gate_up, layers.down):
        assert layer.spec.weight.label == (
            "scale_integer(width=5, granularity=group, group_size=16)"
        )
    attention = model.get_submodule("model.layers.0.self_attn.q_proj")
    assert attention.spec.weight.name == "nvfp4"
    model.save_pretrained(tmp_path / "again")
    with torch.no_grad():
        found, again = (x(input_ids=text()).logits for x in (model, load_model(tmp_path / "again")))
    assert torch.equal(found, again)


def test_integers_of_other_widths_with_a_scale_of_each_matrix_are_joined(tmp_path):
    """Codes of experts 0 and 1 fill 3 bits, which leave bytes apart: all become channels."""

    def get_parts(draw, inputs, outputs):
        codes = torch.from_numpy(draw.integers(-4, 4, (outputs, inputs))).to(torch.int8)
        scale = torch.tensor([float(draw.random()) + 0.5])
        return {"weight": codes, "weight_scale": scale}, (codes.double() * scale.double()).T

    weights = {**CHANNEL, "num_bits": 3, "strategy": "tensor"}
    sizes = {"hidden_size": 9, "moe_intermediate_size": 9, "intermediate_size": 9}
    heads = {"num_attention_heads": 1, "num_key_value_heads": 1}
    settings = groups("int-quantized", weights, target=r"re:.*experts\.\d+\..*")
    floats_of = write(tmp_path, (get_parts, settings), coded=ONLY_EXPERTS, **sizes, **heads)
    check(load_model(tmp_path), floats_of, rounds_inputs=True)  # grouped_mm takes no such sizes
