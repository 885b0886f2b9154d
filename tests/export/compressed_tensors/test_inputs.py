"""Layers that round their inputs, in folders of compressed-tensors: int8 and FP8, in and out."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from chop import MaseGraph, passes
from chop.errors import CheckpointError, ConfigError
from chop.export.coded import coded_weight
from chop.export.compressed_tensors import target
from chop.export.compressed_tensors.groups import FORMATS
from chop.export.compressed_tensors.inputs import InputScheme, list_inputs, parse_inputs
from chop.export.compressed_tensors.reader import LAYOUTS
from chop.export.foreign.readers import load
from chop.formats import FP8, Integer, ScaleInteger, parse_format_string
from chop.models import load_model
from chop.nn.packed import PackedLinear, pack
from chop.nn.quantized import QuantLinear
from tests.export.decoders import captured, decoder, logits, rounded, tokens
from tests.export.tools import change_config, get_settings
from tests.subcases import subcases

UP = "model.layers.0.mlp.up_proj"


def by_hand(folder, kind="int", weight="channel", dtype=torch.float32, **inputs):
    """As llm-compressor writes it: scales of the largest magnitude, the head left out."""
    folder.mkdir(exist_ok=True)
    model = decoder("Llama", dtype=dtype)
    model.save_pretrained(folder)
    tensors = load_file(folder / "model.safetensors")
    inputs = {"strategy": "token", "dynamic": True, **inputs}
    for path, layer in model.named_modules():
        if isinstance(layer, nn.Linear) and path != "lm_head":
            codes, scale = coded(layer.weight.detach(), kind, weight)
            tensors |= {f"{path}.weight": codes, f"{path}.weight_scale": scale}
            if not inputs["dynamic"]:
                tensors[f"{path}.input_scale"] = torch.tensor([0.0125], dtype=dtype)
    common = {"num_bits": 8, "type": kind, "symmetric": True}
    block = {"block_structure": [32, 32]} if weight == "block" else {}
    weights = {**common, "strategy": weight, "dynamic": False, "observer": "minmax", **block}
    group = {"targets": ["Linear"], "weights": weights, "input_activations": {**common, **inputs}}
    settings = {
        "quant_method": "compressed-tensors",
        "format": f"{kind}-quantized",
        "config_groups": {"group_0": {**group, "output_activations": None}},
        "ignore": ["lm_head"],
        "kv_cache_scheme": None,
        "quantization_status": "compressed",
    }
    change_config(folder, quantization_config=settings)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return tensors


def coded(weight, kind, strategy):
    largest = {"int": 127.5, "float": 448.0}[kind]
    if strategy == "block":
        tiles = weight.unflatten(0, (-1, 32)).unflatten(2, (-1, 32))
        amax = tiles.abs().amax((1, 3))
        each = (amax / largest).repeat_interleave(32, 0).repeat_interleave(32, 1)
    else:
        amax = weight.abs().amax(1, keepdim=True) if strategy == "channel" else weight.abs().max()
        each = amax / largest
    scale = (amax / largest).view(1) if strategy == "tensor" else amax / largest
    if kind == "int":
        return (weight / each).clamp(-128, 127).round().to(torch.int8), scale
    return (weight / each).clamp(-448, 448).to(torch.float8_e4m3fn), scale


def get_value(tensors, path=UP):
    """float64, what a weight stands for."""
    codes, scale = tensors[f"{path}.weight"].double(), tensors[f"{path}.weight_scale"].double()
    if scale.ndim == 2 and scale.size(1) > 1:
        scale = scale.repeat_interleave(32, 0).repeat_interleave(32, 1)
    return codes * scale


FOLDERS = {
    "fp8 by token": {"kind": "float"},
    "fp8 static": {"kind": "float", "weight": "tensor", "strategy": "tensor", "dynamic": False},
    "fp8 of all": {"kind": "float", "strategy": "tensor"},
    "fp8 in blocks": {"kind": "float", "weight": "block", "strategy": "group", "group_size": 32},
    "int8 static": {"strategy": "tensor", "dynamic": False},
    "int8 static, of all": {"weight": "tensor", "strategy": "tensor", "dynamic": False},
}
"""Of which inputs are rounded as the library rounds them."""


@pytest.mark.parametrize("name", FOLDERS, ids=lambda name: name.replace(" ", "-"))
@pytest.mark.sampled(2)
def test_logits_are_those_of_the_library(name, tmp_path):
    pytest.importorskip("compressed_tensors", reason="compressed-tensors reads the folder")
    tensors = by_hand(tmp_path, **FOLDERS[name])
    model = load_model(tmp_path)
    layers = {path: m for path, m in model.named_modules() if isinstance(m, PackedLinear)}
    assert len(layers) == 7
    assert torch.equal(layers[UP].weight, get_value(tensors).float())
    theirs = target.read_model(tmp_path)
    x = 3 * torch.randn(2, 5, 64, generator=torch.Generator().manual_seed(0))
    x[0, 0], x[0, 1, 0] = 0, -50.0  # beyond static scales, whose lowest code is -128
    found = layers[UP].quantize("data_in", x)
    own = theirs.get_submodule(UP)
    torch.testing.assert_close(nn.functional.linear(found, own.weight), own(x), rtol=0, atol=0)
    expected = logits(theirs, tokens())
    assert (logits(model, tokens()) - expected).abs().max() <= 1e-5 * expected.abs().max()


@pytest.mark.long
def test_graphs_of_such_folders_are_written_again(tmp_path):
    tensors = by_hand(tmp_path / "a", **FOLDERS["fp8 static"])
    model = load_model(tmp_path / "a")
    mg, ids = MaseGraph(model), tokens()
    found = mg.model(input_ids=ids, attention_mask=torch.ones_like(ids))["logits"]
    torch.testing.assert_close(found, logits(model, ids), rtol=0, atol=1e-5)
    target.write(mg, tmp_path / "b")
    again = load_file(tmp_path / "b" / "model.safetensors")
    assert again.keys() == tensors.keys()
    for name, x in tensors.items():
        assert torch.equal(again[name].view(torch.uint8), x.view(torch.uint8)), name


class Engine(nn.Module):
    """A linear layer of int8, as the kernels of engines define it: a scale by token, amax/127."""

    def __init__(self, weight):
        super().__init__()
        self.weight = weight.float()

    def forward(self, x):
        scale = (x.abs().amax(-1, keepdim=True).double() / 127).float()
        codes = (x.double() / scale.clamp(min=2.0**-126)).round().clamp(-128, 127)
        return nn.functional.linear((codes * scale).float(), self.weight)


def test_scales_of_int8_by_token_are_those_of_engines(tmp_path):
    tensors = by_hand(tmp_path)
    assert (tensors[f"{UP}.weight"] == -128).any()
    model, engine = load_model(tmp_path), decoder("Llama")
    for path, layer in model.named_modules():
        if isinstance(layer, PackedLinear):
            assert layer.spec.data_in == ScaleInteger(8, granularity="row")
            engine.set_submodule(path, Engine(get_value(tensors, path)))
    expected, found = logits(engine, tokens()), logits(model, tokens())
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    pytest.importorskip("compressed_tensors", reason="compressed-tensors reads the folder")
    theirs = target.read_model(tmp_path)
    assert (logits(theirs, tokens()) - found).abs().max() <= 0.02 * found.abs().max()
    x = torch.randn(2, 5, 64, generator=torch.Generator().manual_seed(0))
    x[0, 0] = 0
    layer = theirs.get_submodule(UP)
    layer.weight = nn.Parameter(torch.eye(64), requires_grad=False)
    seen = layer(x)
    # Half a step of each, and half a one where the library's highest code is 127 of 127.5.
    step = x.abs().amax(-1, keepdim=True) / 127
    assert ((model.get_submodule(UP).quantize("data_in", x) - seen).abs() <= 1.01 * step).all()


W8A8 = {
    "int8 by token": (
        "scale_integer:width=8:granularity=channel",
        "scale_integer:width=8:granularity=row",
    ),
    "int8 static": (
        "scale_integer:width=8",
        "scale_integer:width=8:scales=[0.0125]:is_symmetric=false",
    ),
    "fixed point": ("integer:width=8:frac_width=9", "integer:width=8:frac_width=6"),
    "int4 in groups": ("group_integer:width=4", "fp8:granularity=row"),
    "fp8 by token": ("fp8:granularity=channel", "fp8:granularity=row"),
    "fp8 static": ("fp8", "fp8:scales=[0.0125]"),
    "fp8 in blocks": ("fp8:granularity=block:group_size=32", "fp8:granularity=group:group_size=16"),
    "fp8 in groups": ("fp8:granularity=group:group_size=16", "scale_integer:width=8"),
    "fp8 weights": ("fp8:granularity=channel", "float"),
    "fp8 weights in blocks": ("fp8:granularity=block:group_size=48", "float"),  # of 64 columns
    "minifloat": (
        "minifloat_ieee:width=8:exponent_width=4",
        "minifloat_ieee:width=8:exponent_width=4",
    ),
}


def with_inputs(graph, weight, data_in, by="type", **rules):
    """A graph whose linear layers, or those of a path, have these formats."""
    formats = {"weight": parse_format_string(weight), "data_in": parse_format_string(data_in)}
    rules = rules or {"linear": formats}
    plain = {name: {"config": x} for name, x in rules.items()}
    return passes.quantize_transform_pass(graph, {"by": by, **plain})[0]


@pytest.mark.parametrize("name", W8A8, ids=lambda name: name.replace(" ", "-"))
@pytest.mark.sampled(1)
def test_what_we_write_is_read_by_the_library_and_by_us(name, tmp_path):
    pytest.importorskip("compressed_tensors", reason="compressed-tensors reads the folder")
    mg = with_inputs(captured("Llama"), *W8A8[name])
    info = target.write(mg, tmp_path)
    expected, again, theirs = rounded(mg), load(tmp_path), target.read_model(tmp_path)
    for path, layer in again.named_modules():
        if isinstance(layer, PackedLinear):
            own = expected.get_submodule(path)
            weight = own.quantize("weight", own.weight)
            assert torch.equal(layer.weight, weight), path
            assert torch.equal(theirs.get_submodule(path).weight, weight), path
    wanted = logits(expected, tokens())
    torch.testing.assert_close(logits(again, tokens()), wanted, rtol=0, atol=1e-5)
    finds_integers = "amax/127.5" in "".join(info["notes"])
    assert finds_integers == (name in ("int8 by token", "fp8 in groups"))
    off = (logits(theirs, tokens()) - wanted).abs().max() / wanted.abs().max()
    assert off <= (0.02 if finds_integers else 1e-5)


@pytest.mark.parametrize("kind", ["Qwen2", "Bert"])
@pytest.mark.long
def test_tied_heads_and_layers_without_rounded_inputs(kind, tmp_path):
    pytest.importorskip("compressed_tensors", reason="compressed-tensors reads the folder")
    mg = MaseGraph(encoder()) if kind == "Bert" else captured(kind, tied=True)
    first, second = ("query", "key") if kind == "Bert" else ("q_proj", "k_proj")
    head = r"cls\.predictions\.decoder" if kind == "Bert" else "lm_head"
    fp8 = {"weight": FP8(granularity="channel"), "data_in": FP8(granularity="row")}
    weights = {"weight": parse_format_string("mxint:width=4")}
    rules = {rf".*\.{first}": fp8, rf".*\.{second}": weights, head: fp8}
    mg = with_inputs(mg, "float", "float", by="regex_name", **rules)
    target.write(mg, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    groups = get_settings(tmp_path)["config_groups"].values()
    assert {x["format"] for x in groups} == {"float-quantized", "pack-quantized"}
    assert {"input_activations" in x for x in groups} == {True, False}
    assert config["tie_word_embeddings"] is False
    wanted = logits(rounded(mg), tokens())
    for found in (load(tmp_path), target.read_model(tmp_path)):
        torch.testing.assert_close(logits(found, tokens()), wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize("fmt", [FP8(), ScaleInteger(8)], ids=str)
@pytest.mark.sampled(1)
def test_calibrated_scales_are_static_ones(fmt, tmp_path):
    pytest.importorskip("compressed_tensors", reason="compressed-tensors reads the folder")
    rule = {"config": {"weight": fmt, "data_in": fmt}}
    mg, _ = passes.quantize_transform_pass(captured("Llama"), {"by": "type", "linear": rule})
    batch = {"input_ids": tokens(), "attention_mask": torch.ones_like(tokens())}
    mg, info = passes.calibrate_transform_pass(mg, {"batches": [batch], "static_scales": True})
    assert info["static"] == 8
    assert not target.write(mg, tmp_path)["notes"]
    wanted = logits(rounded(mg), tokens())
    for found in (load(tmp_path), target.read_model(tmp_path)):
        torch.testing.assert_close(logits(found, tokens()), wanted, rtol=0, atol=1e-5)


@pytest.mark.long  # the pages say it; what it is made of is tested
@pytest.mark.parametrize("name", ["int8 by token", "fp8 by token"])
def test_models_that_transformers_reads_in_8_bits(name, tmp_path):
    import transformers

    from chop import ChopConfig

    decoder("Llama").save_pretrained(tmp_path / "float")
    config = ChopConfig(W8A8[name][0], data_in=W8A8[name][1], operators="linear", skip="lm_head")
    kind = transformers.AutoModelForCausalLM
    model = kind.from_pretrained(tmp_path / "float", quantization_config=config)
    target.write(MaseGraph(model), tmp_path / "ours")
    again = load(tmp_path / "ours")
    assert type(again.lm_head) is nn.Linear
    assert torch.equal(logits(again, tokens()), logits(model, tokens()))


def encoder():
    import transformers

    sizes = {"vocab_size": 96, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1}
    config = transformers.BertConfig(**sizes, num_attention_heads=4, max_position_embeddings=32)
    torch.manual_seed(0)
    model = transformers.BertForMaskedLM(config).eval()
    nn.init.normal_(model.cls.predictions.bias)  # the head's, too
    return model


@pytest.mark.long  # the dtypes of its scales are shown below
def test_scales_that_a_bfloat16_model_cannot_hold_are_float32(tmp_path):
    mg = with_inputs(MaseGraph(decoder("Llama", dtype=torch.bfloat16)), *W8A8["int8 static"])
    info = target.write(mg, tmp_path)
    assert "scales are in float32; engines use them" in " ".join(info["notes"])
    tensors = load_file(tmp_path / "model.safetensors")
    assert tensors[f"{UP}.weight_scale"].dtype == torch.float32
    assert tensors[f"{UP}.input_scale"].dtype == torch.float32
    own, layer = rounded(mg).get_submodule(UP), load(tmp_path).get_submodule(UP)
    assert torch.equal(layer.weight, own.quantize("weight", own.weight))
    x = torch.randn(4, 64)
    assert torch.equal(layer.quantize("data_in", x), own.quantize("data_in", x))


REFUSED = {
    "mxint:width=8": "expected integers of up to 8 bits.*float scales|absmax scale",
    "integer:width=12:frac_width=4": "expected integers of up to 8 bits, or e4m3",
    "integer:width=8:frac_width=4:is_signed=false": "expected integers of up to 8 bits, or e4m3",
    "integer:width=8:frac_width=4:floor=true": "expected integers of up to 8 bits, or e4m3",
    "fp8:exponent_width=5": "expected integers of up to 8 bits, or e4m3",
    "fp8:granularity=channel": "expected a dynamic absmax scale per row",
    "fp8:granularity=block": "expected a dynamic absmax scale per row",
    "scale_integer:width=8:quantile=0.9": "expected a dynamic absmax scale per row",
    "binary": "expected integers of up to 8 bits, or e4m3",
}


@subcases("text, reason", REFUSED.items())
def test_other_inputs_have_no_scheme(text, reason):
    import re

    found = list_inputs(parse_format_string(text))
    assert isinstance(found, str)
    assert re.search(reason, found)


def test_what_it_cannot_hold_is_listed(tmp_path):
    mg = with_inputs(captured("Llama"), "mxfp:width=8", "fp8:granularity=row")
    with pytest.raises(ConfigError, match="its weight is neither an integer nor fp8"):
        target.write(mg, tmp_path / "folder")
    mg = with_inputs(captured("Llama"), "fp8:granularity=channel", "fp8:granularity=channel")
    with pytest.raises(ConfigError, match="q_proj: it rounds its inputs to fp8"):
        target.write(mg, tmp_path / "folder")
    assert not (tmp_path / "folder").exists()


def test_scales_that_a_dtype_cannot_hold():
    layer = QuantLinear(64, 8, config={"weight": FP8(granularity="channel")})
    layer.weight.data[:, 0] = 0.7
    weight, inputs = coded_weight(pack(layer)), ScaleInteger(8, scales=(0.0123,))
    for dtype, held in ((torch.bfloat16, torch.float32), (torch.float32, torch.float32)):
        scheme = target.scheme_with_inputs(weight, inputs, dtype)
        assert scheme.is_rounded == (dtype is torch.bfloat16)
        found = scheme.tensors(weight, dtype)
        assert {found[name].dtype for name in ("weight_scale", "input_scale")} == {held}
        assert torch.equal(found["weight"].double() * found["weight_scale"], layer_values(weight))
    tiny = ScaleInteger(8, scales=(1e-9,))
    reason = target.scheme_with_inputs(weight, tiny, torch.float16)
    assert reason == "the scale of its inputs is out of range of the model's torch.float16"
    layer.weight.data *= 1e-9
    reason = target.get_scheme(coded_weight(pack(layer)), torch.float16)
    assert reason == "its scales are out of range of the model's torch.float16"


def layer_values(weight):
    return weight.element.values(weight.codes.long()) * weight.scales


SCHEMES = [ScaleInteger(8, granularity="row"), ScaleInteger(4), FP8(granularity="row"), FP8()]
SCHEMES += [FP8(granularity="group", group_size=64), FP8(scales=(0.5,))]
SCHEMES += [ScaleInteger(8, scales=(0.5,), is_symmetric=False)]


@subcases("fmt", SCHEMES)
def test_schemes_have_the_format_that_they_are_of(fmt):
    scheme, scale = list_inputs(fmt)
    assert isinstance(scheme, InputScheme)
    assert parse_inputs(scheme.plain, "x") == scheme
    given = None if scale is None else torch.tensor([scale])
    assert scheme.number_format(given) == fmt
    static, step = list_inputs(Integer(8, 3))
    assert (static.strategy, static.is_dynamic, step) == ("tensor", False, 0.125)


UNREAD = {
    "zero points": ({"symmetric": False}, "expected symmetric inputs"),
    "bits": (
        {"num_bits": 16},
        "expected inputs as integers of up to 8 bits or 8-bit floats, got 16",
    ),
    "type": ({"type": "fp"}, "8 bits of type 'fp'"),
    "local": ({"dynamic": "local"}, "got strategy 'token' and dynamic 'local'"),
    "static tokens": ({"dynamic": False}, "got strategy 'token' and dynamic False"),
    "channels": ({"strategy": "channel"}, "got strategy 'channel' and dynamic True"),
    "group": ({"strategy": "group"}, "expected a group_size .*, got None"),
    "scale": ({"scale_dtype": "torch.uint8"}, "expected float scales of inputs"),
}


@subcases("change, reason", UNREAD.values(), ids=[*UNREAD])
def test_other_schemes_are_refused_by_name(change, reason):
    plain = {"num_bits": 8, "type": "int", "strategy": "token", "dynamic": True, **change}
    with pytest.raises(ConfigError, match=reason):
        parse_inputs(plain, "x")


def test_every_format_that_is_named_is_read():
    assert set(LAYOUTS) == set(FORMATS)


@pytest.mark.parametrize("key", ["sparsity_config", "transform_config"])
def test_what_else_changes_the_model_is_refused(key, tmp_path):
    by_hand(tmp_path)
    settings = {**get_settings(tmp_path), key: {"format": "sparse-24-bitmask"}}
    change_config(tmp_path, quantization_config=settings)
    with pytest.raises(ConfigError, match=f"{key} is not supported"):
        load(tmp_path)


def test_a_quantized_cache_is_told_and_its_scales_are_not_used(tmp_path, caplog):
    tensors = by_hand(tmp_path)
    expected = logits(load(tmp_path), tokens())
    scheme = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False}
    dense = {"format": "dense", "global_sparsity": 0.1, "registry_requires_subclass": 0}
    plain = {**get_settings(tmp_path), "sparsity_config": dense, "transform_config": {}}
    change_config(tmp_path, quantization_config={**plain, "kv_cache_scheme": scheme})
    attention = UP.replace("mlp.up_proj", "self_attn")
    for name in ("k_scale", "v_scale", "k_proj.output_scale"):
        tensors[f"{attention}.{name}"] = torch.ones(1)
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    assert torch.equal(logits(load(tmp_path), tokens()), expected)
    assert "kv_cache_scheme: the key-value cache stays in float" in caplog.text
    change_config(tmp_path, quantization_config=plain)
    with pytest.raises(ConfigError, match=r"tensor 'model\.layers\.0\.self_attn\.k_"):
        load(tmp_path)


def test_static_scales_have_to_be_there(tmp_path):
    tensors = by_hand(tmp_path, strategy="tensor", dynamic=False)
    del tensors[f"{UP}.input_scale"]
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match="up_proj' does not fit int-quantized.*input_scale"):
        load(tmp_path)
