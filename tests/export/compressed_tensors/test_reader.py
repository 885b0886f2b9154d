"""Folders of compressed-tensors become packed layers with the codes that they hold."""

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file
from torch import nn

import chop
from chop import MaseGraph
from chop.errors import CheckpointError, ConfigError
from chop.export.compressed_tensors.groups import find_group as group_of_path
from chop.export.compressed_tensors.groups import parse_groups
from chop.export.compressed_tensors.reader import LAYOUTS
from chop.export.foreign.readers import load
from chop.formats import Encoded, GroupInteger, ScaleInteger
from chop.models import load_model
from chop.nn.packed import PackedLinear
from tests.export.decoders import HEADS, SIZES, decoder, logits, tokens
from tests.export.tools import (
    bits_in_words,
    change_config,
    change_tensors,
    dense_logits,
    get_settings,
    integers,
    linear_layers,
    packed,
    write_folder,
)


def packed_layers(model):
    return {path: m for path, m in model.named_modules() if isinstance(m, PackedLinear)}


def by_hand(folder, bits=4, scale_dtype=torch.bfloat16, words_of=bits_in_words, **weights):
    """As llm-compressor writes it, with the values of layers by path."""
    settings = packed(bits, 16, **{"symmetric": True, "actorder": None, **weights})
    del settings["config_groups"]["group_0"]["format"]  # that of all groups
    settings |= {"format": "pack-quantized", "ignore": ["lm_head"]}
    is_symmetric = weights.get("symmetric", True)
    return write_folder(folder, settings, integers(bits, 16, scale_dtype, is_symmetric, words_of))


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("bits", "dtype"), [(4, torch.bfloat16), (8, torch.float16), (3, None)])
def test_folders_of_others_keep_every_code(bits, dtype, tmp_path):
    values = by_hand(tmp_path, bits, dtype or torch.float32)
    model = load_model(str(tmp_path))
    layers = packed_layers(model)
    assert set(layers) == set(values)
    kind = GroupInteger if dtype is torch.bfloat16 else ScaleInteger
    for path, layer in layers.items():
        assert type(layer.spec.weight) is kind
        assert torch.equal(layer.weight, values[path]), path
    expected = dense_logits(values, tokens())
    torch.testing.assert_close(logits(model, tokens()), expected, rtol=1e-4, atol=1e-5)
    if dtype is torch.bfloat16:
        mask = torch.ones_like(tokens())
        found = MaseGraph(model).model(input_ids=tokens(), attention_mask=mask)["logits"]
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("bits", "dtype", "name", "width"),
    [(4, torch.bfloat16, "group_affine", 4), (3, torch.float32, "scale_integer", 4)],
)
def test_zero_points_are_kept(bits, dtype, name, width, tmp_path):
    values = by_hand(tmp_path, bits, scale_dtype=dtype, symmetric=False)
    model = load_model(tmp_path)
    layers = packed_layers(model)
    assert set(layers) == set(values)
    for path, layer in layers.items():
        assert (layer.spec.weight.name, layer.spec.weight.width) == (name, width)
        assert torch.equal(layer.weight, values[path]), path
    pytest.importorskip("compressed_tensors", reason="compressed-tensors decodes the folder")
    from compressed_tensors.compressors import PackedQuantizationCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme

    how = QuantizationArgs(num_bits=bits, symmetric=False, strategy="group", group_size=16)
    tensors, path = load_file(tmp_path / "model.safetensors"), "model.layers.0.mlp.up_proj"
    own = {x.removeprefix(f"{path}."): y for x, y in tensors.items() if x.startswith(f"{path}.")}
    scheme = QuantizationScheme(targets=["Linear"], weights=how)
    theirs = PackedQuantizationCompressor.decompress(own, scheme)["weight"]
    assert torch.equal(theirs.float(), values[path].to(dtype).float())


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"symmetric": False, "strategy": "tensor"}, "zero points in pack-quantized with stra"),
        ({"actorder": "group"}, "reordered columns .*actorder"),
        ({"num_bits": "4"}, "expected num_bits from 2 to 8, got '4'"),
        ({"num_bits": 16}, "expected num_bits from 2 to 8"),
        ({"strategy": "block"}, "strategies tensor, channel, group.* got 'block'"),
        ({"group_size": 32}, "does not fit pack-quantized in 4 bits: weight_scale is"),
        ({"num_bits": 8}, "does not fit pack-quantized in 8 bits: weight_packed is"),
    ],
)
@pytest.mark.sampled(4)
def test_other_schemes_are_refused_by_name(change, reason, tmp_path):
    by_hand(tmp_path, **change)
    with pytest.raises((ConfigError, CheckpointError), match=reason):
        load(tmp_path)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("actorder", "order"),
    [("static", None), ("weight", None), (None, "neighbors"), ("group", "neighbors"), (None, -1)],
)
def test_columns_in_their_order_are_read_whatever_they_were_rounded_in(actorder, order, tmp_path):
    values = by_hand(tmp_path, actorder=actorder)
    if order is not None:
        change_tensors(tmp_path, with_orders(lambda x: x if order == "neighbors" else x.fill_(-1)))
    for path, layer in packed_layers(load_model(tmp_path)).items():
        assert torch.equal(layer.weight, values[path]), path


@pytest.mark.parametrize("actorder", ["group", None])
def test_columns_in_another_order_are_refused(actorder, tmp_path):
    by_hand(tmp_path, actorder=actorder)
    change_tensors(tmp_path, with_orders(lambda x: x.flip(0)))
    with pytest.raises(ConfigError, match="reordered columns .*actorder 'gr"):
        load_model(tmp_path)


def with_orders(change):
    """The group of each column, of groups of 16."""

    def add(tensors):
        for name in [name for name in tensors if name.endswith("weight_shape")]:
            groups = torch.arange(int(tensors[name][1]), dtype=torch.int32) // 16
            tensors[name.replace("_shape", "_g_idx")] = change(groups).contiguous()

    return add


def whole_codes(codes, bits):
    """The reference: as many codes of a row in a word as fit, the first in its low bits."""
    each, rows = 32 // bits, []
    for row in codes.tolist():
        parts = [row[at : at + each] for at in range(0, len(row), each)]
        rows.append([sum(code << bits * i for i, code in enumerate(part)) for part in parts])
    return np.array(rows, dtype=np.uint32).view(np.int32)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("bits", "symmetric"), [(3, True), (5, False), (6, True), (7, True)])
def test_words_of_whole_codes_are_read_as_older_releases_wrote_them(bits, symmetric, tmp_path):
    values = by_hand(tmp_path, bits, torch.float32, whole_codes, symmetric=symmetric)
    settings = {**get_settings(tmp_path), "version": "0.10.2"}
    change_config(tmp_path, quantization_config=settings)
    for path, layer in packed_layers(load_model(tmp_path)).items():
        assert torch.equal(layer.weight, values[path]), path


def test_a_version_says_how_words_of_one_length_are_filled():
    codes = torch.randint(-4, 4, (2, 16))  # two words in either layout
    shape, scale = torch.tensor([2, 16]), torch.ones(2, 1)
    weights = {"num_bits": 3, "type": "int", "strategy": "channel"}
    plain = {"group_0": {"targets": ["Linear"], "weights": weights, "format": "pack-quantized"}}
    for version, pack in (
        ("0.17.1", whole_codes),
        ("0.18.0", bits_in_words),
        (None, bits_in_words),
    ):
        (group,) = parse_groups({"config_groups": plain, "version": version}, "x")
        words = torch.from_numpy(pack(codes + 4, 3))
        parts = {"weight_packed": words, "weight_scale": scale, "weight_shape": shape}
        stored = LAYOUTS["pack-quantized"][1](parts, group)
        found = Encoded(stored.codes, torch.Size((2, 16)), torch.float32, stored.scales)
        assert torch.equal(stored.number_format.decode(found), codes.float()), version


def find_group(targets, **weights):
    return {"targets": targets, "weights": {"num_bits": 4, "strategy": "channel", **weights}}


@pytest.mark.parametrize(
    ("targets", "bits"),
    [
        ([["lm_head"], ["Linear"]], 3),
        ([["Linear"], ["lm_head"]], 3),
        ([["Linear"], ["re:.*up_proj"]], 3),
        ([["re:.*up_proj"], ["a.up_proj"]], 3),
        ([["re:.*up_proj"], ["re:.*proj"]], 3),  # the first in the alphabet
        ([["Linear"], ["Linear"]], 3),
        ([["Linear"], ["Embedding"]], None),
    ],
)
def test_targets_are_matched_in_the_order_of_the_library(targets, bits):
    groups = {str(n): find_group(x, num_bits=2 + n) for n, x in enumerate(targets)}
    settings = {"format": "pack-quantized", "config_groups": groups}
    parsed = parse_groups(settings, "x")
    if bits is None:
        with pytest.raises(
            ConfigError, match="groups of config.json differ for Embedding and Linear"
        ):
            group_of_path("a.up_proj", parsed)
        return
    path = "lm_head" if targets[1] == ["lm_head"] else "a.up_proj"
    assert group_of_path(path, parsed).bits == bits
    pytest.importorskip("compressed_tensors", reason="compressed-tensors says which one it takes")
    from compressed_tensors.utils import match_targets

    of_targets = {text: 2 + n for n, x in enumerate(targets) for text in x}
    matched = match_targets(path, nn.Linear(1, 1), of_targets)
    assert of_targets[matched[0]] == bits


@pytest.mark.parametrize(
    ("of_all", "of_group", "reason"),
    [
        ({}, {"output_activations": {"num_bits": 8}}, "output_activations is not supported"),
        ({}, {"input_activations": {"symmetric": False}}, "expected symmetric inputs; zero points"),
        (
            {"format": "pack-quantised"},
            {},
            "format 'pack-quantised': did you mean 'pack-quantized'",
        ),
        ({"config_groups": []}, {}, "expected config_groups"),
        (
            {},
            {"targets": ["model.layers.7.mlp.up_proj"]},
            "has scales, but no group of config.json",
        ),
    ],
)
def test_configurations_that_do_not_fit(of_all, of_group, reason, tmp_path):
    by_hand(tmp_path)
    settings = get_settings(tmp_path)
    settings["config_groups"]["group_0"] |= of_group
    change_config(tmp_path, quantization_config=settings | of_all)
    with pytest.raises(ConfigError, match=reason):
        load(tmp_path)


def test_folders_with_only_a_quantized_cache_stay_float(tmp_path, caplog):
    model = decoder("Llama")
    model.save_pretrained(tmp_path)
    scheme = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "tensor"}
    settings = {"quant_method": "compressed-tensors", "config_groups": {}, "format": "dense"}
    change_config(tmp_path, quantization_config=settings | {"kv_cache_scheme": scheme})
    scales = {f"model.layers.0.self_attn.{x}_scale": torch.ones(1) for x in "kv"}
    change_tensors(tmp_path, lambda tensors: tensors.update(scales))
    loaded = load_model(tmp_path)
    assert "the key-value cache stays in float" in caplog.text
    assert torch.equal(logits(loaded, tokens()), logits(model, tokens()))


def write_cache_scales(folder, layers=2, **scheme):
    """A float decoder with a scheme and scales of its key-value cache: 0.01 and 0.02 times n."""
    config = transformers.LlamaConfig(**{**SIZES, "num_hidden_layers": layers}, **HEADS)
    torch.manual_seed(0)
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    fp8 = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "tensor"}
    settings = {"quant_method": "compressed-tensors", "config_groups": {}, "format": "dense"}
    cache = {**fp8, "dynamic": False, **scheme}
    change_config(folder, quantization_config={**settings, "kv_cache_scheme": cache})
    scales = {
        f"model.layers.{n}.self_attn.{x}_scale": torch.tensor([y * (n + 1)])
        for n in range(layers)
        for x, y in (("k", 0.01), ("v", 0.02))
    }
    change_tensors(folder, lambda tensors: tensors.update(scales))


def test_static_scales_of_a_cache_round_keys_and_values(tmp_path, caplog):
    write_cache_scales(tmp_path)
    model = load_model(tmp_path)
    assert "unless you pass cache=chop.QuantizedCache.from_checkpoint(model)" in caplog.text
    model.save_pretrained(tmp_path / "again")
    draw = torch.Generator().manual_seed(0)
    for one in (model, load_model(tmp_path / "again")):
        cache = chop.QuantizedCache.from_checkpoint(one)
        for layer in range(2):
            states = torch.randn(1, 2, 40, 16, generator=draw)
            cache.update(states, states * 3, layer)
            found = cache.update(states[:, :, :1], states[:, :, :1], layer)
            for x, y, scale in zip((states, states * 3), found, (0.01, 0.02), strict=True):
                step = torch.tensor(scale) * (layer + 1)
                codes = (x / step).clamp(-448, 448).to(torch.float8_e4m3fn)
                assert torch.equal(y[:, :, :32], (codes.float() * step)[:, :, :32])
    with torch.no_grad():
        cache = chop.QuantizedCache.from_checkpoint(model)
        assert model.generate(tokens(), cache=cache, max_new_tokens=4).shape == (2, 13)


def test_other_schemes_of_a_cache_are_ignored_with_a_reason(tmp_path, caplog):
    write_cache_scales(tmp_path, num_bits=4)
    model = load_model(tmp_path)
    assert "ignored, because only FP8 with a static scale" in caplog.text
    with pytest.raises(ConfigError, match="expected a model from a folder with FP8 scales"):
        chop.QuantizedCache.from_checkpoint(model)
    caplog.clear()
    write_cache_scales(tmp_path)
    change_tensors(tmp_path, lambda x: x.pop("model.layers.1.self_attn.v_scale"))
    load_model(tmp_path)
    assert "ignored, because only FP8 with a static scale" in caplog.text


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan"), float("inf")])
def test_a_scale_of_a_cache_that_is_no_positive_number_is_the_reason(scale, tmp_path, caplog):
    write_cache_scales(tmp_path)
    name = "model.layers.1.self_attn.v_scale"
    change_tensors(tmp_path, lambda x: x.update({name: torch.tensor([scale])}))
    model = load_model(tmp_path)
    reason = f"ignored, because '{name}' is {scale} instead of a positive number"
    assert reason in caplog.text
    with pytest.raises(ConfigError, match="expected a model from a folder with FP8 scales"):
        chop.QuantizedCache.from_checkpoint(model)


def test_groups_of_different_widths_apply_by_path_and_expression(tmp_path):
    settings = packed(4, 16)
    group = settings["config_groups"].pop("group_0")
    wide = {**group, "targets": ["re:.*down_proj$"], "weights": {**group["weights"], "num_bits": 8}}
    settings["config_groups"] = {"group_0": group, "group_1": wide}
    turns = iter(linear_layers(decoder("Llama")))

    def get_parts(draw, inputs, outputs):
        bits = 8 if next(turns).endswith("down_proj") else 4
        return integers(bits, 16)(draw, inputs, outputs)

    values = write_folder(tmp_path, settings, get_parts)
    model = load_model(tmp_path)
    for path, value in values.items():
        layer = model.get_submodule(path)
        assert torch.equal(layer.weight, value), path
        assert layer.spec.weight.width == (8 if path.endswith("down_proj") else 4)
