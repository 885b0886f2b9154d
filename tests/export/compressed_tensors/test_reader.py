"""Folders of compressed-tensors become packed layers with the codes that they hold."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from chop import MaseGraph
from chop.errors import CheckpointError, ConfigError
from chop.export.compressed_tensors import target as writer
from chop.export.compressed_tensors.groups import find_group as group_of_path
from chop.export.compressed_tensors.groups import parse_groups
from chop.export.compressed_tensors.reader import LAYOUTS
from chop.export.foreign.readers import load
from chop.formats import Encoded, GroupInteger, ScaleInteger
from chop.models import load_model
from chop.nn.packed import PackedLinear
from tests.export.decoders import captured, decoder, logits, quantized, rounded, tokens

FORMATS = {
    "mxint:width=8": "group_integer",  # scales that are powers of two are bfloat16 numbers
    "mxint:width=5": "group_integer",
    "group_integer:width=4": "group_integer",
    "group_integer:width=3:group_size=16": "group_integer",
    "scale_integer:width=8": "scale_integer",
    "scale_integer:width=8:granularity=row": "scale_integer",
    "scale_integer:width=4:granularity=group:group_size=16": "scale_integer",
    "integer:width=8:frac_width=6": "scale_integer",
    "mxfp:width=4": "mxfp",
    "mxfp:width=8": "mxfp",
}


def packed_layers(model):
    return {path: m for path, m in model.named_modules() if isinstance(m, PackedLinear)}


@pytest.mark.parametrize(("text", "name"), FORMATS.items(), ids=FORMATS)
@pytest.mark.sampled(2)
def test_what_we_wrote_comes_back_value_by_value(text, name, tmp_path):
    mg = quantized(captured("Llama"), {"linear": text})
    writer.write(mg, tmp_path)
    model, expected = load(tmp_path), rounded(mg)
    layers = packed_layers(model)
    assert len(layers) == 8
    for path, layer in layers.items():
        assert layer.spec.weight.name == name
        other = expected.get_submodule(path)
        assert torch.equal(layer.weight, other.quantize("weight", other.weight)), path
    torch.testing.assert_close(
        logits(model, tokens()), logits(expected, tokens()), rtol=1e-4, atol=1e-5
    )


def test_nvfp4_comes_back_up_to_the_inverse_of_its_scale(tmp_path):
    mg = quantized(captured("Llama"), {"linear": "nvfp4"})
    writer.write(mg, tmp_path)
    model, expected = load(tmp_path), rounded(mg)
    for path, layer in packed_layers(model).items():
        other = expected.get_submodule(path)
        torch.testing.assert_close(
            layer.weight.as_subclass(torch.Tensor),
            other.quantize("weight", other.weight),
            rtol=1e-6,
            atol=0,
        )


def test_mixed_formats_and_float_layers(tmp_path):
    rules = {
        "model.layers.0.self_attn.q_proj": "mxint:width=4",
        "model.layers.0.mlp.up_proj": "mxfp:width=8",
    }
    mg = quantized(captured("Qwen2"), rules, by="name")
    writer.write(mg, tmp_path)
    layers = packed_layers(load(tmp_path))
    assert {path: layer.spec.weight.name for path, layer in layers.items()} == {
        "model.layers.0.self_attn.q_proj": "group_integer",
        "model.layers.0.mlp.up_proj": "mxfp",
    }


def by_hand(folder, bits=4, group=16, scale_dtype=torch.bfloat16, **weights):
    """As llm-compressor writes it: codes from -2^(bits - 1) on, drawn; the model, too."""
    model = decoder("Llama")
    model.save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    tensors, values = load_file(folder / "model.safetensors"), {}
    for path, layer in model.named_modules():
        if not isinstance(layer, nn.Linear) or path == "lm_head":
            continue
        rows, columns = layer.weight.shape
        codes = torch.randint(-(2 ** (bits - 1)), 2 ** (bits - 1), (rows, columns))
        scale = (torch.rand(rows, columns // group) * 0.01 + 1e-3).to(scale_dtype)
        del tensors[f"{path}.weight"]
        tensors[f"{path}.weight_packed"] = packed_words(codes, bits)
        tensors[f"{path}.weight_scale"] = scale
        tensors[f"{path}.weight_shape"] = torch.tensor([rows, columns])
        zeros = torch.zeros(rows, columns // group, dtype=torch.int64)
        if weights.get("symmetric") is False:
            zeros = torch.randint(-(2 ** (bits - 1)), 2 ** (bits - 1), zeros.shape)
            tensors[f"{path}.weight_zero_point"] = packed_words(zeros.t(), bits).t().contiguous()
        shifted = codes - zeros.repeat_interleave(group, 1)
        values[path] = shifted * scale.float().repeat_interleave(group, 1)
    settings = {"num_bits": bits, "type": "int", "symmetric": True, "strategy": "group"}
    config["quantization_config"] = {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": {**settings, "group_size": group, "actorder": None, **weights},
                "input_activations": None,
            }
        },
        "ignore": ["lm_head"],
        "quantization_status": "compressed",
    }
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return values


def packed_words(codes, bits):
    """The reference, a row at a time: one integer of Python, cut into words of 32 bits."""
    rows = []
    for row in (codes + 2 ** (bits - 1)).tolist():
        whole = sum(code << bits * at for at, code in enumerate(row))
        words = [whole >> 32 * at & 0xFFFFFFFF for at in range(-(-len(row) * bits // 32))]
        rows.append([word - (word >> 31 << 32) for word in words])
    return torch.tensor(rows, dtype=torch.int32)


@pytest.mark.parametrize(("bits", "dtype"), [(4, torch.bfloat16), (8, torch.float16), (3, None)])
def test_folders_of_others_keep_every_code(bits, dtype, tmp_path):
    values = by_hand(tmp_path, bits, scale_dtype=dtype or torch.float32)
    model = load_model(str(tmp_path))
    layers = packed_layers(model)
    assert set(layers) == set(values)
    kind = GroupInteger if dtype is torch.bfloat16 else ScaleInteger
    for path, layer in layers.items():
        assert type(layer.spec.weight) is kind
        assert torch.equal(layer.weight, values[path]), path
    plain = decoder("Llama")
    for path, value in values.items():
        plain.get_submodule(path).weight.data = value
    expected = logits(plain, tokens())
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
        ({"symmetric": False, "strategy": "tensor"}, "got zero points in pack-quantized with stra"),
        ({"actorder": "group"}, "expected weights in their order, got actorder"),
        ({"num_bits": "4"}, "expected num_bits from 2 to 8, got '4'"),
        ({"num_bits": 16}, "expected num_bits from 2 to 8"),
        ({"strategy": "block"}, "expected a strategy of tensor, channel, group.* got 'block'"),
        ({"group_size": 32}, "does not fit pack-quantized in 4 bits: weight_scale is"),
        ({"num_bits": 8}, "does not fit pack-quantized in 8 bits: weight_packed is"),
    ],
)
@pytest.mark.sampled(4)
def test_other_schemes_are_refused_by_name(change, reason, tmp_path):
    by_hand(tmp_path, **change)
    with pytest.raises((ConfigError, CheckpointError), match=reason):
        load(tmp_path)


@pytest.mark.parametrize(
    ("actorder", "order"),
    [("static", None), ("weight", None), (None, "neighbors"), ("group", "neighbors"), (None, -1)],
)
def test_columns_in_their_order_are_read_whatever_they_were_rounded_in(actorder, order, tmp_path):
    values = by_hand(tmp_path, actorder=actorder)
    if order is not None:
        add_orders(tmp_path, lambda x: x if order == "neighbors" else x.fill_(-1))
    for path, layer in packed_layers(load_model(tmp_path)).items():
        assert torch.equal(layer.weight, values[path]), path


@pytest.mark.parametrize("actorder", ["group", None])
def test_columns_in_another_order_are_refused(actorder, tmp_path):
    by_hand(tmp_path, actorder=actorder)
    add_orders(tmp_path, lambda x: x.flip(0))
    with pytest.raises(ConfigError, match="expected weights in their order, got actorder of gr"):
        load_model(tmp_path)


def add_orders(folder, change):
    """The group of each column, of groups of 16."""
    tensors = load_file(folder / "model.safetensors")
    for name in [name for name in tensors if name.endswith("weight_shape")]:
        groups = torch.arange(int(tensors[name][1]), dtype=torch.int32) // 16
        tensors[name.replace("_shape", "_g_idx")] = change(groups).contiguous()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def whole_codes(codes, bits):
    """The reference: as many codes of a row in a word as fit, the first in its low bits."""
    each, rows = 32 // bits, []
    for row in (codes + 2 ** (bits - 1)).tolist():
        parts = [row[at : at + each] for at in range(0, len(row), each)]
        words = [sum(code << bits * i for i, code in enumerate(part)) for part in parts]
        rows.append([word - (word >> 31 << 32) for word in words])
    return torch.tensor(rows, dtype=torch.int32)


@pytest.mark.parametrize(("bits", "symmetric"), [(3, True), (5, False), (6, True), (7, True)])
def test_words_of_whole_codes_are_read_as_older_releases_wrote_them(
    bits, symmetric, tmp_path, monkeypatch
):
    monkeypatch.setitem(globals(), "packed_words", whole_codes)
    values = by_hand(tmp_path, bits, scale_dtype=torch.float32, symmetric=symmetric)
    changed(tmp_path, lambda settings: settings.update(version="0.10.2"))
    for path, layer in packed_layers(load_model(tmp_path)).items():
        assert torch.equal(layer.weight, values[path]), path


def test_a_version_says_how_words_of_one_length_are_filled():
    codes = torch.randint(-4, 4, (2, 16))  # two words in either layout
    shape, scale = torch.tensor([2, 16]), torch.ones(2, 1)
    weights = {"num_bits": 3, "type": "int", "strategy": "channel"}
    plain = {"group_0": {"targets": ["Linear"], "weights": weights, "format": "pack-quantized"}}
    for version, pack in (("0.17.1", whole_codes), ("0.18.0", packed_words), (None, packed_words)):
        (group,) = parse_groups({"config_groups": plain, "version": version}, "x")
        parts = {"weight_packed": pack(codes, 3), "weight_scale": scale, "weight_shape": shape}
        stored = LAYOUTS["pack-quantized"][1](parts, group)
        found = Encoded(stored.codes, torch.Size((2, 16)), torch.float32, stored.scales)
        assert torch.equal(stored.number_format.decode(found), codes.float()), version


def changed(folder, change):
    config = json.loads((folder / "config.json").read_text())
    change(config["quantization_config"])
    (folder / "config.json").write_text(json.dumps(config))


def results_too(settings):
    settings["config_groups"]["group_0"]["output_activations"] = {"num_bits": 8}


def zero_points(settings):
    settings["config_groups"]["group_0"]["input_activations"] = {"symmetric": False}


def another_format(settings):
    settings["format"] = "pack-quantised"


def no_groups(settings):
    settings["config_groups"] = []


def no_target(settings):
    settings["config_groups"]["group_0"]["targets"] = ["model.layers.7.mlp.up_proj"]


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
        with pytest.raises(ConfigError, match="one group of config.json for Embedding and Linear"):
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
    ("change", "reason"),
    [
        (results_too, "expected float results, got output_activations"),
        (zero_points, "expected symmetric inputs, got zero points"),
        (another_format, "format 'pack-quantised': did you mean 'pack-quantized'"),
        (no_groups, "expected config_groups"),
        (no_target, "has scales, and no group of config.json names it"),
    ],
)
def test_configurations_that_do_not_fit(change, reason, tmp_path):
    by_hand(tmp_path)
    changed(tmp_path, change)
    with pytest.raises(ConfigError, match=reason):
        load(tmp_path)


def test_broken_files_and_foreign_tensors(tmp_path):
    by_hand(tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    name = "model.layers.0.mlp.up_proj"
    for added, reason in {
        f"{name}.weight_zero_point": "expected the tensors of the schemes in its config.json, got",
        f"{name}.input_scale": "expected the tensors of the schemes in its config.json, got",
    }.items():
        save_file({**tensors, added: torch.zeros(1)}, file, metadata={"format": "pt"})
        with pytest.raises(ConfigError, match=reason):
            load(tmp_path)
    bare = {key: x for key, x in tensors.items() if key != f"{name}.weight_scale"}
    save_file(bare, file, metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=f"'{name}.weight_packed' holds codes, and has no we"):
        load(tmp_path)
    del tensors[f"{name}.weight_packed"]
    save_file(tensors, file, metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match="lacks weight_packed of pack-quantized"):
        load(tmp_path)
    file.write_bytes(file.read_bytes()[:5000])
    with pytest.raises(CheckpointError, match="is no readable safetensors file"):
        load(tmp_path)
    file.unlink()
    with pytest.raises(CheckpointError, match=r"expected \*\.safetensors"):
        load(tmp_path)
