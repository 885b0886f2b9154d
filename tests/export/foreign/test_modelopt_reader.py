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
from tests.export.tools import change_config, change_tensors, linear_layers, write_folder

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


@pytest.mark.sampled(2)
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


@pytest.mark.long
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


@pytest.mark.parametrize("algorithm", ["W8A8_SQ_PER_CHANNEL", "MXFP4", None])
def test_other_algorithms_are_refused_by_name(algorithm, tmp_path):
    by_hand(tmp_path, {**SETTINGS, "quant_algo": algorithm})
    with pytest.raises(ConfigError, match=f"quant_algo of modelopt among .*, got .?{algorithm}"):
        load_model(tmp_path)


def fp8_parts(strategy):
    def get_parts(draw, inputs, outputs):
        codes = torch.from_numpy(draw.normal(0, 50, (outputs, inputs))).to(E4M3)
        shape = {"channel": (outputs,), "block": (1, 1, 1, 1)}[strategy]
        scale = torch.from_numpy(draw.random(shape, "float32")) * 0.001 + 1e-4
        factor = scale[:, None] if strategy == "channel" else scale.view(1, 1)
        return {"weight": codes, "weight_scale": scale}, (codes.float() * factor).T

    return get_parts


def int8_parts(draw, inputs, outputs):
    codes = torch.from_numpy(draw.integers(-128, 128, (outputs, inputs), "int8"))
    scale = torch.from_numpy(draw.random(outputs, "float32")) * 0.001
    return {"weight": codes, "weight_scale": scale}, (codes.float() * scale[:, None]).T


def nvfp4_parts(input_scale=None, smoothing=False):
    def get_parts(draw, inputs, outputs):
        packed = torch.from_numpy(draw.integers(0, 256, (outputs, inputs // 2), "uint8"))
        scale = torch.from_numpy(draw.random((outputs, inputs // 16), "float32") * 100).to(E4M3)
        second = torch.tensor(draw.random() * 1e-4 + 1e-5)
        steps = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
        table = torch.cat([steps, -steps])
        values = table[torch.stack([packed & 15, packed >> 4], -1).int()].view(outputs, inputs)
        # The product of both scales is exact in float64, and rounded with the element.
        dense = values.double() * scale.double().repeat_interleave(16, 1) * second.double()
        parts = {"weight": packed, "weight_scale": scale, "weight_scale_2": second.float()}
        return with_others(parts, dense.float(), input_scale, smoothing, draw)

    return get_parts


def awq_parts(input_scale=None, smoothing=False, second=False):
    def get_parts(draw, inputs, outputs):
        codes = torch.from_numpy(draw.integers(-8, 8, (outputs, inputs), "int8"))
        packed = ((codes[0::2] & 15) | (codes[1::2] << 4)).view(torch.uint8)
        scale = torch.from_numpy(draw.random((outputs, inputs // 16), "float32")) * 0.01
        parts = {"weight": packed, "weight_scale": scale}
        if second:
            parts["weight_scale_2"] = torch.tensor(0.01)
        dense = codes.float() * scale.repeat_interleave(16, 1)
        return with_others(parts, dense, input_scale, smoothing, draw)

    return get_parts


def with_others(parts, dense, input_scale, smoothing, draw):
    if input_scale is not None:
        parts["input_scale"] = torch.tensor(input_scale)
    if smoothing:
        parts["pre_quant_scale"] = torch.from_numpy(draw.random(dense.shape[1], "float32")) + 0.5
        dense = dense * parts["pre_quant_scale"]
    return parts, dense.T


CASES = {
    "FP8_PER_CHANNEL_PER_TOKEN": (fp8_parts("channel"), "fp8", "fp8(granularity=row)"),
    "FP8_PB_WO": (fp8_parts("block"), "fp8", None),
    "fp8_pb_wo": (fp8_parts("block"), "fp8", None),
    "W8A16": (int8_parts, "scale_integer", None),
    "NVFP4": (nvfp4_parts(0.01), "nvfp4", "nvfp4(tensor_scale=0.009999999776482582)"),
    "W4A16_NVFP4": (nvfp4_parts(), "nvfp4", None),
    "NVFP4_AWQ": (nvfp4_parts(0.01), "nvfp4", None),
    "W4A8_NVFP4_FP8": (nvfp4_parts(0.01), "nvfp4", "fp8(scales=(0.009999999776482582,))"),
    "W4A16_AWQ": (awq_parts(), "scale_integer", None),
    "W4A8_AWQ": (awq_parts(0.01, second=True), "scale_integer", "fp8(scales="),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("algorithm", CASES)
def test_every_algorithm_keeps_its_values(algorithm, tmp_path, caplog):
    parts, name, inputs = CASES[algorithm]
    settings = {"quant_method": "modelopt", "quant_algo": algorithm, "group_size": 16}
    values = write_folder(tmp_path, settings, parts)
    with caplog.at_level(logging.WARNING):
        model = load_model(tmp_path)
    found = {x: y for x, y in model.named_modules() if isinstance(y, PackedLinear)}
    assert found.keys() == values.keys()
    for path, layer in found.items():
        assert layer.spec.weight.name == name
        assert torch.equal(layer.weight, values[path]), path
        assert layer.spec.data_in.label.startswith(inputs or "float")
    assert ("engines also round the following" in caplog.text) == (
        algorithm in ("NVFP4_AWQ", "W4A8_AWQ")
    )
    assert logits(model, tokens()).isfinite().all()


def test_inputs_of_nvfp4_are_rounded_with_the_stored_scale(tmp_path):
    """By the definition: e4m3 scales of blocks, relative to `input_scale`, and steps of e2m1."""
    write_folder(tmp_path, {"quant_method": "modelopt", "quant_algo": "NVFP4"}, nvfp4_parts(0.01))
    layer = load_model(tmp_path).get_submodule(UP)
    x = torch.randn(3, 64, generator=torch.Generator().manual_seed(2))
    x[0] *= 100  # whose scales saturate
    blocks, shared = x.double().view(3, 4, 16), torch.tensor(0.01).double()
    wanted = blocks.abs().amax(-1, keepdim=True) / 6 / shared
    scale = wanted.clamp(max=448).float().to(E4M3).double() * shared
    steps = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=torch.float64)
    apart = ((blocks / scale).abs().clamp(max=6).unsqueeze(-1) - steps).abs()
    expected = (steps[apart.argmin(-1)] * blocks.sign() * scale).view_as(x)
    assert torch.equal(layer.quantize("data_in", x), expected.float())
    change_tensors(tmp_path, lambda x: x.update({f"{UP}.input_scale": torch.tensor(-1.0)}))
    with pytest.raises(CheckpointError, match=r"up_proj' does not fit NVFP4: input_scale"):
        load_model(tmp_path)


@pytest.mark.parametrize("parts", [nvfp4_parts(smoothing=True), awq_parts(0.01, smoothing=True)])
def test_layers_with_factors_of_inputs_become_floats(parts, tmp_path, caplog):
    algorithm = "NVFP4_AWQ" if parts.__qualname__.startswith("nvfp4") else "W4A8_AWQ"
    settings = {"quant_method": "modelopt", "quant_algo": algorithm}
    values = write_folder(tmp_path, settings, parts)
    with caplog.at_level(logging.WARNING):
        model = load_model(tmp_path)
    assert "scale their inputs (pre_quant_scale) become float layers" in caplog.text
    for path, value in values.items():
        assert torch.equal(model.get_submodule(path).weight, value)


def test_algorithms_that_differ_by_layer(tmp_path):
    kinds = [("FP8_PER_CHANNEL_PER_TOKEN", fp8_parts("channel")), ("W4A16_AWQ", awq_parts())]
    order = iter([kinds[at % 2] for at in range(100)])
    layers, turns = {}, []

    def get_parts(draw, inputs, outputs):
        turns.append(next(order))
        return turns[-1][1](draw, inputs, outputs)

    settings = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"}
    values = write_folder(tmp_path, settings, get_parts)
    layers = {path: {"quant_algo": turn[0]} for path, turn in zip(values, turns, strict=True)}
    document = {"quantization": {"quant_algo": "MIXED_PRECISION", "quantized_layers": layers}}
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(document))
    model = load_model(tmp_path)
    for path, value in values.items():
        assert torch.equal(model.get_submodule(path).weight, value)
    layers.pop(UP)
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(document))
    with pytest.raises(ConfigError, match="got 'MIXED_PRECISION' for .*up_proj"):
        load_model(tmp_path)


@pytest.mark.parametrize(("algorithm", "strategy"), [("FP8_PB_WO", "block"), ("W8A16", "channel")])
def test_scales_with_axes_of_other_layouts_are_one_sentence(algorithm, strategy, tmp_path):
    settings = {"quant_method": "modelopt", "quant_algo": algorithm}
    write_folder(tmp_path, settings, int8_parts if algorithm == "W8A16" else fp8_parts(strategy))
    broken = {f"{UP}.weight_scale": torch.ones(1, 1, 1, 96)}
    change_tensors(tmp_path, lambda x: x.update(broken))
    with pytest.raises(CheckpointError, match=f"{UP}.*does not fit"):
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
