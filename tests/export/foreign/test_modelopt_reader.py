"""FP8 folders of NVIDIA's ModelOpt become packed layers with the values of their definition."""

import json
import logging

import pytest
import torch
from safetensors.torch import load_file, save_file

from chop import MaseGraph
from chop.errors import CheckpointError, ConfigError
from chop.models import load_model
from chop.nn.packed import PackedLinear
from tests.export.decoders import decoder, logits, tokens
from tests.export.tools import change_config, change_tensors, linear_layers

E4M3 = torch.float8_e4m3fn
UP = "model.layers.0.mlp.up_proj"
SETTINGS = {"quant_algo": "FP8", "kv_cache_quant_algo": None, "exclude_modules": ["lm_head"]}


def by_hand(folder, settings=SETTINGS, in_config=False, inputs=True, cache=False):
    """A folder as ModelOpt writes it, and the model that it stands for."""
    model = decoder("Llama")
    model.save_pretrained(folder)
    tensors = load_file(folder / "model.safetensors")
    for number, (path, layer) in enumerate(linear_layers(model).items()):
        scale = layer.weight.detach().abs().max() / 448
        codes = (layer.weight.detach() / scale).to(E4M3)
        steps = torch.tensor(0.004 + 0.001 * number)
        tensors |= {f"{path}.weight": codes, f"{path}.weight_scale": scale}
        layer.weight.data = codes.float() * scale
        if inputs:
            tensors[f"{path}.input_scale"] = steps
            layer.register_forward_pre_hook(lambda _, x, s=steps: (rounded(x[0], s),))
        if cache and path.endswith(("k_proj", "v_proj")):
            tensors[f"{path}.{path[-6]}_scale"] = torch.ones(())
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    if in_config:
        change_config(folder, quantization_config={"quant_method": "modelopt", **settings})
    else:
        producer = {"name": "modelopt", "version": "0.19.0"}
        document = {"producer": producer, "quantization": settings}
        (folder / "hf_quant_config.json").write_text(json.dumps(document))
    return model


def rounded(x, scale):
    return (x / scale).clamp(-448, 448).to(E4M3).float() * scale


@pytest.mark.parametrize("in_config", [False, True])
@pytest.mark.parametrize("inputs", [False, True])
def test_weights_are_codes_times_their_scale(in_config, inputs, tmp_path):
    expected = by_hand(tmp_path, in_config=in_config, inputs=inputs)
    model = load_model(tmp_path)
    found = {x: y for x, y in model.named_modules() if isinstance(y, PackedLinear)}
    assert found.keys() == linear_layers(expected).keys()
    for path, layer in linear_layers(expected).items():
        assert torch.equal(found[path].weight, layer.weight), path
        assert found[path].spec.data_in.is_identity is not inputs
    torch.testing.assert_close(
        logits(model, tokens()), logits(expected, tokens()), rtol=1e-4, atol=1e-5
    )


def test_graphs_of_them_are_written_and_read(tmp_path):
    expected = by_hand(tmp_path)
    MaseGraph(load_model(tmp_path)).save_pretrained(tmp_path / "again")
    again = load_model(tmp_path / "again")
    torch.testing.assert_close(
        logits(again, tokens()), logits(expected, tokens()), rtol=1e-4, atol=1e-5
    )
    classifier = load_model(tmp_path, num_labels=2)
    assert torch.equal(classifier.get_submodule(UP).weight, expected.get_submodule(UP).weight)


def test_scales_of_a_cache_are_told(tmp_path, caplog):
    expected = by_hand(tmp_path, {**SETTINGS, "kv_cache_quant_algo": "FP8"}, cache=True)
    with caplog.at_level(logging.WARNING):
        model = load_model(tmp_path)
    assert "the key-value cache stays in float" in caplog.text
    assert torch.equal(model.get_submodule(UP).weight, expected.get_submodule(UP).weight)


@pytest.mark.parametrize("algorithm", ["NVFP4", "W4A8_AWQ", "FP8_PB_WO", None])
@pytest.mark.sampled(2)
def test_other_algorithms_are_refused_by_name(algorithm, tmp_path):
    by_hand(tmp_path, {**SETTINGS, "quant_algo": algorithm})
    with pytest.raises(
        ConfigError, match=f"expected quant_algo 'FP8' of modelopt, got .?{algorithm}"
    ):
        load_model(tmp_path)


def test_broken_folders_are_one_sentence(tmp_path):
    by_hand(tmp_path)
    change_tensors(tmp_path, lambda x: x.pop(f"{UP}.weight_scale"))
    with pytest.raises((CheckpointError, ConfigError), match="up_proj"):
        load_model(tmp_path)
    change_tensors(tmp_path, lambda x: x.update({f"{UP}.weight_scale": torch.ones(3)}))
    with pytest.raises(CheckpointError, match="up_proj' does not fit"):
        load_model(tmp_path)
    scales = {f"{UP}.{name}": torch.tensor(0.01) for name in ("weight_scale", "k_scale")}
    change_tensors(tmp_path, lambda x: x.update(scales))
    with pytest.raises(ConfigError, match="tensor 'model.layers.0.mlp.up_proj.k_scale'"):
        load_model(tmp_path)
