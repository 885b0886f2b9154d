"""ModelOpt folders: tensors by their definition, ModelOpt's own decoding, and what chop reads back.

`CHOP_MODELOPT` names the Python of an environment that has nvidia-modelopt.
"""

import json
import os
import subprocess

import pytest
import torch
from safetensors.torch import load_file

from chop import MaseGraph, passes
from chop.errors import CheckpointError, ConfigError
from chop.export.joined_layers import joined_layers
from chop.export.modelopt import TARGET
from chop.formats import NVFP4, parse_format_string
from chop.models import load_model
from chop.nn.packed import PackedLinear
from tests.export.decoders import captured, decoder, logits, rounded, tokens
from tests.export.tools import change_tensors, get_settings

PYTHON = os.environ.get("CHOP_MODELOPT", "")
E4M3 = torch.float8_e4m3fn
STEPS = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=torch.float64)
Q, UP = "model.layers.0.self_attn.q_proj", "model.layers.0.mlp.up_proj"
BATCHES = [{"input_ids": tokens(), "attention_mask": torch.ones(2, 9, dtype=torch.long)}]
LAYERS = r"model\.layers\..*_proj"
NV4 = {"weight": "nvfp4"}
RECIPES = {
    "W4A16_NVFP4": {LAYERS: NV4},
    "NVFP4": {LAYERS: NV4 | {"data_in": "nvfp4"}},
    "FP8": {LAYERS: {"weight": "fp8", "data_in": "fp8"}},
    "FP8_PER_CHANNEL_PER_TOKEN": {
        LAYERS: {"weight": "fp8:granularity=channel", "data_in": "fp8:granularity=row"}
    },
    "MIXED_PRECISION": {
        r".*mlp\..*_proj": NV4,
        r".*self_attn\..*_proj": {"weight": "fp8", "data_in": "fp8"},
    },
}
CLIENT = """
import importlib.util, json, sys, torch
from pathlib import Path
from safetensors.torch import load_file, save_file
from modelopt.torch.export.convert_hf_config import convert_hf_quant_config_format
from modelopt.torch.quantization.qtensor import FP8QTensor, NVFP4QTensor

folder = Path(sys.argv[1])
config = convert_hf_quant_config_format(json.loads((folder / "hf_quant_config.json").read_text()))
(folder / "converted.json").write_text(json.dumps(config))
tensors, values = load_file(folder / "model.safetensors"), {}
for name in [x.removesuffix(".weight_scale") for x in tensors if x.endswith(".weight_scale")]:
    codes, scale = tensors[f"{name}.weight"], tensors[f"{name}.weight_scale"]
    if codes.dtype == torch.uint8:
        shape = torch.Size([codes.size(0), 2 * codes.size(1)])
        second = tensors[f"{name}.weight_scale_2"]
        given = {"scale": scale, "double_scale": second, "block_sizes": {-1: 16}}
        values[name] = NVFP4QTensor(shape, torch.float32, codes).dequantize(torch.float32, **given)
    else:
        scale = scale[:, None] if scale.ndim else scale
        one = FP8QTensor(codes.shape, torch.float32, codes)
        values[name] = one.dequantize(torch.float32, scale=scale)
save_file({name: x.contiguous() for name, x in values.items()}, folder / "values.safetensors")
"""


def exported(recipe, folder, shares=True, model=None):
    """Packed graph of a decoder, calibrated, and what was written of it."""
    rules = {
        path: {"config": {name: parse_format_string(text) for name, text in formats.items()}}
        for path, formats in recipe.items()
    }
    mg = captured("Llama") if model is None else MaseGraph(model)
    mg, _ = passes.quantize_transform_pass(mg, {"by": "regex_name", **rules})
    mg, _ = passes.calibrate_transform_pass(mg, {"batches": BATCHES, "static_scales": True})
    if shares:
        mg, _ = passes.share_scales_transform_pass(mg)
    mg, _ = passes.pack_transform_pass(mg, {"silent": True})
    return mg, TARGET.write(mg, folder, None)


def packed_linear(model):
    return {path: x for path, x in model.named_modules() if isinstance(x, PackedLinear)}


def by_definition(tensors, path):
    """float64: codes times scales, without the code of chop."""
    codes, scale = (tensors[f"{path}.{end}"] for end in ("weight", "weight_scale"))
    if codes.dtype == E4M3:
        return codes.double() * (scale.double()[:, None] if scale.ndim else scale.double())
    table = torch.cat([STEPS, -STEPS])
    values = table[torch.stack([codes & 15, codes >> 4], -1).long()].flatten(1)
    return values * scale.double().repeat_interleave(16, 1) * tensors[f"{path}.weight_scale_2"]


@pytest.mark.parametrize("algorithm", RECIPES)
@pytest.mark.sampled(1)
def test_folders_hold_every_value(algorithm, tmp_path):
    mg, info = exported(RECIPES[algorithm], tmp_path)
    assert info["notes"] == []
    tensors, expected = load_file(tmp_path / "model.safetensors"), packed_linear(mg.model)
    settings = get_settings(tmp_path)
    beside = json.loads((tmp_path / "hf_quant_config.json").read_text())
    assert settings["quant_algo"] == beside["quantization"]["quant_algo"] == algorithm
    assert settings["ignore"] == ["lm_head"] == beside["quantization"]["exclude_modules"]
    assert len(expected) == 7
    for path, layer in expected.items():
        assert torch.equal(by_definition(tensors, path).float(), layer.weight), path
    model = load_model(tmp_path)
    for path, layer in packed_linear(model).items():
        own = expected[path]
        assert torch.equal(layer.weight_codes, own.weight_codes), path
        x = torch.randn(9, layer.in_features, generator=torch.Generator().manual_seed(0))
        assert torch.equal(layer.quantize("data_in", x), own.quantize("data_in", x)), path
    torch.testing.assert_close(
        logits(model, tokens()), logits(rounded(mg), tokens()), rtol=1e-4, atol=1e-5
    )
    for group in joined_layers(expected):
        for end in ("weight_scale_2", "input_scale"):
            assert (
                len({tensors.get(f"{path}.{end}", torch.zeros(())).item() for path in group}) == 1
            )


@pytest.mark.long
def test_blocks_of_128_have_four_axes(tmp_path):
    import transformers

    torch.manual_seed(0)
    sizes = {"vocab_size": 96, "hidden_size": 128, "intermediate_size": 256}
    heads = {"num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2}
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, **heads)).eval()
    mg, info = exported({LAYERS: {"weight": "fp8:granularity=block"}}, tmp_path, model=model)
    assert info["notes"] == ["vLLM also rounds the inputs of FP8_PB_WO to fp8"]
    scale = load_file(tmp_path / "model.safetensors")[f"{UP}.weight_scale"]
    assert scale.shape == (2, 1, 1, 1) and get_settings(tmp_path)["quant_algo"] == "FP8_PB_WO"
    read = packed_linear(load_model(tmp_path))
    for path, layer in packed_linear(mg.model).items():
        assert torch.equal(read[path].weight, layer.weight)


def test_joined_layers_with_other_scales_are_refused_in_nvfp4(tmp_path):
    with pytest.raises(
        ConfigError, match=r"q_proj: engines use the largest weight_scale_2 for"
    ) as e:
        exported(RECIPES["W4A16_NVFP4"], tmp_path, shares=False)
    assert "share_scales_transform_pass" in str(e.value) and "down_proj" not in str(e.value)
    assert not [*tmp_path.iterdir()]


def test_joined_layers_with_other_scales_are_noted_in_fp8(tmp_path):
    _, info = exported(RECIPES["FP8"], tmp_path, shares=False)
    (note,) = info["notes"]
    assert note.startswith("engines join layers with different scales and round them again")


def test_shared_scales_fit_the_largest_of_the_joined_weights():
    model = decoder("Llama")
    attention = model.model.layers[0].self_attn
    joined = torch.cat([getattr(attention, f"{x}_proj").weight.detach().flatten() for x in "qkv"])
    rules = {"config": {"weight": parse_format_string("nvfp4")}}
    mg, _ = passes.quantize_transform_pass(MaseGraph(model), {"by": "type", "linear": rules})
    shared, info = passes.share_scales_transform_pass(mg)
    assert info == {"shared": 5}
    found = {path: x.spec.weight for path, x in shared.model.named_modules() if hasattr(x, "spec")}
    expected = float((joined.abs().max().double() / 2688).float())
    for name in "qkv":
        assert found[f"model.layers.0.self_attn.{name}_proj"] == NVFP4(tensor_scale=expected)
    assert found["model.layers.0.mlp.down_proj"] == NVFP4() == mg.model.lm_head.spec.weight


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("formats", "reason"),
    [
        ({"weight": "fp8"}, "no layout for its elements and scales with float inputs"),
        ({"weight": "mxint:width=8"}, "no layout for its elements and scales with float inputs"),
        (NV4 | {"data_in": "fp8:granularity=row"}, r"with inputs in fp8\(granularity=row\)"),
        (
            {
                "weight": "fp8:granularity=channel",
                "data_in": "scale_integer:width=8:granularity=row",
            },
            "no layout for its weight with inputs in scale_integer",
        ),
    ],
)
def test_other_layers_are_refused_by_name(formats, reason, tmp_path):
    with pytest.raises(ConfigError, match=rf"q_proj: .*{reason}"):
        exported({LAYERS: formats}, tmp_path)
    assert not [*tmp_path.iterdir()]


def test_inputs_need_a_static_scale():
    rules = {"config": {name: parse_format_string("nvfp4") for name in ("weight", "data_in")}}
    mg = captured("Llama")
    mg, _ = passes.quantize_transform_pass(mg, {"by": "name", UP: rules})
    reasons = TARGET.refusals(passes.pack_transform_pass(mg, {"silent": True})[0])
    assert reasons == {UP: "it rounds its inputs to nvfp4: expected nvfp4 with a tensor_scale"}


def test_a_damaged_folder_is_one_sentence(tmp_path):
    exported(RECIPES["W4A16_NVFP4"], tmp_path)
    change_tensors(tmp_path, lambda x: x.pop(f"{UP}.weight_scale_2"))
    with pytest.raises(CheckpointError, match="up_proj' does not fit W4A16_NVFP4"):
        TARGET.read(tmp_path)


@pytest.mark.long
@pytest.mark.skipif(not PYTHON, reason="CHOP_MODELOPT names no Python with nvidia-modelopt")
@pytest.mark.parametrize("algorithm", RECIPES)
def test_modelopt_decodes_the_same_values(algorithm, tmp_path):
    """And makes the same settings of `hf_quant_config.json`."""
    mg, _ = exported(RECIPES[algorithm], tmp_path)
    given = [PYTHON, "-c", CLIENT, str(tmp_path)]
    done = subprocess.run(given, capture_output=True, text=True, timeout=600, check=False)
    assert not done.returncode, done.stderr[-3000:]
    assert json.loads((tmp_path / "converted.json").read_text()) == get_settings(tmp_path)
    values = load_file(tmp_path / "values.safetensors")
    layers = packed_linear(mg.model)
    assert values.keys() == layers.keys()
    for path, layer in layers.items():
        # ModelOpt rounds the product of block scale and tensor scale to float32, and the result.
        rtol = 2e-7 if isinstance(layer.spec.weight, NVFP4) else 0
        torch.testing.assert_close(values[path], layer.weight.detach(), rtol=rtol, atol=0)
