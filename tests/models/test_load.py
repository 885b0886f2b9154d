import json
import re
import time
from pathlib import Path

import pytest
import torch
from transformers import BertConfig, BertForMaskedLM, GPT2Config, GPT2LMHeadModel, LlamaConfig

from chop.base.trust import trust_code
from chop.errors import CheckpointError, ConfigError, UnavailableError
from chop.models import load_model
from chop.runs.manifest import Manifest, write_manifest
from chop.workloads.checkpoint import load_checkpoint
from chop.workloads.settings import WorkloadConfig

TINY = {
    "vocab_size": 40,
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
}


@pytest.fixture
def fresh_warnings(monkeypatch):
    monkeypatch.setattr("chop.base.notices._GIVEN", set())


@pytest.fixture
def masked_lm(tmp_path):
    model = BertForMaskedLM(BertConfig(**TINY)).eval()
    model.save_pretrained(tmp_path)
    return tmp_path, model


def test_a_folder_gives_the_class_and_weights_that_were_saved(masked_lm):
    folder, model = masked_lm
    loaded = load_model(folder)
    ids = torch.randint(0, 40, (2, 5))
    assert type(loaded) is BertForMaskedLM and not loaded.training
    assert torch.equal(loaded(ids).logits, model(ids).logits)


def test_the_task_and_fresh_weights_can_be_chosen(tmp_path):
    config = GPT2Config(vocab_size=40, n_embd=8, n_layer=1, n_head=2, n_positions=16)
    config.save_pretrained(tmp_path)
    model = load_model(tmp_path, task="text-generation", pretrained=False)
    assert type(model) is GPT2LMHeadModel
    assert model(torch.tensor([[1, 2]])).logits.shape == (1, 2, 40)
    with pytest.raises(UnavailableError, match="weights not found there; .*pretrained=False"):
        load_model(tmp_path, task="text-generation")


def test_fresh_weights_of_the_class_that_the_checkpoint_names(masked_lm):
    folder, model = masked_lm
    fresh = load_model(folder, pretrained=False, seed=5)
    assert type(fresh) is BertForMaskedLM
    trunk = model.bert.encoder.layer[0].output.dense.weight
    assert not torch.equal(fresh.bert.encoder.layer[0].output.dense.weight, trunk)


def test_weights_that_were_cut_short_are_refused(masked_lm):
    folder, _ = masked_lm
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match="the weights cannot be read"):
        load_model(folder)


def test_files_that_an_index_lists_are_named_if_they_are_missing(masked_lm):
    folder, model = masked_lm
    (folder / "model.safetensors").unlink()
    model.save_pretrained(folder, max_shard_size="4KB")
    lost = sorted(folder.glob("model-*.safetensors"))[1]
    lost.unlink()
    with pytest.raises(CheckpointError, match=f"lacks 1 of the .* the first is '{lost.name}'"):
        load_model(folder)


def test_weights_of_another_size_than_the_configuration_are_refused(masked_lm):
    folder, _ = masked_lm
    BertConfig(**{**TINY, "hidden_size": 12}, architectures=["BertForMaskedLM"]).save_pretrained(
        folder
    )
    with pytest.raises(CheckpointError, match="the weights cannot be read"):
        load_model(folder)


def test_bad_names_are_one_sentence_and_quick(tmp_path):
    start = time.perf_counter()
    with pytest.raises(UnavailableError, match=r"'vitt': .* did you mean 'vit'\?") as caught:
        load_model("vitt")
    assert "\n" not in str(caught.value)
    with pytest.raises(UnavailableError, match="hub cannot be reached"):
        load_model("prajjwal1/bert-tiny")
    assert time.perf_counter() - start < 10
    with pytest.raises(ConfigError, match=r"contains no model: expected a config\.json"):
        load_model(tmp_path)
    (tmp_path / "manifest.json").write_text("{}")
    with pytest.raises(ConfigError, match="its run saved none, or did not finish; expected"):
        load_model(tmp_path)
    with pytest.raises(UnavailableError, match="'no such thing': a model not found"):
        load_model("no such thing")


@pytest.mark.parametrize(
    "task, loader",
    [
        ("CAUSAL_LM", "AutoPeftModelForCausalLM"),
        ("SEQ_CLS", "AutoPeftModelForSequenceClassification"),
        (None, "AutoPeftModel"),
    ],
)
def test_an_adapter_without_its_base_model_is_to_be_merged(tmp_path, task, loader):
    settings = {"peft_type": "LORA", "base_model_name_or_path": "org/base", "task_type": task}
    (tmp_path / "adapter_config.json").write_text(json.dumps(settings))
    with pytest.raises(ConfigError, match="PEFT adapter for the base model 'org/base'") as caught:
        load_model(str(tmp_path))
    assert f"peft.{loader}.from_pretrained('{tmp_path}').merge_and_unload()" in str(caught.value)
    assert "There is no folder" not in str(caught.value)  # a name of the hub


@pytest.mark.parametrize("has_config", [False, True])
def test_an_adapter_whose_base_folder_was_moved_says_so(tmp_path, has_config):
    if has_config:
        LlamaConfig(num_hidden_layers=1, architectures=["LlamaForCausalLM"]).save_pretrained(
            tmp_path
        )
    settings = {"peft_type": "LORA", "base_model_name_or_path": "./base"}
    (tmp_path / "adapter_config.json").write_text(json.dumps(settings))
    moved = r"There is no folder './base': correct base_model_name_or_path in '.*adapter_config"
    with pytest.raises(ConfigError, match=moved):
        load_model(str(tmp_path))


def test_a_run_with_a_transformers_folder_names_it(tmp_path):
    """The output folder of `chop prune` has its model in `model/`."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    manifest = tmp_path / "manifest.json"
    write_manifest(manifest, Manifest("prune", {}, "finished", "a:1:2"))
    config = WorkloadConfig(model=str(tmp_path), dataset="rows.csv", out=tmp_path / "out")
    for read in (lambda: load_model(str(tmp_path)), lambda: load_checkpoint(config)):
        with pytest.raises(ConfigError, match=f"pass its model '{tmp_path / 'model'}'"):
            read()
    write_manifest(manifest, Manifest("compress", {}, "finished", "a:1:2"))
    with pytest.raises(ConfigError, match="chop compress .* shows which model it contains"):
        load_checkpoint(config)
    (tmp_path / "model.mz").touch()
    write_manifest(manifest, Manifest("compress", {"model": "llama"}, "finished", "a:1:2"))
    with pytest.raises(ConfigError, match="quantized model in it; pass the float model, llama;"):
        load_model(str(tmp_path))


@pytest.mark.parametrize(
    "kind, settings, expected",
    [
        ("search precision", {}, "chop search export {folder} best.toml"),
        (
            "search precision",
            {"storage": "sqlite:////data/x.db"},
            "chop search export sqlite:////data/x.db --name a best.toml",
        ),
        (
            "search precision",
            {"model": "net.py:Net"},
            "best.toml --trust-code, then chop compress --config best.toml --trust-code;",
        ),
        ("search nas", {}, "its best models in '{folder}/best'"),
    ],
)
def test_the_folder_of_a_search_names_the_way_to_its_models(kind, settings, expected, tmp_path):
    folder = tmp_path / "a"
    (folder / "best").mkdir(parents=True)
    write_manifest(folder / "manifest.json", Manifest(kind, settings, "finished", "a:1:2"))
    with pytest.raises(ConfigError) as error:
        load_model(folder)
    assert expected.format(folder=folder) in str(error.value)
    (tmp_path / "config.json").write_text('{"model_type": "brt"}')
    with pytest.raises(ConfigError, match="contains no known model: .*brt"):
        load_model(tmp_path)
    with pytest.raises(ConfigError, match="unknown task 'fill-msak': did you mean 'fill-mask'"):
        load_model("mlp", task="fill-msak")
    with pytest.raises(ConfigError, match="did you mean 'num_labels'"):
        load_model("mlp", num_label=3)


@pytest.mark.data
def test_the_real_checkpoint_of_the_course(data_folder):
    model = load_model(data_folder / "bert-tiny-imdb")
    assert type(model).__name__ == "BertForSequenceClassification"
    assert model.config.num_labels == 2
    with pytest.raises(UnavailableError, match="weights not found there"):
        load_model(data_folder / "bert-tiny")
    fresh = load_model(data_folder / "bert-tiny", num_labels=2, pretrained=False)
    assert fresh(torch.tensor([[101, 102]])).logits.shape == (1, 2)


EDITS = {
    "another size": ({"hidden_size": 16}, CheckpointError, "do not fit its config.json: 'bert"),
    "another vocabulary": ({"vocab_size": 50}, CheckpointError, r"\[40, 8\], expected \[50, 8\]"),
    "a quantizer that is not there": (
        {"quantization_config": {"quant_method": "aqlm"}},
        ConfigError,
        "transformers cannot build the model: ",
    ),
    "an unknown dtype": ({"dtype": "bf16"}, ConfigError, "'dtype' is 'bf16': did you mean 'bfl"),
    "an unknown activation": (
        {"hidden_act": "swiglu"},
        ConfigError,
        "config.json: hidden_act 'swiglu' is unknown to it",
    ),
    "no classifier": (
        {"model_type": "wav2vec2", "architectures": ["Wav2Vec2ForCTC"]},
        ConfigError,
        "transformers cannot build the model: Unrecognized configuration class",
    ),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("edit", EDITS)
def test_a_classifier_of_a_folder_that_has_none_is_one_sentence(masked_lm, edit):
    (folder, _), (changes, kind, message) = masked_lm, EDITS[edit]
    config = folder / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), **changes}))
    with pytest.raises(kind, match=message) as caught:
        load_model(folder, num_labels=3)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 400


@pytest.mark.parametrize(
    "name, message",
    [
        ("net.py", "'net.py' is a file: pass its class as well, such as net.py:Net"),
        ("small.pt", r"'small.pt' is a checkpoint of chop: .*from_checkpoint\('small'\)"),
        ("small", r"'small' is a checkpoint of chop: .*from_checkpoint\('small'\)"),
        ("net:Net", "did you mean 'net.py:Net'"),
        ("net.Net", "did you mean 'net.py:Net'"),
        ("folder.net.Net", "did you mean 'folder/net.py:Net'"),
        ("trained.pt", "file.py:Net .*--weights trained.pt"),
        ("book.ipynb", "is a notebook, and a class has to be in a .py file: .*pass book.py:Net"),
        ("book.ipynb:Big", "is a notebook, and a class .*pass book.py:Big"),
        ("none.pyc:Big", "is compiled Python, and a class .*pass none.py:Big"),
        ("trained.pt:Big", "is a file of weights.*pass trained.py:Big --weights trained.pt"),
        ("folder/nt.py2", "not found .*did you mean 'folder/net.py'"),
        ("tim:resnet18", "as in tim.py:resnet18, and a timm model is timm:NAME"),
    ],
)
def test_files_that_are_no_models_say_how_they_are_used(tmp_path, monkeypatch, name, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    for file in ("net.py", "trained.pt", "small.mz", "folder/net.py", "book.ipynb"):
        (tmp_path / file).write_text("")
    with pytest.raises((ConfigError, UnavailableError), match=message):
        load_model(name)


KERNELS = "somebody/attention:attend"


@pytest.mark.parametrize(
    "settings",
    [
        {"_attn_implementation": KERNELS},
        {"attn_implementation": KERNELS},
        {"_experts_implementation": "somebody/experts"},
        {"attn_implementation": {"": KERNELS}},
        {"_attn_implementation": "paged|somebody/attention"},
        {"_attn_implementation": "flash_attention_3"},
    ],
)
@pytest.mark.parametrize("pretrained", [True, False])
def test_implementations_that_would_be_fetched_are_left_out(
    settings, pretrained, masked_lm, monkeypatch, fresh_warnings
):
    folder, model = masked_lm

    def fetched(*given, **named):
        raise AssertionError(f"a kernel is fetched: {given}")

    for name in ("get_kernel", "load_and_register_attn_kernel"):
        monkeypatch.setattr(f"transformers.integrations.hub_kernels.{name}", fetched)
    document = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(document | settings))
    with pytest.warns(UserWarning, match="implementation .*, which would be fetched as code"):
        loaded = load_model(folder, pretrained=pretrained)
    ids = torch.randint(0, 40, (2, 5))
    assert loaded.config._attn_implementation in ("sdpa", "eager")
    if pretrained:
        assert torch.equal(loaded(ids).logits, model(ids).logits)


def test_implementations_of_this_machine_stay(masked_lm):
    folder, _ = masked_lm
    document = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(document | {"_attn_implementation": "eager"}))
    assert load_model(folder).config._attn_implementation == "eager"


def test_a_config_inside_another_fetches_nothing(masked_lm, fresh_warnings):
    from transformers import CLIPConfig

    from chop.ir.huggingface.config_file import without_fetched_code

    config = CLIPConfig()
    config.vision_config._attn_implementation = KERNELS
    config.itself = [config]
    with pytest.warns(UserWarning, match="fetched as code"):
        without_fetched_code(config, "x")
    assert config.vision_config._attn_implementation is None


@pytest.mark.parametrize("is_inside", [False, True])
def test_kernels_of_the_hub_are_refused_before_transformers_acts(is_inside, monkeypatch):
    from transformers import CLIPConfig, RwkvConfig

    from chop.ir.huggingface.config_file import KERNEL_METHODS, without_fetched_code

    def config(method):
        config = CLIPConfig()
        inner = config.text_config if is_inside else config
        inner.quantization_config = {"quant_method": method}
        return config

    without_fetched_code(config("eetq"), "x")  # the package is missing: transformers says so
    monkeypatch.setattr("transformers.utils.is_kernels_available", lambda: True)
    asked = {f"quant_method '{name}'": config(name) for name in KERNEL_METHODS}
    for said, each in {**asked, "model_type 'rwkv'": RwkvConfig(num_hidden_layers=1)}.items():
        with pytest.raises(ConfigError, match=f"^x: config.json has the {said}.*--trust-code"):
            without_fetched_code(each, "x")
        with trust_code():
            without_fetched_code(each, "x")
    for method in ("bitsandbytes", "torchao", "compressed-tensors", ["eetq"], None):
        without_fetched_code(config(method), "x")


def test_a_folder_with_kernels_of_the_hub_is_one_sentence(masked_lm, monkeypatch):
    folder, _ = masked_lm
    path = folder / "config.json"
    document = json.loads(path.read_text()) | {"quantization_config": {"quant_method": "mxfp4"}}
    path.write_text(json.dumps(document))
    monkeypatch.setattr("transformers.utils.is_kernels_available", lambda: True)
    for pretrained in (True, False):
        with pytest.raises(ConfigError, match=r"quant_method 'mxfp4', for which .* uninstall"):
            load_model(folder, pretrained=pretrained)


@pytest.mark.long
def test_what_fetches_kernels_in_transformers_is_known():
    import transformers

    from chop.ir.huggingface.config_file import KERNEL_METHODS, KERNEL_MODELS

    home = Path(transformers.__file__).parent
    calls = re.compile(r"\b(lazy_load_kernel|get_kernel)\(")
    named = {
        path.relative_to(home).as_posix()
        for path in (*home.glob("models/*/modeling_*.py"), *home.glob("integrations/**/*.py"))
        if calls.search(path.read_text(encoding="utf-8"))
    }
    by_method = {"finegrained_fp8": {"fp8", "mxfp8"}, "metal_quantization": {"metal"}}
    by_method["gguf/kernels"] = {"gguf"}
    for name in ("eetq", "fbgemm_fp8", "mxfp4", "nvfp4"):
        by_method[name] = {name}
    assert set().union(*by_method.values()) == KERNEL_METHODS
    # Implementations of attention and experts, which `without_fetched_code` leaves out.
    chosen = {"hub_kernels", "deepgemm", "msa_attention", "sonicmoe"}
    known = {f"integrations/{name}.py" for name in {*by_method, *chosen}}
    assert named <= known | {f"models/{name}/modeling_{name}.py" for name in KERNEL_MODELS}
