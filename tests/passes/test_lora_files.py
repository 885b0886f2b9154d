"""Adapters as files, against the peft library: it reads ours, and we read its."""

import functools
import json
import warnings

import pytest
import torch
from torch import nn
from transformers import BertConfig, BertForSequenceClassification, LlamaConfig, LlamaForCausalLM

from chop import MaseGraph, passes
from chop.errors import CheckpointError, ConfigError, GraphError
from chop.nn.lora import list_adapters
from tests.networks import Made

peft = pytest.importorskip("peft")

DEPRECATED = ".*is_gradient_checkpointing.*"  # peft asks transformers by the old name
pytestmark = pytest.mark.filterwarnings(f"ignore:{DEPRECATED}:FutureWarning")
SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "vocab_size": 100,
    "initializer_range": 0.3,  # so that logits are of order one
}


def bert():
    torch.manual_seed(0)
    return BertForSequenceClassification(BertConfig(**SIZES)).eval()


def llama():
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**SIZES, num_key_value_heads=1, use_cache=False)).eval()


def inputs():
    torch.manual_seed(1)
    tokens = torch.randint(3, 100, (2, 7))
    return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}


def logits(model):
    with torch.no_grad():
        return model(**inputs())["logits"]


@functools.cache
def raised(build):
    """A graph of `build()`; passes leave it as it is."""
    return MaseGraph(build(), hf_input_names=["input_ids", "attention_mask"])


def disturb(model):
    """Moves everything that trains, as training would."""
    torch.manual_seed(2)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter), alpha=0.3)


def read_by_peft(model, folder):
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # peft warns of keys that are missing
        warnings.filterwarnings("ignore", DEPRECATED, FutureWarning)
        return peft.PeftModel.from_pretrained(model, str(folder)).eval()


@pytest.mark.parametrize("build", [bert, llama])
@pytest.mark.parametrize(
    "settings",
    [
        {"rank": 6, "alpha": 1.0, "dropout": 0.5},
        {"rank": 3, "alpha": 2.5, "use_rslora": True, "target_modules": ["q_proj", "query"]},
        {"modules_to_save": ["classifier", "lm_head"]},
        {"train_bias": "lora_only"},
        {"train_bias": "all", "target_modules": [".*(key|k_proj)"]},
    ],
    ids=["mase", "rslora", "saved", "lora_only", "all"],
)
@pytest.mark.sampled(1)
def test_peft_reads_what_we_write(build, settings, tmp_path):
    model = build()
    known = [name for name, _ in model.named_modules()]
    for key in ("target_modules", "modules_to_save"):
        entries = settings.get(key, ())
        kept = [e for e in entries if "*" in e or any(n.endswith(e) for n in known)]
        settings = {**settings, key: kept} if entries else settings
    mg, _ = passes.insert_lora_adapter_transform_pass(raised(build), settings)
    disturb(mg.model)
    expected = logits(mg.model)
    assert (expected - logits(model)).abs().max() > 0.05
    same, info = passes.save_lora_adapter_interface_pass(mg, tmp_path / "adapter")
    assert same is mg and info["layers"] == len(list_adapters(mg.model))
    files = {file.name for file in (tmp_path / "adapter").iterdir()}
    assert files == {"adapter_model.safetensors", "adapter_config.json"}

    by_peft = read_by_peft(build(), tmp_path / "adapter")
    torch.testing.assert_close(logits(by_peft), expected, atol=1e-5, rtol=1e-5)
    ours, _ = passes.load_lora_adapter_interface_pass(raised(build), tmp_path / "adapter")
    torch.testing.assert_close(logits(ours.model), expected)
    trains = [{n for n, p in g.model.named_parameters() if p.requires_grad} for g in (mg, ours)]
    assert trains[0] == trains[1]


def test_adapters_that_are_there_are_replaced(tmp_path):
    mg = raised(bert)
    first, _ = passes.insert_lora_adapter_transform_pass(mg, {"rank": 2})
    disturb(first.model)
    passes.save_lora_adapter_interface_pass(first, tmp_path)
    other, _ = passes.insert_lora_adapter_transform_pass(mg, {"rank": 5, "alpha": 3})
    again, _ = passes.load_lora_adapter_interface_pass(other, tmp_path)
    assert torch.equal(logits(again.model), logits(first.model))
    assert {layer.rank for layer in list_adapters(other.model).values()} == {5}
    plain, _ = passes.fuse_lora_weights_transform_pass(again)
    assert all(parameter.requires_grad for parameter in plain.model.parameters())

    few, _ = passes.insert_lora_adapter_transform_pass(mg, {"target_modules": ["query"]})
    passes.save_lora_adapter_interface_pass(few, tmp_path / "few")
    with pytest.raises(GraphError, match="has an adapter on 'bert.*' and .* does not"):
        passes.load_lora_adapter_interface_pass(first, tmp_path / "few")


def test_a_list_of_targets_says_no_more_than_it_should(tmp_path):
    block = Made(lambda m, x: m.fc(x), fc=nn.Linear(4, 4))
    net = Made(lambda m, x: m.fc(m.block(x).relu()), fc=nn.Linear(4, 4), block=block)
    x = torch.randn(3, 4)
    mg = MaseGraph(net, dummy_in={"x": x})
    mg, _ = passes.insert_lora_adapter_transform_pass(mg, {"target_modules": "fc$|^fc"})
    assert list(list_adapters(mg.model)) == ["fc"]
    disturb(mg.model)
    passes.save_lora_adapter_interface_pass(mg, tmp_path)
    expected = mg.model(x)
    by_peft = read_by_peft(net, tmp_path)  # replaces layers of the model, of which a call warns
    torch.testing.assert_close(by_peft(x), expected)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"use_dora": True}, "'use_dora': True is not supported"),
        ({"lora_bias": True}, "'lora_bias': True is not supported"),
        ({"trainable_token_indices": [1]}, "'trainable_token_indices'.* is not supported"),
        ({"some_future_key": 1}, "'some_future_key': 1 is not supported"),
        ({"init_lora_weights": "pissa"}, "'init_lora_weights': 'pissa' is not supported"),
        ({"peft_type": "IA3"}, "expected peft_type 'LORA', got 'IA3'"),
    ],
)
def test_other_methods_are_refused_by_name(change, message, tmp_path):
    mg, _ = passes.insert_lora_adapter_transform_pass(raised(bert), {"rank": 2})
    passes.save_lora_adapter_interface_pass(mg, tmp_path)
    file = tmp_path / "adapter_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    with pytest.raises(CheckpointError, match=message):
        passes.load_lora_adapter_interface_pass(raised(bert), tmp_path)


def test_files_that_do_not_fit_are_refused(tmp_path):
    mg = raised(bert)
    with pytest.raises(CheckpointError, match="has no adapter_config.json"):
        passes.load_lora_adapter_interface_pass(mg, tmp_path)
    with pytest.raises(GraphError, match="the graph has no adapter"):
        passes.save_lora_adapter_interface_pass(mg, tmp_path)
    with pytest.raises(ConfigError, match="unknown key 'dir': did you mean 'save_dir'"):
        passes.save_lora_adapter_interface_pass(mg, {"dir": tmp_path})
    with pytest.raises(GraphError, match="load_lora_.*: expected a MaseGraph, got Bert"):
        passes.load_lora_adapter_interface_pass(mg.model, tmp_path)
    adapted, _ = passes.insert_lora_adapter_transform_pass(mg, {"rank": 2})
    passes.save_lora_adapter_interface_pass(adapted, tmp_path)
    with pytest.raises(CheckpointError, match="layer 'bert.* does not exist, expected a linear"):
        passes.load_lora_adapter_interface_pass(raised(llama), tmp_path)
    wide = BertConfig(**{**SIZES, "intermediate_size": 48})
    with pytest.raises(CheckpointError, match=r"has lora_A \(2, 32\) and lora_B \(64, 2\)"):
        passes.load_lora_adapter_interface_pass(
            MaseGraph(BertForSequenceClassification(wide)), tmp_path
        )
    weights = tmp_path / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:100])
    with pytest.raises(CheckpointError, match="is not a readable safetensors file"):
        passes.load_lora_adapter_interface_pass(mg, tmp_path)
    weights.unlink()
    with pytest.raises(CheckpointError, match="has no adapter_model.safetensors"):
        passes.load_lora_adapter_interface_pass(mg, tmp_path)


def test_what_the_format_cannot_hold_is_refused(tmp_path):
    adapted, _ = passes.insert_lora_adapter_transform_pass(raised(bert), {"rank": 2})
    adapted.model.classifier.weight.requires_grad_(True)
    with pytest.raises(GraphError, match="'classifier.weight' is trained and PEFT's format cannot"):
        passes.save_lora_adapter_interface_pass(adapted, tmp_path)
    assert not list(tmp_path.iterdir())
