"""Every tensor of a folder is used, or named in an error; heads alone may be new or left out."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForPreTraining,
    BertForSequenceClassification,
    BertModel,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaModel,
    SegformerConfig,
    SegformerForSemanticSegmentation,
    ViTConfig,
    ViTModel,
)

from chop import ChopConfig
from chop.errors import CheckpointError, ConfigError
from chop.ir.huggingface.tools import find_tool
from chop.models import load_model
from chop.models.meta import meta_model, weights_source
from chop.nn.packed import PackedLinear

LLAMA = {
    "vocab_size": 32,
    "hidden_size": 8,
    "intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
}
BERT = {
    "vocab_size": 40,
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
}
QUERY = "model.layers.1.self_attn.q_proj"


def llama(folder, kind=LlamaForCausalLM, **settings):
    model = kind(LlamaConfig(**LLAMA, **settings)).eval()
    model.save_pretrained(folder)
    return model


def bert(folder, kind):
    model = kind(BertConfig(**BERT)).eval()
    model.save_pretrained(folder)
    return model


def edit(folder, change=None, drop=(), **config):
    """Tensors of a folder changed or left out, and settings of its configuration changed."""
    tensors = load_file(folder / "model.safetensors")
    found = {name: x for name, x in tensors.items() if not name.endswith(tuple(drop) or ("\0",))}
    found |= {} if change is None else change(tensors)
    found = {name: x.contiguous() for name, x in found.items()}
    save_file(found, folder / "model.safetensors", metadata={"format": "pt"})
    plain = json.loads((folder / "config.json").read_text()) | config
    (folder / "config.json").write_text(
        json.dumps({key: x for key, x in plain.items() if x is not None})
    )


def ones(*names, dtype=torch.float32):
    return lambda _: {name: torch.ones(1, dtype=dtype) for name in names}


def packed(bits):
    """Weights of projections replaced, as a tool stores them, by tensors of other names."""
    return lambda tensors: {
        f"{name.removesuffix('.weight')}.{end}": torch.ones(2, 2, dtype=torch.int32)
        for name in tensors
        if name.endswith("proj.weight")
        for end in bits
    }


SPOILT = {
    "biases that the settings deny": (
        {"attention_bias": False},
        r"no place for 'model\.layers\.0\.self_attn\.k_proj\.bias' and 7 more",
    ),
    "biases that the files lack": (
        {"attention_bias": True},
        r"lack 'model\.layers\.0\.self_attn\.k_proj\.bias' and 7 more",
    ),
    "a norm of each head": (
        {"change": ones("model.layers.0.self_attn.q_norm.weight")},
        r"no place for 'model\.layers\.0\.self_attn\.q_norm\.weight'",
    ),
    "something of its own": ({"change": ones("extra.weight")}, "no place for 'extra.weight'"),
    "a bias of the head": ({"change": ones("lm_head.bias")}, "no place for 'lm_head.bias'"),
    "scales": (
        {"change": ones(f"{QUERY}.weight_scale", f"{QUERY}.input_scale")},
        rf"codes of compressed-tensors or ModelOpt, such as '{QUERY}\.(weight|input)_scale'",
    ),
    "words of codes": (
        {
            "change": packed(("weight_packed", "weight_scale", "weight_shape")),
            "drop": ("proj.weight",),
        },
        "codes of compressed-tensors",
    ),
    "words of GPTQ": (
        {"change": packed(("qweight", "qzeros", "scales", "g_idx")), "drop": ("proj.weight",)},
        "codes of GPTQ or AWQ, such as .* no quantization_config",
    ),
    "integers": (
        {"change": lambda t: {f"{QUERY}.weight": t[f"{QUERY}.weight"].to(torch.int8)}},
        rf"'{QUERY}\.weight' has integers \(I8\)",
    ),
    "truth values": (
        {"change": lambda t: {f"{QUERY}.weight": t[f"{QUERY}.weight"] > 0}},
        rf"'{QUERY}\.weight' has truth values \(BOOL\)",
    ),
    "no weight of one layer": ({"drop": (f"{QUERY}.weight",)}, f"lack '{QUERY}.weight'"),
    "no norm": ({"drop": ("model.norm.weight",)}, "lack 'model.norm.weight'"),
    "no embedding": ({"drop": ("embed_tokens.weight",)}, "lack 'model.embed_tokens.weight'"),
    "no head": ({"drop": ("lm_head.weight",)}, "lack 'lm_head.weight'"),
    "an unknown method": (
        {"quantization_config": {"quant_method": "foo"}},
        "neither chop nor transformers supports the quant_method 'foo'",
    ),
    "no method": ({"quantization_config": {"bits": 4}}, "expected an object with a quant_method"),
}
NEW_HEAD = [case for case in SPOILT if case not in ("a bias of the head", "no head")]


@pytest.mark.sampled(15)
@pytest.mark.parametrize(
    ("case", "labels"), [*((x, None) for x in SPOILT), *((x, 3) for x in NEW_HEAD)]
)
def test_what_would_change_the_answers_is_named(case, labels, tmp_path):
    spoilt, message = SPOILT[case]
    llama(tmp_path, attention_bias=case == "biases that the settings deny")
    edit(tmp_path, **spoilt)
    with pytest.raises((CheckpointError, ConfigError), match=message) as caught:
        load_model(tmp_path, num_labels=labels)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("case", [case for case in SPOILT if not case.startswith("no ")])
def test_folders_that_are_read_in_parts_are_held_to_the_same(case, tmp_path):
    spoilt, message = SPOILT[case]
    llama(tmp_path, attention_bias=case == "biases that the settings deny")
    edit(tmp_path, **spoilt)
    with pytest.raises((CheckpointError, ConfigError), match=f"{message}|lacks the model's tensor"):
        weights_source(meta_model(tmp_path), tmp_path)


def test_codes_are_not_packed_again(tmp_path):
    llama(tmp_path)
    edit(tmp_path, packed(("weight_packed", "weight_scale")), drop=("proj.weight",))
    with pytest.raises(CheckpointError, match="no quantization_config says how to decode them"):
        LlamaForCausalLM.from_pretrained(tmp_path, quantization_config=ChopConfig("mxint8"))


def of_shape(name, *shape):
    return {"change": lambda tensors: {name: torch.randn(shape)}}


UNPACKED = {
    "biases": ({"attention_bias": True}, "lack 'model.layers.0.self_attn.k_proj.bias' and 7 more"),
    "rows of the head": (
        of_shape("lm_head.weight", 35, 8),
        r"'lm_head.weight' has the shape \[35, 8\], config.json has \[32, 8\]",
    ),
    "one row": (
        of_shape(f"{QUERY}.weight", 1, 8),
        rf"'{QUERY}.weight' has the shape \[1, 8\], config.json has \[8, 8\]",
    ),
    "rows of the table": (
        of_shape("model.embed_tokens.weight", 35, 8),
        r"'model.embed_tokens.weight' has the shape \[35, 8\], config.json has \[32, 8\]",
    ),
    "integers": SPOILT["integers"],
    "truth values": SPOILT["truth values"],
    "no numbers": (
        {"change": lambda t: {f"{QUERY}.weight": t[f"{QUERY}.weight"] * torch.nan}},
        f"'{QUERY}' has weights that are not finite",
    ),
}


LEFT = ("a norm of each head", "something of its own", "a bias of the head")
LEFT += ("no weight of one layer", "no norm", "no embedding", "no head")
UNPACKED |= {case: SPOILT[case] for case in LEFT}
WAYS = [(case, False) for case in UNPACKED]
WAYS += [(case, True) for case in UNPACKED if case not in ("integers", "truth values")]


@pytest.mark.sampled(5)
@pytest.mark.parametrize("case, pickled", WAYS)
def test_what_is_packed_on_loading_is_held_to_the_same(case, pickled, tmp_path):
    spoilt, message = UNPACKED[case]
    llama(tmp_path)
    edit(tmp_path, **spoilt)
    if pickled:
        file = tmp_path / "model.safetensors"
        torch.save(load_file(file), tmp_path / "pytorch_model.bin")
        file.unlink()
    with pytest.raises((CheckpointError, ConfigError), match=message):
        LlamaForCausalLM.from_pretrained(tmp_path, quantization_config=ChopConfig("mxint8"))


@pytest.mark.parametrize("case", ["no norm", "something of its own", "biases"])
def test_layers_that_stay_float_are_held_to_the_same(case, tmp_path):
    spoilt, message = UNPACKED[case]
    llama(tmp_path)
    edit(tmp_path, **spoilt)
    few = ChopConfig("mxint8", operators="embedding")
    with pytest.raises(CheckpointError, match=message):
        LlamaForCausalLM.from_pretrained(tmp_path, quantization_config=few)


def renamed(tensors):
    return {f"old.{name}": x for name, x in tensors.items()}


def test_what_may_be_left_is_left_when_layers_are_packed(tmp_path):
    """New and other heads, tied ones, and names that the caller maps."""
    given = {"quantization_config": ChopConfig("mxint8")}
    bert(tmp_path / "bert", BertForPreTraining)
    new = BertForSequenceClassification.from_pretrained(tmp_path / "bert", **given)
    assert isinstance(new.bert.encoder.layer[0].output.dense, PackedLinear)
    assert type(BertModel.from_pretrained(tmp_path / "bert", **given)) is BertModel
    llama(tmp_path / "body", LlamaModel)
    LlamaForCausalLM.from_pretrained(tmp_path / "body", **given)
    llama(tmp_path / "tied", tie_word_embeddings=True)
    LlamaForCausalLM.from_pretrained(tmp_path / "tied", **given)
    expected = llama(tmp_path / "renamed").state_dict()["model.norm.weight"]
    edit(tmp_path / "renamed", renamed, drop=("weight",))
    mapping = {r"^old\.": ""}
    found = LlamaForCausalLM.from_pretrained(tmp_path / "renamed", **given, key_mapping=mapping)
    assert torch.equal(found.model.norm.weight, expected)
    assert not given["quantization_config"].modules  # of the caller, for all of these models
    assert found.config.quantization_config.modules and isinstance(found.lm_head, PackedLinear)


def test_a_head_of_another_size_is_drawn_where_that_is_asked_for(tmp_path):
    bert(tmp_path, BertForSequenceClassification)
    given = {"quantization_config": ChopConfig("mxint8"), "num_labels": 5}
    kind = BertForSequenceClassification
    with pytest.raises(RuntimeError, match="ignore_mismatched_sizes"):
        kind.from_pretrained(tmp_path, **given)
    model = kind.from_pretrained(tmp_path, **given, ignore_mismatched_sizes=True)
    assert model.classifier.weight.shape == (5, 8)
    assert not model.classifier.bias.any() and model.classifier.weight.std() < 0.1
    assert isinstance(model.bert.pooler.dense, PackedLinear)


def test_a_bias_that_files_may_lack_is_zero(tmp_path):
    class Lenient(LlamaForCausalLM):
        _keys_to_ignore_on_load_missing = (r"_proj\.bias$",)

    llama(tmp_path)
    edit(tmp_path, attention_bias=True)
    junk = [torch.full((8,), 7e3) for _ in range(200)]
    del junk
    model = Lenient.from_pretrained(tmp_path, quantization_config=ChopConfig("mxint8"))
    biases = [x for name, x in model.named_parameters() if name.endswith("bias")]
    assert len(biases) == 8 and not any(x.any() for x in biases)


def said(caplog):
    return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]


def test_a_new_head_is_named_and_so_is_the_old_one(tmp_path, caplog):
    model = bert(tmp_path, BertForPreTraining)
    classifier = load_model(tmp_path, num_labels=3)
    (note,) = said(caplog)
    assert "drawn at random, not read: classifier.bias, classifier.weight" in note
    assert "no place in a BertForSequenceClassification: cls.predictions.bias" in note
    table = model.bert.embeddings.word_embeddings.weight
    assert torch.equal(classifier.bert.embeddings.word_embeddings.weight, table)
    again = load_model(str(tmp_path), num_labels=3)
    assert classifier.classifier.weight.shape == (3, 8)
    assert torch.equal(classifier.classifier.weight, again.classifier.weight)


def test_a_body_without_a_head_gets_one(tmp_path, caplog):
    model = llama(tmp_path, LlamaModel)
    assert load_model(tmp_path).norm.weight.equal(model.norm.weight)
    assert said(caplog) == []
    head = load_model(tmp_path, task="text-generation")
    assert said(caplog) == [f"{tmp_path}: drawn at random, not read: lm_head.weight"]
    assert head.model.embed_tokens.weight.equal(model.embed_tokens.weight)
    load_model(tmp_path, num_labels=2)
    assert "not read: score.weight" in said(caplog)[1]


def test_parts_of_other_heads_are_left_out(tmp_path, caplog):
    """Writes files like BERT's, which say BertForMaskedLM and have all heads of its training."""
    bert(tmp_path, BertForPreTraining)
    edit(tmp_path, architectures=["BertForMaskedLM"])
    assert type(load_model(tmp_path)) is BertForMaskedLM
    (note,) = said(caplog)
    assert "not used, no place in a BertForMaskedLM: bert.pooler.dense.bias" in note
    assert "cls.seq_relationship.weight" in note
    weights_source(meta_model(tmp_path), tmp_path)
    assert "cls.seq_relationship.weight" in said(caplog)[1]


def test_other_heads_are_known_by_the_names_that_files_have(tmp_path, caplog):
    """The head of Segformer's segmentation has other names in files than in memory."""
    sizes = {"hidden_sizes": [4] * 4, "depths": [1] * 4, "num_attention_heads": [1] * 4}
    config = SegformerConfig(**sizes, decoder_hidden_size=4)
    SegformerForSemanticSegmentation(config).save_pretrained(tmp_path)
    load_model(tmp_path, num_labels=3)
    (note,) = said(caplog)
    assert "drawn at random, not read: classifier.bias" in note
    assert "not used, no place in a SegformerForImageClassification: decode_head" in note


def test_a_head_is_new_as_a_whole_or_not_at_all(tmp_path, caplog):
    bert(tmp_path, BertForSequenceClassification)
    edit(tmp_path, drop=("classifier.weight",))
    with pytest.raises(CheckpointError, match=r"lack 'classifier\.weight'"):
        load_model(tmp_path)
    edit(tmp_path, drop=("classifier.bias",))
    load_model(tmp_path)
    assert "not read: classifier.bias, classifier.weight" in said(caplog)[0]


def test_a_body_has_its_weights_whatever_the_head(tmp_path):
    bert(tmp_path, BertForMaskedLM)
    edit(tmp_path, drop=("attention.self.query.weight",))
    query = "bert.encoder.layer.0.attention.self.query.weight"
    for settings in ({}, {"num_labels": 2}, {"task": "feature-extraction"}):
        with pytest.raises(CheckpointError, match=rf"lack '(bert\.)?{query[5:]}'"):
            load_model(tmp_path, **settings)


def test_poolers_may_be_missing(tmp_path, caplog):
    config = ViTConfig(
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=8,
        image_size=8,
        patch_size=4,
    )
    ViTModel(config).save_pretrained(tmp_path)
    edit(tmp_path, drop=("pooler.dense.weight", "pooler.dense.bias"))
    load_model(tmp_path)
    assert "not read: pooler.dense.bias, pooler.dense.weight" in said(caplog)[0]


def old_buffers(tensors):
    mask = torch.ones(1, 1, 8, 8).tril()
    return {"transformer.h.0.attn.bias": mask, "transformer.h.0.attn.masked_bias": torch.ones(())}


def test_buffers_of_older_releases_are_no_weights(tmp_path, caplog):
    config = {"vocab_size": 16, "n_embd": 4, "n_layer": 1, "n_head": 1, "n_positions": 8}
    special = {"bos_token_id": 1, "eos_token_id": 2}
    model = GPT2LMHeadModel(GPT2Config(**config, **special)).eval()
    model.save_pretrained(tmp_path)
    edit(tmp_path, old_buffers)
    ids = torch.arange(6)[None]
    assert torch.equal(load_model(tmp_path)(ids).logits, model(ids).logits)
    weights_source(meta_model(tmp_path), tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = {x.removeprefix("transformer."): y for x, y in load_file(file).items()}
    save_file(tensors, file, metadata={"format": "pt"})  # as the first files of GPT-2
    assert torch.equal(load_model(tmp_path)(ids).logits, model(ids).logits)
    bert(tmp_path / "bert", BertModel)
    edit(tmp_path / "bert", lambda _: {"embeddings.position_ids": torch.arange(512)[None]})
    load_model(tmp_path / "bert")
    assert said(caplog) == []


def test_tied_heads_may_be_there_or_not(tmp_path, caplog):
    model = llama(tmp_path, tie_word_embeddings=True)
    assert "lm_head.weight" not in load_file(tmp_path / "model.safetensors")
    ids = torch.arange(6)[None]
    assert torch.equal(load_model(tmp_path)(ids).logits, model(ids).logits)
    edit(tmp_path, lambda t: {"lm_head.weight": t["model.embed_tokens.weight"].clone()})
    loaded = load_model(tmp_path)
    assert loaded.lm_head.weight is loaded.model.embed_tokens.weight
    assert said(caplog) == []


def test_floats_of_8_bits_are_taken_as_they_are_and_named(tmp_path, caplog):
    model, weight = llama(tmp_path), f"{QUERY}.weight"
    edit(tmp_path, lambda t: {weight: t[weight].to(torch.float8_e4m3fn)})
    loaded = load_model(tmp_path)
    expected = model.get_parameter(weight).to(torch.float8_e4m3fn).float()
    assert torch.equal(loaded.get_parameter(weight).float(), expected)
    assert said(caplog) == [f"{tmp_path}: 8-bit floats without scales, used unscaled: {weight}"]


def test_warnings_of_transformers_are_not_switched_off(tmp_path, caplog):
    llama(tmp_path, tie_word_embeddings=True)
    edit(tmp_path, lambda t: {"lm_head.weight": t["model.embed_tokens.weight"] + 1})
    load_model(tmp_path, num_labels=2)
    assert not any("LOAD REPORT" in text for text in said(caplog))
    loaded = load_model(tmp_path)
    assert any("we will NOT tie" in text for text in said(caplog))
    assert not torch.equal(loaded.lm_head.weight, loaded.model.embed_tokens.weight)


@pytest.mark.parametrize(
    ("name", "tool"),
    [
        ("a.weight_scale_2", "compressed-tensors or ModelOpt"),
        ("a.weight_scale_inv", "DeepSeek's FP8"),
        ("a.qzeros", "GPTQ or AWQ"),
        ("a.weight.absmax", "bitsandbytes"),
        ("a.k_proj.k_scale", "a quantized cache of keys and values"),
        ("a.weight", None),
        ("scale", None),
    ],
)
def test_tools_are_known_by_the_ends_of_names(name, tool):
    assert find_tool(name) == tool
