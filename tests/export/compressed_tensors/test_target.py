"""Folders of compressed-tensors: the library's own decoding gives the values of our codes."""

import json
import logging

import pytest
import torch
from torch import nn

from chop import MaseGraph, passes
from chop.errors import ConfigError
from chop.export.foreign.readers import load
from tests.export.compressed_tensors.test_reader import packed_layers
from tests.export.decoders import (
    SIZES,
    captured,
    decoder,
    logits,
    quantized,
    rounded,
    tokens,
)
from tests.export.tools import get_settings

pytest.importorskip("compressed_tensors", reason="compressed-tensors reads the folders")

from chop.export.compressed_tensors import target

# format: (layout, the format that it is read in)
FORMATS = {
    # Scales that are powers of two are bfloat16 numbers.
    "mxint:width=8": ("pack-quantized", "group_integer"),
    "mxint:width=4": ("pack-quantized", "group_integer"),
    "mxint:width=5": ("pack-quantized", "group_integer"),
    "group_integer:width=4": ("pack-quantized", "group_integer"),
    "group_integer:width=3:group_size=16": ("pack-quantized", "group_integer"),
    "scale_integer:width=8": ("pack-quantized", "scale_integer"),
    "scale_integer:width=8:granularity=row": ("pack-quantized", "scale_integer"),
    "scale_integer:width=4:granularity=group:group_size=16": ("pack-quantized", "scale_integer"),
    "integer:width=8:frac_width=6": ("pack-quantized", "scale_integer"),
    "mxfp:width=4": ("mxfp4-pack-quantized", "mxfp"),
    "mxfp:width=8": ("mxfp8-quantized", "mxfp"),
}


def weights(model):
    """The linear layers' weights by path, as they are multiplied with."""
    return {
        path: module.quantize("weight", module.weight).detach()
        for path, module in model.named_modules()
        if isinstance(module, nn.Linear) and hasattr(module, "spec")
    }


@pytest.mark.parametrize("text", FORMATS)
@pytest.mark.sampled(1)
def test_weights_and_logits_are_equal_by_the_library_and_by_us(text, tmp_path):
    layout, name = FORMATS[text]
    mg = quantized(captured("Llama"), {"linear": text})
    info = target.write(mg, tmp_path)
    assert set(info["formats"].values()) == {layout}
    found, ours, expected = target.read_model(tmp_path), load(tmp_path), rounded(mg)
    layers = packed_layers(ours)
    assert layers.keys() == weights(expected).keys() and len(layers) == 8
    for path, weight in weights(expected).items():
        assert torch.equal(found.get_submodule(path).weight, weight), path
        assert torch.equal(layers[path].weight, weight), path
        assert layers[path].spec.weight.name == name
    answers = logits(expected, tokens())
    assert torch.equal(logits(found, tokens()), answers)
    torch.testing.assert_close(logits(ours, tokens()), answers, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["Llama", "Qwen2"])
@pytest.mark.parametrize("operators", [("linear",), ("linear", "embedding")], ids="+".join)
@pytest.mark.long
def test_tied_heads_are_written_beside_their_embedding(kind, operators, tmp_path, caplog):
    mg = quantized(captured(kind, tied=True), dict.fromkeys(operators, "mxint:width=4"))
    with caplog.at_level(logging.WARNING, "chop.export"):
        info = target.write(mg, tmp_path)
    tables = ["model.embed_tokens"] if "embedding" in operators else []
    assert info["floats"] == tables
    assert ("embeddings are written as floats: model.embed_tokens" in caplog.text) == bool(tables)
    assert not json.loads((tmp_path / "config.json").read_text())["tie_word_embeddings"]
    found, expected = target.read_model(tmp_path), rounded(mg)
    assert torch.equal(logits(found, tokens()), logits(expected, tokens()))


def test_formats_by_module_and_float_layers(tmp_path):
    mg = quantized(
        captured("Llama"),
        {
            "model.layers.0.self_attn.q_proj": "mxint:width=4",
            "model.layers.0.mlp.down_proj": "group_integer:width=4",
            "model.layers.0.mlp.up_proj": "mxfp:width=8",
        },
        by="name",
    )
    target.write(mg, tmp_path)
    config = get_settings(tmp_path)
    assert config["format"] == "mixed-precision"
    assert [group["targets"] for group in config["config_groups"].values()] == [
        ["model.layers.0.self_attn.q_proj", "model.layers.0.mlp.down_proj"],  # 4 bits in groups
        ["model.layers.0.mlp.up_proj"],
    ]
    assert len(config["ignore"]) == 5
    found, expected = target.read_model(tmp_path), rounded(mg)
    assert torch.equal(logits(found, tokens()), logits(expected, tokens()))
    read = {path: layer.spec.weight.name for path, layer in packed_layers(load(tmp_path)).items()}
    assert list(read.values()) == ["group_integer", "mxfp", "group_integer"]


def test_one_format_names_the_class(tmp_path):
    mg = quantized(captured("Llama"), {r"model\..*_proj": "mxint:width=4"}, by="regex_name")
    target.write(mg, tmp_path)
    config = get_settings(tmp_path)
    assert config["ignore"] == ["lm_head"]
    assert config["config_groups"]["group_0"]["targets"] == ["Linear"]
    assert config["config_groups"]["group_0"]["weights"]["group_size"] == 32


def test_shards_keep_their_index(tmp_path, monkeypatch):
    from chop.ir.huggingface import folder

    save = folder.save_folder
    monkeypatch.setattr(
        folder,
        "save_folder",
        lambda model, path, *others, **how: save(model, path, None, "20KB", **how),
    )
    mg = quantized(captured("Llama"), {"linear": "group_integer:width=4"})
    target.write(mg, tmp_path)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())["weight_map"]
    assert len(set(index.values())) > 1
    assert "model.layers.0.mlp.up_proj.weight_packed" in index
    assert not any(name.endswith("weight_codes") for name in index)
    found, expected = target.read_model(tmp_path), rounded(mg)
    assert torch.equal(logits(found, tokens()), logits(expected, tokens()))


@pytest.mark.long
def test_bfloat16_models(tmp_path):
    mg = quantized(decoder("Llama", dtype=torch.bfloat16), {"linear": "mxint:width=8"})
    target.write(mg, tmp_path)
    found, expected = target.read_model(tmp_path), rounded(mg)
    for path, weight in weights(expected).items():
        assert torch.equal(found.get_submodule(path).weight, weight), path


def test_nvfp4_differs_by_the_library_s_bfloat16(tmp_path, caplog):
    mg = quantized(captured("Llama"), {"linear": "nvfp4"})
    with caplog.at_level(logging.WARNING, "chop.export"):
        target.write(mg, tmp_path)
    assert "load it with dtype=torch.bfloat16" in caplog.text
    found, expected = target.read_model(tmp_path), rounded(mg)
    layers = packed_layers(load(tmp_path))
    for path, weight in weights(expected).items():
        # Scales are rounded once where they are divided by the tensor's, and products once more.
        bound = weight.abs() * 2**-7
        assert ((found.get_submodule(path).weight - weight).abs() <= bound).all(), path
        ours = layers[path].weight.as_subclass(torch.Tensor)  # up to the inverse of its scale
        torch.testing.assert_close(ours, weight, rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    ("model", "config", "reason"),
    [
        ("Llama", {"weight": "mxint:width=8", "data_in": "mxint:width=8"}, "rounds its inputs to"),
        ("Llama", {"weight": "mxint:width=8", "data_out": "fp8"}, "rounds its results to fp8"),
        ("Llama", {"weight": "group_affine:width=4"}, "is not elements times one scale each"),
        ("Llama", {"weight": "mxint:width=12"}, "codes of 12 bits"),
        ("Llama", {"weight": "mxint:width=8:block_size=48"}, "not a multiple of the group size 48"),
        ("Llama", {"weight": "mxfp:width=6"}, "not support its elements and scales"),
        ("Llama", {"weight": "log:width=8"}, "not support its elements and scales"),
        ("GPT2", {"weight": "mxint:width=8"}, r"stores weights as \(inputs, outputs\)"),
    ],
)
@pytest.mark.sampled(1)
def test_what_it_cannot_hold_is_listed_before_anything_is_written(model, config, reason, tmp_path):
    from chop.formats import parse_format_string

    if model == "GPT2":
        import transformers

        sizes = {"vocab_size": 96, "n_embd": 64, "n_layer": 1, "n_head": 4, "n_positions": 32}
        graph = MaseGraph(transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes)).eval())
    else:
        graph = captured(model)
    rule = {"config": {name: parse_format_string(text) for name, text in config.items()}}
    mg, _ = passes.quantize_transform_pass(graph, {"by": "type", "linear": rule})
    with pytest.raises(ConfigError, match=reason) as error:
        target.write(mg, tmp_path / "folder")
    assert "Choose mxint:width=8, group_integer" in str(error.value)
    assert not (tmp_path / "folder").exists()


@pytest.mark.long
def test_scales_that_do_not_fit_the_model_s_dtype(tmp_path):
    model = decoder("Llama")
    model.lm_head.weight.data[3] *= 2.0**-30
    mg = quantized(model.half(), {"linear": "mxint:width=8"})
    with pytest.raises(
        ConfigError, match=r"lm_head: its scales are out of range of the model's torch\.float16"
    ):
        target.write(mg, tmp_path)


def test_models_of_one_s_own_are_refused(tmp_path):
    mg = quantized(nn.Sequential(nn.Linear(32, 4)).eval(), {"linear": "mxint:width=8"})
    with pytest.raises(ConfigError, match=r"expected a transformers model.*got a Sequential"):
        target.write(mg, tmp_path)
    mg.export(tmp_path / "own")  # a file, which has no code of the class
    with pytest.raises(ConfigError, match=r"expected a transformers model.*got a Sequential"):
        target.write(MaseGraph.from_checkpoint(tmp_path / "own"), tmp_path)


def test_nothing_quantized_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="there is nothing to pack"):
        target.write(captured("Llama"), tmp_path)


def test_packed_embeddings_alone_are_refused(tmp_path):
    mg = quantized(captured("Llama"), {"embedding": "mxint:width=8"})
    with pytest.raises(ConfigError, match="expected a packed linear layer, got none"):
        target.write(mg, tmp_path)


@pytest.mark.parametrize("order", ["shards first", "one file first"])
@pytest.mark.sampled(1)
def test_a_second_model_in_a_folder_replaces_the_first(order, tmp_path, monkeypatch):
    from chop.ir.huggingface import folder

    save, sizes = folder.save_folder, ["20KB", "5GB"]

    def in_shards(model, path, tokenizer, **how):
        save(model, path, tokenizer, sizes.pop(), **how)

    monkeypatch.setattr(folder, "save_folder", in_shards)
    if order == "shards first":
        sizes.reverse()
    (tmp_path / "notes.txt").write_text("mine")
    for kind in ("mxint:width=8", "mxint:width=4"):
        mg = quantized(captured("Llama"), {"linear": kind})
        target.write(mg, tmp_path)
    assert (tmp_path / "notes.txt").read_text() == "mine"
    assert (tmp_path / "model.safetensors").exists() == (order == "shards first")
    found, expected = target.read_model(tmp_path), rounded(mg)
    assert torch.equal(logits(found, tokens()), logits(expected, tokens()))


@pytest.mark.parametrize("operators", [("linear",), ("linear", "embedding")], ids="+".join)
@pytest.mark.long
def test_encoders_with_a_tied_head(operators, tmp_path):
    import transformers

    sizes = {"num_attention_heads": 4, "max_position_embeddings": 32}
    config = transformers.BertConfig(**SIZES, **sizes)
    model = transformers.BertForMaskedLM(config).eval()
    mg = quantized(model, dict.fromkeys(operators, "mxint:width=8"))
    target.write(mg, tmp_path)
    found, expected = target.read_model(tmp_path), rounded(mg)
    assert torch.equal(logits(found, tokens()), logits(expected, tokens()))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("where", ["model", "layer"])
def test_code_that_engines_lack_is_refused(where, tmp_path):
    import transformers

    class Doubled(transformers.LlamaForCausalLM):
        def forward(self, input_ids=None, **further):
            found = super().forward(input_ids=input_ids, **further)
            found.logits = found.logits * 2
            return found

    class Squared(nn.SiLU):
        def forward(self, x):
            return super().forward(x).square()

    model = decoder("Llama")
    if where == "model":
        model.__class__ = Doubled
    else:
        model.model.layers[0].mlp.act_fn = Squared()
    mg = quantized(MaseGraph(model, hf_input_names=["input_ids"]), {"linear": "mxint:width=4"})
    with pytest.raises(ConfigError, match=r"the file would lose; the targets onnx and pt2 support"):
        target.write(mg, tmp_path)
    assert not [*tmp_path.iterdir()]
