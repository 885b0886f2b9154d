"""Mixtures of experts in folders of compressed-tensors and GPTQ, as other tools read them."""

import functools
import json
import re

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from chop import MaseGraph, passes
from chop.errors import ConfigError
from chop.export.compressed_tensors import target
from chop.export.file_names import list_targets
from chop.export.gptq import target as gptq
from chop.formats import parse_format_string
from chop.models import load_model
from tests.experts import mixture, text
from tests.export.decoders import rounded
from tests.export.foreign.test_expert_scales import whole_integers
from tests.export.foreign.test_stored_experts import CHANNEL, write
from tests.export.gptq.test_target import dense
from tests.export.tools import change_tensors, get_settings, groups

SIZES = {"hidden_size": 64, "moe_intermediate_size": 64, "intermediate_size": 64, "head_dim": 16}
FEW = {
    "Mixtral": {},
    "Qwen2Moe": {"num_experts": 4, "shared_expert_intermediate_size": 64},
    "Qwen3Moe": {"num_experts": 4},
}
DENSE, EXPERTS = r".*(self_attn|shared_expert)\..*_proj", r".*experts\.(gate_up|down)"
W4 = {"weight": "group_integer:width=4:group_size=32"}
FP8 = {"weight": "fp8:granularity=channel", "data_in": "fp8:granularity=row"}
BLOCKS = {"weight": "fp8:granularity=block:group_size=32"}
W8 = {
    "weight": "scale_integer:width=8:granularity=channel",
    "data_in": "scale_integer:width=8:granularity=row",
}
STEMS = {
    "Mixtral": ("block_sparse_moe", "w1 w3 w2"),
    "Qwen2Moe": ("mlp", "gate_proj up_proj down_proj"),
    "Qwen3Moe": ("mlp", "gate_proj up_proj down_proj"),
}


@functools.cache
def captured(kind):
    """The graph of a mixture, which no test changes: capturing is what costs most."""
    model = mixture(kind, **SIZES, **FEW.get(kind, {}))
    return MaseGraph(model, dummy_in={"input_ids": text()})


def get_mixture(kind, recipe):
    mg = captured(kind)
    rules = {
        path: {"config": {operand: parse_format_string(x) for operand, x in formats.items()}}
        for path, formats in recipe.items()
    }
    return passes.quantize_transform_pass(mg, {"by": "regex_name", **rules})[0]


def get_values(mg):
    """The state dict of the float model with the values of the codes."""
    return rounded(mg).state_dict()


def check_codes(mg, folder):
    """The folder, read back, has the codes of the graph."""
    packed, _ = passes.pack_transform_pass(mg, {"silent": True})
    found, expected = dict(load_model(folder).named_modules()), packed.to_module()
    layers = [path for path, x in expected.named_modules() if hasattr(x, "packed_shapes")]
    assert any(path.endswith("experts.down") for path in layers)
    for path in layers:
        ours, theirs = found[path].encoded("weight"), expected.get_submodule(path).encoded("weight")
        assert torch.equal(ours.codes, theirs.codes), path
        assert found[path].spec == expected.get_submodule(path).spec, path


RECIPES = {
    "W4A16": ("Mixtral", {DENSE: W4, EXPERTS: W4}),
    "FP8": ("Qwen3Moe", {DENSE: FP8, EXPERTS: FP8}),
    "FP8 in blocks": ("Qwen3Moe", {EXPERTS: BLOCKS}),
    "W8A8 and W4A16": ("Qwen2Moe", {DENSE: W8, EXPERTS: W4}),
    "W8A8": ("Mixtral", {DENSE: W8, EXPERTS: W8}),
}


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.long
def test_the_library_decodes_each_expert_to_the_values_of_the_codes(recipe, tmp_path):
    pytest.importorskip("compressed_tensors", reason="compressed-tensors reads the folders")
    kind, rules = RECIPES[recipe]
    mg = get_mixture(kind, rules)
    notes = target.write(mg, tmp_path)["notes"]
    has_note = any("transformers does not load these experts" in note for note in notes)
    assert has_note == (recipe in ("FP8 in blocks", "W8A8"))
    found, expected = target.read_model(tmp_path).state_dict(), get_values(mg)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(found[name], value), name
    check_codes(mg, tmp_path)


@pytest.mark.parametrize("recipe", ["W4A16", "FP8", "W8A8 and W4A16"])
@pytest.mark.long
@pytest.mark.filterwarnings("ignore:You passed `quantization_config`")
def test_transformers_loads_dequantized_mixtures(recipe, tmp_path):
    pytest.importorskip("compressed_tensors", reason="compressed-tensors reads the folders")
    import transformers

    kind, rules = RECIPES[recipe]
    mg = get_mixture(kind, rules)
    notes = target.write(mg, tmp_path)["notes"]
    assert any("dequantize=True" in note for note in notes)
    floats = transformers.CompressedTensorsConfig(dequantize=True)
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, quantization_config=floats)
    for name, value in get_values(mg).items():
        assert torch.equal(model.state_dict()[name], value), name


@pytest.mark.parametrize("scheme", ["W4A16", "zero points", "3 bits", "FP8 by channel", "int8"])
@pytest.mark.sampled(2)
def test_experts_of_other_tools_equal_the_library_bit_for_bit(scheme, tmp_path):
    pytest.importorskip("compressed_tensors", reason="compressed-tensors reads the folders")
    rules = (whole_integers(lambda: 0.5), groups("int-quantized", CHANNEL))
    write(tmp_path, rules if scheme == "int8" else scheme, "Qwen3Moe")
    if scheme == "int8":
        change_tensors(
            tmp_path, lambda own: [own.pop(x) for x in [*own] if x.endswith("input_scale")]
        )
    stored = load_file(tmp_path / "model.safetensors")
    dtype = next(x.dtype for name, x in stored.items() if name.endswith("weight_scale"))
    model, theirs = load_model(tmp_path), target.read_model(tmp_path).model.layers[0].mlp.experts
    ours = model.model.layers[0].mlp.experts
    for layer, value in ((ours.gate_up, theirs.gate_up_proj), (ours.down, theirs.down_proj)):
        decoded = layer.weight.detach().as_subclass(torch.Tensor).view(value.shape)
        assert torch.equal(decoded.to(dtype), value.to(dtype))


@pytest.mark.parametrize("kind", STEMS)
@pytest.mark.sampled(1)
def test_experts_have_the_names_of_the_original_checkpoint(kind, tmp_path):
    mg = get_mixture(kind, {EXPERTS: W4})
    captured(kind).to_module().save_pretrained(tmp_path / "floats")
    info = target.write(mg, tmp_path / "codes")
    plain = load_file(tmp_path / "floats" / "model.safetensors")
    names = {x.rpartition(".")[0] for x in load_file(tmp_path / "codes" / "model.safetensors")}
    assert names == {x.rpartition(".")[0] for x in plain}
    owner, parts = STEMS[kind]
    stem = f"model.layers.0.{owner}"
    experts = [f"{stem}.experts.{n}.{part}" for n in range(4) for part in parts.split()]
    assert sorted(info["formats"]) == sorted(experts)
    ignored = get_settings(tmp_path / "codes")["ignore"]
    assert f"{stem}.gate" in ignored and "lm_head" in ignored
    assert {*ignored} == {x for x in names if plain[f"{x}.weight"].ndim == 2 and "emb" not in x} - {
        *experts
    }


@pytest.mark.long
def test_groups_name_experts_by_an_expression_and_float_experts_are_ignored(tmp_path):
    target.write(get_mixture("Qwen2Moe", {DENSE: W8, EXPERTS: W4}), tmp_path / "both")
    groups = get_settings(tmp_path / "both")["config_groups"]
    names = set(groups["group_1"]["targets"])
    assert names == {r"re:model\.layers\.0\.mlp\.experts\.\d+\..*"}
    (pattern,) = names
    assert re.match(pattern[3:], "model.layers.0.mlp.experts.3.down_proj")
    assert not re.match(pattern[3:], "model.layers.0.mlp.shared_expert.down_proj")
    target.write(get_mixture("Qwen2Moe", {DENSE: W4}), tmp_path / "dense")
    settings = get_settings(tmp_path / "dense")
    assert {*names} < {*settings["ignore"]}
    assert "model.layers.0.mlp.experts.2.up_proj.weight" in load_file(
        tmp_path / "dense" / "model.safetensors"
    )
    load_model(tmp_path / "dense")


@pytest.mark.parametrize("kind", STEMS)
@pytest.mark.sampled(1)
def test_gptq_holds_experts(kind, tmp_path):
    mg = get_mixture(kind, {DENSE: W4, EXPERTS: W4})
    info = gptq.write(mg, tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    values, (owner, parts) = get_values(mg), STEMS[kind]
    halves = values["model.layers.0.mlp.experts.gate_up_proj"].unflatten(1, (2, -1))
    downs = values["model.layers.0.mlp.experts.down_proj"]
    for number in range(4):
        matrices = (*halves[number], downs[number])
        for part, value in zip(parts.split(), matrices, strict=True):
            path = f"model.layers.0.{owner}.experts.{number}.{part}"
            found = dense(tensors, path, 4, 32)
            assert np.array_equal(found, value.double().numpy()), path
    assert len(info["formats"]) == len([x for x in tensors if x.endswith("qweight")])
    settings = get_settings(tmp_path)
    gate = f"model.layers.0.{owner}.gate"
    assert any(re.match(x.removeprefix("-:"), gate) for x in settings["dynamic"])
    check_codes(mg, tmp_path)


def test_static_scales_of_each_expert_are_written(tmp_path):
    mg = get_mixture("Mixtral", {EXPERTS: {"weight": "fp8"}})
    pattern = "fp8:granularity=channel"
    layer = next(x for path, x in mg.modules.items() if path.endswith("experts.down"))
    spec = layer.spec
    static = parse_format_string(pattern).with_scales(torch.tensor([0.5, 0.25, 2.0, 1.0]))
    layer.take_spec(spec.with_quantizers(data_in=static))
    other = next(x for path, x in mg.modules.items() if path.endswith("experts.gate_up"))
    other.take_spec(other.spec.with_quantizers(data_in=static))
    target.write(mg, tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    stem = "model.layers.0.block_sparse_moe.experts"
    scales = [float(tensors[f"{stem}.{n}.w2.input_scale"]) for n in range(4)]
    assert scales == [0.5, 0.25, 2.0, 1.0]
    assert load_model(tmp_path).model.layers[0].mlp.experts.down.spec.data_in.scales == (
        *(0.5, 0.25, 2.0, 1.0),
    )


REFUSED = {
    "two formats": (
        "Mixtral",
        {r".*gate_up": W4, r".*experts\.down": W8},
        "engines support one format",
    ),
    "one tensor": ("GptOss", {EXPERTS: W4}, "have all experts in one tensor, or experts with bia"),
    "blocks": (
        *("Mixtral", {EXPERTS: {"weight": "fp8:granularity=block:group_size=48"}}),
        "blocks of 48 rows span several experts",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.sampled(2)
def test_other_experts_are_refused_by_name(case, tmp_path):
    kind, rules, reason = REFUSED[case]
    with pytest.raises(ConfigError, match=reason):
        target.write(get_mixture(kind, rules), tmp_path)
    assert not [*tmp_path.iterdir()]


def test_targets_of_experts():
    paths = ["lm_head", "a.experts.0.w1", "a.experts.1.w3", "b.shared_experts.up_proj"]
    assert list_targets(paths) == ["lm_head", r"re:a\.experts\.\d+\..*", "b.shared_experts.up_proj"]
    assert json.loads(json.dumps(list_targets([]))) == []
