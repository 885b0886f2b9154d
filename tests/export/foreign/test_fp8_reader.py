"""Folders with quant_method fp8 have the floats that codes times scales are."""

import json
import logging

import pytest
import torch
from safetensors.torch import load_file, save_file

from chop.errors import CheckpointError, ConfigError
from chop.models import load_model
from tests.experts import mixture, text
from tests.export.decoders import decoder, logits, tokens
from tests.export.tools import change_config, change_tensors, linear_layers

E4M3 = torch.float8_e4m3fn
UP = "model.layers.0.mlp.up_proj"
DEEPSEEK = {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3"}


def coded(weight, sides, draw):
    """Codes and scales for blocks of these sides, or for all, and the values."""
    codes = (torch.randn(weight.shape, generator=draw) * 100).to(E4M3)
    if sides is None:
        scale = torch.tensor(7e-4)
        return codes, scale, codes.float() * scale
    counts = [-(-size // side) for size, side in zip(weight.shape, sides, strict=True)]
    scale = torch.rand(counts, generator=draw) * 1e-3 + 1e-4
    whole = scale.repeat_interleave(sides[0], 0).repeat_interleave(sides[1], 1)
    return codes, scale, codes.float() * whole[: weight.shape[0], : weight.shape[1]]


def by_hand(folder, sides=(32, 32), name="weight_scale_inv", inputs=None, skip=(), **changes):
    """A folder, and the model that it stands for."""
    model = decoder("Llama")
    model.save_pretrained(folder)
    tensors, draw = load_file(folder / "model.safetensors"), torch.Generator().manual_seed(0)
    for path, layer in linear_layers(model).items():
        if path.endswith(skip or ("none",)):
            continue
        codes, scale, values = coded(layer.weight, sides, draw)
        tensors |= {f"{path}.weight": codes, f"{path}.{name}": scale}
        layer.weight = torch.nn.Parameter(values)
        if inputs is not None:
            tensors[f"{path}.{inputs}"] = torch.tensor(0.05)
    write(folder, tensors)
    block = {"weight_block_size": None if sides is None else [*sides]}
    change_config(folder, quantization_config={**DEEPSEEK, **block, **changes})
    return model


def write(folder, tensors):
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


KINDS = {
    "blocks": {},
    "blocks that are not whole": {"sides": (40, 40)},
    "blocks of a row": {"sides": (1, 32)},
    "one scale": {"sides": None},
    "static inputs": {
        "sides": None,
        "inputs": "activation_scale",
        "activation_scheme": "static",
    },
    "AutoFP8": {"sides": None, "name": "weight_scale", "ignored_layers": ["lm_head"]},
    "AutoFP8, static inputs": {
        "sides": None,
        "name": "weight_scale",
        "inputs": "input_scale",
        "activation_scheme": "static",
    },
    "float layers": {"skip": ("o_proj", "down_proj"), "modules_to_not_convert": ["o_proj"]},
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("kind", KINDS)
def test_weights_are_codes_times_their_scales(kind, tmp_path, caplog):
    expected = by_hand(tmp_path, **KINDS[kind])
    with caplog.at_level(logging.WARNING):
        model = load_model(tmp_path)
    for path, layer in linear_layers(expected).items():
        assert torch.equal(model.get_submodule(path).weight, layer.weight), path
    assert torch.equal(logits(model, tokens()), logits(expected, tokens()))
    assert caplog.text.count("FP8 weights are decoded to floats, and layer inputs are") == 1
    assert "without scales" not in caplog.text
    model.save_pretrained(tmp_path / "again")
    assert torch.equal(logits(load_model(tmp_path / "again"), tokens()), logits(model, tokens()))


def test_the_dtype_is_that_of_the_config(tmp_path):
    expected = by_hand(tmp_path)
    change_config(tmp_path, dtype="bfloat16")
    weight = load_model(tmp_path).get_submodule(UP).weight
    assert torch.equal(weight, expected.get_submodule(UP).weight.bfloat16())


@pytest.mark.parametrize("method", ["fp8", "gptq"])
def test_fresh_weights_of_a_coded_folder_are_saved_as_floats(method, tmp_path):
    by_hand(tmp_path, quant_method=method)
    fresh = load_model(tmp_path, pretrained=False)
    fresh.save_pretrained(tmp_path / "again")
    assert "quantization_config" not in json.loads((tmp_path / "again/config.json").read_text())
    assert torch.equal(logits(load_model(tmp_path / "again"), tokens()), logits(fresh, tokens()))


def test_experts_in_blocks_are_read(tmp_path):
    sizes = {"hidden_size": 32, "intermediate_size": 48, "moe_intermediate_size": 24}
    model = mixture("Qwen3Moe", **sizes)
    for folder in (tmp_path, tmp_path / "floats"):
        model.save_pretrained(folder)
    tensors, draw = load_file(tmp_path / "model.safetensors"), torch.Generator().manual_seed(0)
    plain = dict(tensors)
    for name in [x for x in tensors if x.endswith("_proj.weight")]:
        codes, scale, plain[name] = coded(tensors[name], (16, 16), draw)
        tensors |= {name: codes, f"{name}_scale_inv": scale}
    write(tmp_path, tensors)
    write(tmp_path / "floats", plain)
    settings = {**DEEPSEEK, "weight_block_size": [16, 16]}
    change_config(tmp_path, quantization_config=settings)
    found, expected = load_model(tmp_path), load_model(tmp_path / "floats")
    assert torch.equal(logits(found, text()), logits(expected, text()))
    del tensors["model.layers.0.mlp.experts.2.up_proj.weight_scale_inv"]
    write(tmp_path, tensors)
    with pytest.raises(CheckpointError, match=r"experts\.2\.up_proj\.weight' has codes"):
        load_model(tmp_path)


SCALE = f"{UP}.weight_scale_inv"


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda x: x.pop(SCALE), f"'{UP}.weight' has codes but no weight_scale"),
        (lambda x: x.update({SCALE: x[SCALE].T.contiguous()}), f"^'[^']*': '{UP}' does not fit"),
        (
            lambda x: x.update({f"{UP}.weight_scale": x[SCALE] * 2}),
            f"two tensors for '{UP}.weight_scale'",
        ),
        (
            lambda x: x.update({f"{UP}.input_scale": torch.tensor(0.5)}),
            f"tensor '{UP}.input_scale'",
        ),
        (
            lambda x: x.update({"model.norm.weight_scale_inv": torch.ones(1, 1)}),
            "'model.norm' does not fit",
        ),
    ],
    ids=["removed", "turned", "doubled", "inputs", "norm"],
)
def test_tensors_that_do_not_fit_are_named(change, match, tmp_path):
    by_hand(tmp_path)
    change_tensors(tmp_path, change)
    with pytest.raises((CheckpointError, ConfigError), match=match):
        load_model(tmp_path)


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"weight_block_size": [64, 64]}, "does not fit"),
        ({"weight_block_size": [16, 32]}, "expected square blocks or blocks of one row"),
        ({"weight_block_size": "128"}, "expected a weight_block_size like"),
        ({"activation_scheme": "none"}, "expected an activation_scheme of"),
        ({"expert_dtype": "fp4"}, "expected all weights in e4m3"),
        ({"fmt": "e5m2"}, "expected all weights in e4m3"),
    ],
)
def test_settings_that_do_not_fit_are_named(settings, match, tmp_path):
    by_hand(tmp_path, **settings)
    with pytest.raises((CheckpointError, ConfigError), match=match):
        load_model(tmp_path)
