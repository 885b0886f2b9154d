"""Mixtures whose experts other tools stored one by one, against floats that transformers joins."""

import copy
import re

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from chop.errors import CheckpointError, ConfigError
from chop.models import load_model
from tests.experts import mixture, text
from tests.export.tools import (
    awq_parts,
    awq_settings,
    bits_in_words,
    change_config,
    change_tensors,
    floats,
    gptq_parts,
    gptq_settings,
    groups,
    integers,
    packed,
)

CODED = re.compile(
    r"(self_attn\.(?!\w+norm)\w+|experts\.\d+\.\w+|shared_experts?\.\w+_proj)\.weight$"
)
EXPERTS = "model.layers.0.mlp.experts"
SIZES = {"hidden_size": 32, "intermediate_size": 64, "moe_intermediate_size": 64}
NAMES = {"Mixtral": "w1 w3 w2", "Qwen2Moe": "gate_proj up_proj down_proj"}
CHANNEL = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"}
FLOATS = {**CHANNEL, "type": "float"}
TOKENS = {**FLOATS, "strategy": "token", "dynamic": True}


def small_floats(global_scale=lambda: 2.0):
    """Codes of e2m1, two in a byte, with scales in e4m3 and one for all."""
    values = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6]).double()

    def get_parts(draw, inputs, outputs):
        codes = torch.from_numpy(draw.integers(0, 16, (outputs, inputs)))
        low, high = codes[:, ::2], codes[:, 1::2]
        scale = torch.from_numpy(draw.random((outputs, inputs // 16)) + 0.1)
        scale, of_all = scale.to(torch.float8_e4m3fn), torch.tensor([global_scale()])
        parts = {"weight_packed": (low | high << 4).to(torch.uint8), "weight_scale": scale}
        numbers = values[codes & 7] * (1 - 2 * (codes >> 3))
        whole = scale.double().repeat_interleave(16, 1) / of_all
        return parts | {"weight_global_scale": of_all}, (numbers * whole).T

    return get_parts


NV4 = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}
BLOCKS = {**FLOATS, "strategy": "block", "block_structure": [16, 16]}
SCHEMES = {
    "W4A16": (integers(), packed()),
    "float16 scales": (integers(scale_dtype=torch.float16), packed()),
    "3 bits": (integers(3), packed(3)),
    "zero points": (integers(symmetric=False), packed(symmetric=False)),
    "zero points, float32": (
        integers(symmetric=False, scale_dtype=torch.float32),
        packed(symmetric=False),
    ),
    "FP8 by channel": (floats(), groups("float-quantized", FLOATS, TOKENS)),
    "FP8 by tensor": (
        floats("tensor"),
        groups("float-quantized", {**FLOATS, "strategy": "tensor"}),
    ),
    "FP8 by block": (floats("block"), groups("float-quantized", BLOCKS)),
    "NVFP4": (small_floats(), groups("nvfp4-pack-quantized", NV4)),
    "GPTQ": (gptq_parts(4, 16), gptq_settings(4, 16)),
    "GPTQ, zero points": (gptq_parts(4, 16, symmetric=False), gptq_settings(4, 16)),
    "AWQ": (awq_parts(16), awq_settings(16)),
}


def write(folder, scheme, kind="Mixtral", coded=CODED, **settings):
    """A mixture whose linear layers are coded; a folder of the floats that they stand for."""
    get_parts, quantization = SCHEMES[scheme] if isinstance(scheme, str) else scheme
    model = mixture(kind, **{**SIZES, **settings})
    model.save_pretrained(folder)
    model.save_pretrained(floats_of := folder / "floats")
    tensors, draw = load_file(folder / "model.safetensors"), np.random.default_rng(0)
    plain = dict(tensors)
    for name in [x for x in tensors if coded.search(x)]:
        outputs, inputs = tensors.pop(name).shape
        parts, dense = get_parts(draw, inputs, outputs)
        for end, x in parts.items():
            x = torch.from_numpy(x) if isinstance(x, np.ndarray) else x
            tensors[name.removesuffix("weight") + end] = x.contiguous()
        plain[name] = torch.as_tensor(dense).T.float().contiguous()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    save_file(plain, floats_of / "model.safetensors", metadata={"format": "pt"})
    change_config(folder, quantization_config=quantization)
    return floats_of


@torch.no_grad()
def check(model, floats_of, rounds_inputs=False):
    """Every weight is that of the floats, and logits are."""
    reference = load_model(floats_of)
    own = reference.state_dict()
    for path, layer in model.named_modules():
        if hasattr(layer, "packed_shapes"):
            parent, _, last = path.rpartition(".")
            name = f"{path}.weight" if f"{path}.weight" in own else f"{parent}.{last}_proj"
            torch.testing.assert_close(
                layer.weight.detach().as_subclass(torch.Tensor),
                own[name].reshape(layer.weight.shape),
                rtol=2e-7,  # of float32: the references multiply in float64
                atol=0,
                msg=lambda text, name=name: f"{name}: {text}",
            )
    if not rounds_inputs:
        found, expected = (x(input_ids=text()).logits for x in (model, reference))
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3 * expected.abs().max())


@pytest.mark.sampled(2)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_experts_have_the_values_of_the_folder(scheme, tmp_path):
    floats_of = write(tmp_path, scheme)
    model = load_model(tmp_path)
    experts = model.get_submodule(EXPERTS)
    assert [type(x).__name__ for x in (experts.gate_up, experts.down)] == ["PackedExpertLinear"] * 2
    check(model, floats_of, scheme == "FP8 by channel")


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", ["Olmoe", "Qwen2Moe", "Qwen3Moe", "DeepseekV3"])
def test_other_mixtures_are_read(kind, tmp_path):
    floats_of = write(tmp_path, "W4A16", kind)
    check(load_model(tmp_path), floats_of)
    body = load_model(tmp_path, task="feature-extraction")
    assert body.layers[0].mlp.experts.gate_up.spec.weight.name == "group_integer"


def test_the_dtype_and_inputs_of_the_folder_are_kept(tmp_path):
    write(tmp_path, "FP8 by channel")
    layer = load_model(tmp_path).get_submodule(EXPERTS).down
    assert layer.spec.weight.label == "fp8(granularity=channel)"
    assert layer.spec.data_in.label == "fp8(granularity=row)"


def test_what_was_read_is_copied_and_saved(tmp_path):
    write(tmp_path, "GPTQ", "Qwen3Moe")
    model = load_model(tmp_path)
    with torch.no_grad():
        expected = model(input_ids=text()).logits
        assert torch.equal(copy.deepcopy(model)(input_ids=text()).logits, expected)
    model.save_pretrained(tmp_path / "again")
    with torch.no_grad():
        assert torch.equal(load_model(tmp_path / "again")(input_ids=text()).logits, expected)


def test_experts_whose_formats_differ_have_that_of_all(tmp_path):
    """Scales of some are bfloat16 numbers; the zero points of some leave no bit out."""

    def get_parts(draw, inputs, outputs):
        number = int(draw.integers(0, 3))
        dtype = torch.float32 if number == 1 else torch.bfloat16
        parts, dense = integers(scale_dtype=dtype, symmetric=number != 2)(draw, inputs, outputs)
        eight = torch.full((outputs, inputs // 16), 8)
        words = torch.from_numpy(np.ascontiguousarray(bits_in_words(eight.T, 4).T))
        return {"weight_zero_point": words, **parts}, dense

    floats_of = write(tmp_path, (get_parts, packed(symmetric=False)))
    model = load_model(tmp_path)
    weight = model.get_submodule(EXPERTS).gate_up.spec.weight
    assert weight.label == "scale_integer(width=5, granularity=group, group_size=16)"
    check(model, floats_of)


def test_a_layer_whose_experts_are_floats_stays_float(tmp_path):
    others = re.compile(CODED.pattern.replace(r"experts\.\d+", r"layers\.1\.\w+\.experts\.\d+"))
    floats_of = write(tmp_path, "W4A16", coded=others, num_hidden_layers=2)
    model = load_model(tmp_path)
    assert model.model.layers[0].mlp.experts.gate_up_proj.dim() == 3
    assert model.model.layers[1].mlp.experts.down.spec.weight.name == "group_integer"
    check(model, floats_of)


def get_name(kind, expert, part):
    module = "block_sparse_moe" if kind == "Mixtral" else "mlp"
    return f"model.layers.0.{module}.experts.{expert}.{NAMES[kind].split()[part]}"


def without(text):
    return lambda tensors: [tensors.pop(name) for name in [*tensors] if text in name]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", NAMES)
@pytest.mark.parametrize("part", [0, 1, 2])
def test_an_expert_that_is_missing_is_named(kind, part, tmp_path):
    write(tmp_path, "W4A16", kind)
    gone = get_name(kind, 2, part)
    change_tensors(tmp_path, without(f"{gone}."))
    with pytest.raises(CheckpointError, match=rf"none of '{re.escape(gone)}'"):
        load_model(tmp_path)


def laid_out_again(name, *sizes):
    """As many codes and scales in rows of another length."""
    parts, _ = integers()(np.random.default_rng(1), *sizes)
    return lambda tensors: tensors.update({f"{name}.{end}": x for end, x in parts.items()})


def nothing(tensors):
    """Leaves them as they are."""


DOWN, KEYS = get_name("Qwen2Moe", 1, 2), "model.layers.0.self_attn.k_proj"
# what is written: (kind, settings, change of tensors, change of config.json, error, what it says)
UNFIT = {
    "no expert has a matrix": (
        *("Mixtral", {}, without(".w3."), {}),
        *(CheckpointError, "but none of matrix 2 of it"),
    ),
    "experts beyond": (
        *("Mixtral", {}, nothing, {"num_local_experts": 3}),
        *((CheckpointError, ConfigError), "has only 3 experts"),
    ),
    "floats beside codes": (
        *("Mixtral", {"coded": re.compile(r"experts\.\d+\.w[13]\.weight$")}, nothing, {}),
        *(ConfigError, rf"floats of '{EXPERTS}.down'; all matrices"),
    ),
    "an expert of another shape": (
        *("Qwen2Moe", {}, laid_out_again(DOWN, 32, 64), {}),
        *(CheckpointError, r"experts\.1\.down_proj' has codes of the shape"),
    ),
    "a layer of another shape": (
        *("Mixtral", {"num_key_value_heads": 2}, laid_out_again(KEYS, 16, 32), {}),
        *(CheckpointError, rf"'{KEYS}.weight' has the shape \[32, 16\], config.json has"),
    ),
    "layers beyond": (
        *("Mixtral", {"num_hidden_layers": 2}, nothing, {"num_hidden_layers": 1}),
        *(ConfigError, r"has no module 'model\.layers\.1\."),
    ),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("case", UNFIT)
def test_what_does_not_fit_is_refused_by_name(case, tmp_path):
    kind, settings, change, config, error, match = UNFIT[case]
    write(tmp_path, "W4A16", kind, **settings)
    change_tensors(tmp_path, change)
    change_config(tmp_path, **config)
    with pytest.raises(error, match=match):
        load_model(tmp_path)


def test_a_bias_that_an_expert_has_no_place_for_is_refused(tmp_path):
    write(tmp_path, "W4A16")
    bias = f"{get_name('Mixtral', 1, 2)}.bias"
    change_tensors(tmp_path, lambda tensors: tensors.update({bias: torch.zeros(32)}))
    load_model(tmp_path)  # tools write such zeros
    change_tensors(tmp_path, lambda tensors: tensors.update({bias: torch.ones(32)}))
    with pytest.raises(CheckpointError, match=r"experts\.1\.w2\.bias', for which .* has no place"):
        load_model(tmp_path)


def test_routers_and_experts_without_a_rule_are_refused_by_name(tmp_path):
    write(tmp_path / "router", "W4A16", coded=re.compile(r"(experts\.\d+\.w.|moe\.gate)\.weight$"))
    with pytest.raises(ConfigError, match=r"'model\.layers\.0\.mlp\.gate' is a MixtralTopKRouter"):
        load_model(tmp_path / "router")
    folder = tmp_path / "gpt-oss"
    write(folder, "W4A16", "GptOss", coded=re.compile(r"self_attn\.\w_proj\.weight$"))
    parts, _ = integers()(np.random.default_rng(0), 32, 64)
    stem = f"{EXPERTS}.0.gate_proj"
    change_tensors(
        folder, lambda tensors: tensors.update({f"{stem}.{x}": y for x, y in parts.items()})
    )
    with pytest.raises(ConfigError, match=rf"codes of '{stem}', which .*GptOssForCausalLM"):
        load_model(folder)


STATIC = {**FLOATS, "strategy": "tensor", "dynamic": False}


def test_static_scales_of_inputs_are_read_where_all_experts_have_one(tmp_path):
    scheme = floats("tensor", inputs_scale=lambda: 0.5)
    settings = groups("float-quantized", {**FLOATS, "strategy": "tensor"}, STATIC)
    write(tmp_path, (scheme, settings))
    assert load_model(tmp_path).get_submodule(EXPERTS).down.spec.data_in.scales == (0.5,)


BY_TENSOR = {**FLOATS, "strategy": "tensor"}
LOWEST = {"float-quantized": (-448, torch.float8_e4m3fn), "int-quantized": (-128, torch.int8)}
ONLY_EXPERTS = re.compile(r"experts\.\d+\.\w+\.weight$")
