"""Folders that transformers loads, and what it needs of its private API."""

import json
import shutil
import warnings

import pytest
import torch
from safetensors.torch import load_file, save_file

from chop import ChopConfig, MaseGraph, passes, quantize
from chop.errors import CheckpointError, ConfigError
from chop.formats import parse_format_string
from chop.nn.packed import PackedEmbedding, PackedLinear, PackedOperator
from tests import programs
from tests.ir import decoders

transformers = pytest.importorskip("transformers")
IDS = torch.tensor([[5, 6, 7, 8], [9, 8, 7, 6]])
MASK = torch.ones_like(IDS)
WEIGHT = {"config": {"weight": {"name": "mxint"}}}
CAUSAL = transformers.AutoModelForCausalLM
FRESH = """
import sys, torch, chop
from transformers import AutoModelForCausalLM
torch.set_num_threads(1)
model = AutoModelForCausalLM.from_pretrained(sys.argv[1])
torch.save(model(torch.tensor([[5, 6, 7, 8], [9, 8, 7, 6]])).logits, sys.argv[2])
"""


def decoder(kind):
    return decoders.decoder(kind, intermediate_size=128, tie_word_embeddings=True)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """By kind: the float model, the packed graph and its folder."""
    home, found = tmp_path_factory.mktemp("folders"), {}
    for kind in ("llama", "gpt2"):
        model = decoder(kind)
        mg, _ = passes.quantize_transform_pass(
            MaseGraph(model), {"linear": WEIGHT, "embedding": WEIGHT}
        )
        mg, _ = passes.pack_transform_pass(mg, {"silent": True})
        mg.save_pretrained(home / kind)
        model.save_pretrained(home / f"{kind}-float")
        found[kind] = model, mg, home / kind
    return found


@pytest.mark.parametrize(
    "fmt", ["group_affine:width=4", "group_integer:width=3", "nvfp4", "mxfp:width=4", "8.auto"]
)
@pytest.mark.long
def test_formats_that_look_at_values_are_read_from_folders(made, fmt, tmp_path):
    given = CAUSAL.from_pretrained(
        made["llama"][2].with_name("llama-float"), quantization_config=ChopConfig(fmt)
    )
    given.save_pretrained(tmp_path)
    read = CAUSAL.from_pretrained(tmp_path)
    assert torch.equal(read(IDS).logits, given(IDS).logits)


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
@pytest.mark.long
def test_what_is_saved_is_loaded_packed_and_tied(made, kind, tmp_path):
    _, mg, folder = made[kind]
    expected = mg.model(IDS, MASK).logits
    model, info = CAUSAL.from_pretrained(folder, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    assert torch.equal(model(IDS).logits, expected)
    head, table = model.get_output_embeddings(), model.get_input_embeddings()
    assert (type(head), type(table)) == (PackedLinear, PackedEmbedding)
    assert head.weight_codes is table.weight_codes
    model.tie_weights()
    assert head.weight_codes is table.weight_codes
    floats = sum(x.numel() for x in model.parameters())
    assert floats < 0.02 * sum(x.numel() for x in made[kind][0].parameters())
    model.save_pretrained(tmp_path / "again")
    again = CAUSAL.from_pretrained(tmp_path / "again")
    assert torch.equal(again(IDS).logits, expected)
    body = transformers.AutoModel.from_pretrained(folder)
    hidden = body(IDS).last_hidden_state
    assert torch.equal(hidden, getattr(model, model.base_model_prefix)(IDS).last_hidden_state)


def test_a_fresh_process_computes_the_same_bits(made, tmp_path):
    _, mg, folder = made["llama"]
    script = tmp_path / "fresh.py"
    script.write_text(FRESH)
    done = programs.run(script, folder, tmp_path / "logits.pt")
    assert done.returncode == 0, done.stderr
    assert torch.equal(torch.load(tmp_path / "logits.pt"), mg.model(IDS, MASK).logits)


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_weights_are_packed_while_they_are_read(made, kind, tmp_path):
    _, mg, folder = made[kind]
    config = ChopConfig("mxint8")
    model = CAUSAL.from_pretrained(f"{folder}-float", quantization_config=config)
    assert torch.equal(model(IDS).logits, mg.model(IDS, MASK).logits)
    assert model.get_output_embeddings().weight_codes is (model.get_input_embeddings().weight_codes)
    model.save_pretrained(tmp_path)
    assert torch.equal(CAUSAL.from_pretrained(tmp_path)(IDS).logits, model(IDS).logits)
    # What is tied to a layer that stays float stays float.
    config = ChopConfig("mxint4", data_in="8.auto", operators=["linear"], skip=["lm_head"])
    model = CAUSAL.from_pretrained(f"{folder}-float", quantization_config=config)
    kinds = {type(module).__name__ for module in model.modules()}
    assert "PackedLinear" in kinds and "PackedEmbedding" not in kinds and "Embedding" in kinds
    with pytest.raises(ConfigError, match=r"no module 'lm_haed'.*lm_head"):
        config = ChopConfig("mxint4", skip=["lm_haed"])
        CAUSAL.from_pretrained(f"{folder}-float", quantization_config=config)


LEFT = {"model.layers.0": 7, "layers.0.mlp": 3, "self_attn": 4, "q_proj": 1, "layers": 7}


@pytest.mark.parametrize("entry", LEFT)
def test_modules_are_left_with_all_in_them(made, entry):
    config = ChopConfig("mxint8", skip=[entry])
    model = CAUSAL.from_pretrained(f"{made['llama'][2]}-float", quantization_config=config)
    left = [path for path, module in model.named_modules() if type(module) is torch.nn.Linear]
    assert len(left) == LEFT[entry] and all(f".{entry}" in f".{path}" for path in left)


def test_formats_of_a_folder_are_kept_with_a_warning(made):
    config, folder = ChopConfig("mxint4"), made["llama"][2]
    with pytest.warns(UserWarning, match="The `quantization_config` from the model will be used"):
        model = CAUSAL.from_pretrained(folder, quantization_config=config)
    assert model.model.layers[0].mlp.up_proj.spec.weight.width == 8


def test_another_dtype_keeps_scales_and_codes(made):
    model = CAUSAL.from_pretrained(made["llama"][2], dtype=torch.bfloat16)
    layer = model.model.layers[0].mlp.up_proj
    assert layer.weight.dtype == torch.bfloat16 == model(IDS).logits.dtype
    assert layer.weight_codes.dtype == torch.uint8


@pytest.mark.parametrize(
    ("kind", "format", "dtype"),
    [
        ("llama", "mxint8", torch.bfloat16),
        ("gpt2", "group_integer8", torch.bfloat16),
        ("llama", "mxfp:width=4:exponent_width=2", torch.float16),
        ("gpt2", "mxint8", torch.float64),
    ],
)
@pytest.mark.sampled(2)
def test_weights_are_rounded_once_whatever_the_dtype(made, kind, format, dtype, tmp_path):
    folder = f"{made[kind][2]}-float"
    exact = CAUSAL.from_pretrained(folder, quantization_config=ChopConfig(format))
    model = CAUSAL.from_pretrained(folder, quantization_config=ChopConfig(format), dtype=dtype)
    codes = dict(exact.named_buffers())
    for name, buffer in model.named_buffers():
        if "codes" in name or "scales" in name:
            assert torch.equal(buffer, codes[name])
    packed = [module for module in model.modules() if isinstance(module, PackedOperator)]
    assert packed and all(module.weight.dtype == dtype for module in packed)
    assert model(IDS).logits.dtype == dtype
    assert model._keep_in_fp32_modules_strict == exact._keep_in_fp32_modules_strict
    model.save_pretrained(tmp_path)
    again = CAUSAL.from_pretrained(tmp_path, dtype=dtype)
    assert torch.equal(again(IDS).logits, model(IDS).logits)


def test_what_transformers_keeps_in_float32_computes_in_it(tmp_path):
    sizes = {"d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 1, "num_heads": 2}
    config = transformers.T5Config(vocab_size=64, **sizes)
    transformers.T5EncoderModel(config).save_pretrained(tmp_path)
    given = {"quantization_config": ChopConfig("mxint8"), "dtype": torch.float16}
    block = transformers.T5EncoderModel.from_pretrained(tmp_path, **given).encoder.block[0]
    assert block.layer[1].DenseReluDense.wo.weight.dtype == torch.float32
    assert block.layer[0].SelfAttention.q.weight.dtype == torch.float16


def test_large_models_are_split_and_older_files_go(made, tmp_path):
    _, mg, folder = made["llama"]
    shutil.copytree(folder, tmp_path / "model")
    (tmp_path / "model" / "notes.txt").write_text("mine")
    mg.save_pretrained(tmp_path / "model", max_shard_size="20KB")
    names = {file.name for file in (tmp_path / "model").iterdir()}
    assert (
        "model.safetensors" not in names and {"model.safetensors.index.json", "notes.txt"} <= names
    )
    again = CAUSAL.from_pretrained(tmp_path / "model")
    assert torch.equal(again(IDS).logits, mg.model(IDS, MASK).logits)


def test_large_files_of_unpacked_weights_are_reported(made, tmp_path, caplog):
    small = quantize(made["llama"][0], "mxint:width=4", weights_only=True)
    small.save_pretrained(tmp_path)
    assert caplog.text.count("quantized layers are written as floats, as large as before") == 1
    caplog.clear()
    made["llama"][1].save_pretrained(tmp_path / "packed")
    assert "written as floats" not in caplog.text


def test_a_card_says_how_to_load_the_folder(made, tmp_path):
    _, mg, folder = made["llama"]
    text = (folder / "README.md").read_text()
    assert "import chop" in text and "chop export FOLDER --to TARGET" in text
    assert "LlamaForCausalLM, quantized by chop" in text
    (tmp_path / "README.md").write_text("mine")
    mg.save_pretrained(tmp_path)
    assert (tmp_path / "README.md").read_text() == "mine"


def test_pipelines_run(made, tmp_path):
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = Tokenizer(models.WordLevel({f"w{n}": n for n in range(64)}, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=words, pad_token="w3")
    made["gpt2"][1].save_pretrained(tmp_path, tokenizer)
    generate = transformers.pipeline("text-generation", model=str(tmp_path))
    text = generate("w5 w6 w7", max_new_tokens=3, do_sample=False)[0]["generated_text"]
    assert text.startswith("w5 w6 w7") and isinstance(generate.model.lm_head, PackedLinear)


def test_adapters_train_on_top(made):
    peft = pytest.importorskip("peft")
    model = CAUSAL.from_pretrained(made["gpt2"][2])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        adapter = peft.LoraConfig(r=2, target_modules=["c_attn"], task_type="CAUSAL_LM")
        model = peft.get_peft_model(model, adapter).train()
    optimizer = torch.optim.SGD([x for x in model.parameters() if x.requires_grad], lr=1.0)
    losses = []
    for _ in range(3):
        loss = model(input_ids=IDS, labels=IDS).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[2] < losses[0]


def edited(folder, target, change, weights=None):
    shutil.copytree(folder, target)
    config = json.loads((target / "config.json").read_text())
    change(config["quantization_config"])
    (target / "config.json").write_text(json.dumps(config))
    if weights is not None:
        tensors = load_file(target / "model.safetensors")
        weights(tensors)
        save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})
    return target


UP = "model.layers.0.mlp.up_proj"
SETTINGS = {
    "format": (
        lambda q: q["modules"][UP]["weight"].update(name="mxnt"),
        "unknown number format 'mxnt'",
    ),
    "field": (lambda q: q["modules"][UP]["weight"].update(width=99), "width: got 99"),
    "class": (lambda q: q["modules"][UP].update({"class": "os.system"}), "unknown key 'class'"),
    "foreign": (lambda q: q.update({"module": "os"}), "unknown key 'module'.*modules"),
    "path": (
        lambda q: q["modules"].update({"model.layers.0.mlp.uproj": q["modules"].pop(UP)}),
        "LlamaForCausalLM has no module 'model.layers.0.mlp.uproj'.*up_proj",
    ),
    "layer": (
        lambda q: q["modules"].update({"model.layers.7.mlp.up_proj": q["modules"][UP]}),
        "^config.json: .* fewer layers than its quantization_config names: correct the number",
    ),
    "kind": (
        lambda q: q["modules"].update({"model.norm": q["modules"][UP]}),
        "'model.norm' is a LlamaRMSNorm, which has no quantized form",
    ),
    "half tied": (
        lambda q: q["modules"].pop("lm_head"),
        "'lm_head' and 'model.embed_tokens' share a weight",
    ),
    "two formats of one weight": (
        lambda q: q["modules"]["lm_head"]["weight"].update(width=4),
        r"have one weight, in mxint\(width=4\) and in mxint\(width=8\)",
    ),
    "unfitted": (
        lambda q: q["modules"][UP].update(
            weight={"name": "integer", "width": 8, "frac_width": "auto"}
        ),
        "up_proj'].weight: integer 8.auto needs calibration data",
    ),
    "nameless": (lambda q: q["modules"][UP]["weight"].pop("name"), "missing key 'name'"),
    "empty": (lambda q: q.update(modules={}), r"by module path, got \{\}"),
}
"""Changes of the quantization_config that are refused."""
WEIGHTS = {
    "codes without formats": (
        lambda q: q.update(format=q.pop("modules") and "mxint8"),
        None,
        "weight_codes', but its quantization_config lacks the 'modules'",
    ),
    "a module less": (
        lambda q: q["modules"].pop(UP),
        None,
        f"weights lack '{UP}.weight', which LlamaForCausalLM needs",
    ),
    "float missing": (
        lambda q: None,
        lambda tensors: tensors.pop("model.norm.weight"),
        "weights lack 'model.norm.weight'",
    ),
    "more": (
        lambda q: None,
        lambda tensors: tensors.update({f"{UP}.weight": torch.zeros(8)}),
        rf"have '{UP}.weight', for which LlamaForCausalLM has no place: did you mean",
    ),
    "missing": (
        lambda q: None,
        lambda tensors: tensors.pop(f"{UP}.weight_scales"),
        f"weights lack '{UP}.weight_scales'",
    ),
    "short": (
        lambda q: None,
        lambda tensors: tensors.update({f"{UP}.weight_codes": torch.zeros(8, dtype=torch.uint8)}),
        rf"'{UP}.weight_codes': the format .* has \[8192\] of U8, the folder's weights \[8\] of U8",
    ),
    "width": (
        lambda q: q["modules"][UP]["weight"].update(width=4),
        None,
        r"has \[4096\] of U8, the folder's weights \[8192\]",
    ),
}
"""Changes of it and of tensors after which they do not fit."""


@pytest.mark.parametrize("case", [*SETTINGS, *WEIGHTS])
@pytest.mark.sampled(3)
def test_folders_written_by_hand_are_refused_in_a_sentence(made, tmp_path, case):
    change, *weights, message = {**SETTINGS, **WEIGHTS}[case]
    folder = edited(made["llama"][2], tmp_path / "bad", change, *weights)
    with pytest.raises(ConfigError if case in SETTINGS else CheckpointError, match=message):
        CAUSAL.from_pretrained(folder)


def test_classes_and_files_from_elsewhere_are_refused(made, tmp_path):
    folder = tmp_path / "model"
    made["llama"][1].save_pretrained(folder, max_shard_size="20KB")
    index = folder / "model.safetensors.index.json"
    names, text = json.loads(index.read_text()), (folder / "config.json").read_text()
    (folder / "config.json").write_text(text.replace("LlamaForCausalLM", "os.system"))
    with pytest.raises(ConfigError, match=r"'os.system' is not a transformers class; expected"):
        CAUSAL.from_pretrained(folder)
    (folder / "config.json").write_text(text)
    shutil.copy(made["llama"][2] / "model.safetensors", tmp_path / "other.safetensors")
    for name in ("../other.safetensors", str(tmp_path / "other.safetensors")):
        weights = {**names["weight_map"], "model.norm.weight": name}
        index.write_text(json.dumps({**names, "weight_map": weights}))
        with pytest.raises(CheckpointError, match=r"other\.safetensors', which is outside of"):
            CAUSAL.from_pretrained(folder)


def test_models_with_the_same_body_take_it(made):
    kind = transformers.AutoModelForSequenceClassification
    model, info = kind.from_pretrained(made["llama"][2], num_labels=2, output_loading_info=True)
    assert info["missing_keys"] == {"score.weight"}
    expected = made["llama"][1].to_module().model(IDS).last_hidden_state
    assert torch.equal(model.model(IDS).last_hidden_state, expected)
    assert model.resize_token_embeddings(64).num_embeddings == 64
    with pytest.raises(ConfigError, match="PackedEmbedding from 64 to 70"):
        model.get_input_embeddings().num_embeddings = 70


def test_what_formats_cannot_tell_is_refused_by_name(made, tmp_path):
    model = made["llama"][0]
    adapted, _ = passes.insert_lora_adapter_transform_pass(MaseGraph(model), {"rank": 2})
    with pytest.raises(ConfigError, match=r"proj' has a LoRA adapter; fuse it"):
        adapted.save_pretrained(tmp_path)
    products = {"scaled_dot_product_attention": WEIGHT}
    mg, _ = passes.quantize_transform_pass(MaseGraph(model), products)
    with pytest.raises(ConfigError, match=r"self_attn\S+' quantizes products of an attention"):
        mg.save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="expected a Hugging Face model, got a Sequential"):
        MaseGraph(torch.nn.Sequential(torch.nn.Linear(2, 2))).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="expected a format, or the modules of a folder"):
        ChopConfig()
    with pytest.raises(ConfigError, match="operators"):
        ChopConfig("mxint", operators=["linnear"])
    for given in ("lm_head", ("lm_head",), {"lm_head"}):
        assert ChopConfig("mxint8", skip=given, operators="linear").to_dict() == {
            "quant_method": "chop",
            "format": "mxint:width=8",
            "operators": ["linear"],
            "skip": ["lm_head"],
        }
    for given in (3, [1], {"lm_head": True}):
        with pytest.raises(ConfigError, match=r"config\.skip: expected a name or a list"):
            ChopConfig("mxint8", skip=given)
    with pytest.raises(ConfigError, match="format 'fp32' cannot store weights"):
        ChopConfig("fp32")
    assert not list(tmp_path.iterdir())


@pytest.mark.long
def test_torchs_attention_in_a_model_of_transformers_loads_packed(tmp_path):
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1}
    sizes |= {"num_attention_heads": 4, "image_size": 16, "patch_size": 8}
    model = transformers.SiglipVisionModel(transformers.SiglipVisionConfig(**sizes)).eval()
    x = torch.randn(2, 3, 16, 16)
    mg = MaseGraph(model, dummy_in={"pixel_values": x})
    rules = {"by": "type", "linear": {"config": {"weight": {"name": "mxint", "width": 8}}}}
    quantized, _ = passes.quantize_transform_pass(mg, rules)
    with pytest.raises(ConfigError, match=r"'head.attention' .* run pack_transform_pass first"):
        quantized.save_pretrained(tmp_path / "quantized")
    packed, _ = passes.pack_transform_pass(quantized, {"silent": True})
    packed.save_pretrained(tmp_path / "packed")
    loaded = transformers.SiglipVisionModel.from_pretrained(tmp_path / "packed")
    assert isinstance(loaded.head.attention.q_proj, PackedLinear)
    torch.testing.assert_close(loaded(x).pooler_output, packed.model(x)["pooler_output"])


def test_no_operators_are_refused():
    with pytest.raises(ConfigError, match="at least one, or None for all"):
        ChopConfig("mxint4", operators=[])


@pytest.mark.parametrize("weight", ["mxint4", "group_integer:width=4:group_size=32"])
@pytest.mark.parametrize(
    "data_in", ["scale_integer:width=8:granularity=row", "fp8:granularity=row", "mxint8"]
)
@pytest.mark.long
def test_inputs_of_8_bits_are_those_of_the_rounded_model(made, tmp_path, weight, data_in):
    """A model is packed as it is read, and read from its folder; the graph rounds its floats."""
    model, _, folder = made["llama"]
    config = ChopConfig(weight, data_in=data_in, operators=["linear"], skip=["lm_head"])
    packed = CAUSAL.from_pretrained(f"{folder}-float", quantization_config=config)
    spec = {"weight": parse_format_string(weight), "data_in": parse_format_string(data_in)}
    rules = {"linear": {"config": spec}, "skip": ["lm_head"]}
    rounded, _ = passes.quantize_transform_pass(MaseGraph(model), {"by": "type", **rules})
    layer = packed.model.layers[0].mlp.down_proj
    assert isinstance(layer, PackedLinear) and layer.packed_bits("weight") <= 4.5
    x = torch.randn(3, 5, 128) * torch.tensor([1, 10, 0.01]).view(3, 1, 1)
    of_floats = rounded.modules["model.layers.0.mlp.down_proj"]
    weights = of_floats.quantize("weight", of_floats.weight)
    assert torch.equal(spec["weight"].decode(layer.encoded("weight")), weights)
    exact = torch.nn.functional.linear(spec["data_in"](x), weights)
    assert torch.equal(of_floats(x), exact)
    for rows in (x, x[:1, :1], x[1]):
        torch.testing.assert_close(layer(rows), of_floats(rows), rtol=0, atol=1e-5)
    assert torch.equal(packed(IDS).logits, rounded.model(IDS, MASK).logits)
    packed.save_pretrained(tmp_path)
    again = CAUSAL.from_pretrained(tmp_path)
    assert torch.equal(again(IDS).logits, packed(IDS).logits)
    told = {"max_new_tokens": 4, "do_sample": False, "attention_mask": MASK}
    assert torch.equal(again.generate(IDS, **told), rounded.model.generate(IDS, **told))
