"""Adapters of tied models and of GPT-2, and PEFT's options, against the peft library."""

import copy
import functools
import warnings

import pytest
import torch
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    GPT2Config,
    GPT2ForSequenceClassification,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    OPTConfig,
    OPTForCausalLM,
)

from chop import MaseGraph, passes
from chop.errors import CheckpointError, GraphError
from chop.nn.lora import list_adapters

from .test_lora_files import DEPRECATED, SIZES, disturb, inputs, logits

peft = pytest.importorskip("peft")
pytestmark = pytest.mark.filterwarnings(f"ignore:{DEPRECATED}:FutureWarning")
GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 2, "vocab_size": 100, "initializer_range": 0.3}


def made(build):
    torch.manual_seed(0)
    return build().eval()


def llama(tied=True):
    config = LlamaConfig(**SIZES, num_key_value_heads=1, tie_word_embeddings=tied, use_cache=False)
    return made(lambda: LlamaForCausalLM(config))


def untied():
    return llama(tied=False)


def gpt2():
    return made(lambda: GPT2LMHeadModel(GPT2Config(**GPT2, use_cache=False)))


def gpt2_classifier():
    config = GPT2Config(**GPT2, use_cache=False, pad_token_id=0, num_labels=3)
    return made(lambda: GPT2ForSequenceClassification(config))


def bert():
    return made(lambda: BertForSequenceClassification(BertConfig(**SIZES)))


def masked_bert():
    return made(lambda: BertForMaskedLM(BertConfig(**SIZES)))


def opt():
    sizes = {"ffn_dim": 64, "word_embed_proj_dim": 32, "init_std": 0.3, "use_cache": False}
    sizes |= {k: v for k, v in SIZES.items() if k not in ("intermediate_size", "initializer_range")}
    return made(lambda: OPTForCausalLM(OPTConfig(**sizes)))


@functools.cache
def raised(build):
    return MaseGraph(build(), hf_input_names=["input_ids", "attention_mask"])


def inserted(build, settings):
    mg, _ = passes.insert_lora_adapter_transform_pass(raised(build), settings)
    disturb(mg.model)
    return mg


def by_peft(build, settings):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # peft speaks of ties
        model = peft.get_peft_model(build(), peft.LoraConfig(r=4, **settings)).eval()
    disturb(model)
    return model


def written(mg, folder):
    passes.save_lora_adapter_interface_pass(mg, folder)
    return folder


def read(build, folder):
    return passes.load_lora_adapter_interface_pass(raised(build), folder)[0]


def read_by_peft(build, folder):
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # peft warns of keys that are missing
        warnings.filterwarnings("ignore", DEPRECATED, FutureWarning)
        warnings.filterwarnings("ignore", ".*tie_word_embeddings.*")
        # One flag for all layers, where some are Linears and some are not.
        warnings.filterwarnings("ignore", "fan_in_fan_out is set to")
        return peft.PeftModel.from_pretrained(build(), str(folder)).eval()


def trainable(mg):
    return {n for n, p in mg.model.named_parameters() if p.requires_grad}


def assert_close(model, expected):
    torch.testing.assert_close(logits(model), expected, atol=1e-4, rtol=1e-4)


MERGED = "ignore:Input and output embeddings are no longer tied:UserWarning"
TIED = [
    (llama, "q_proj", "lm_head"),
    (llama, "q_proj", "embed_tokens"),
    (gpt2, "c_attn", "lm_head"),
    (gpt2, "c_attn", "wte"),
    (masked_bert, "query", "decoder"),
    (masked_bert, "query", "word_embeddings"),
    (masked_bert, "query", "cls"),
    (opt, "q_proj", "lm_head"),
]


@pytest.mark.parametrize("build, target, saved", TIED)
@pytest.mark.filterwarnings(MERGED)
@pytest.mark.long
def test_a_tied_weight_that_trains_is_read_back_on_both_sides(build, target, saved, tmp_path):
    mg = inserted(build, {"target_modules": [target], "modules_to_save": [saved]})
    expected = logits(mg.model)
    assert (expected - logits(build())).abs().max() > 0.5
    again = read(build, written(mg, tmp_path))
    assert torch.equal(logits(again.model), expected)
    # One parameter, as it was; a module of the format trains with its bias.
    assert trainable(mg) <= trainable(again) <= trainable(mg) | {"cls.predictions.bias"}
    theirs = read_by_peft(build, tmp_path)
    assert_close(theirs, expected)
    assert_close(theirs.merge_and_unload(), expected)
    fused, _ = passes.fuse_lora_weights_transform_pass(again)
    assert_close(fused.to_module(), expected)


@pytest.mark.parametrize("build, target, saved", TIED)
@pytest.mark.parametrize("ensure_weight_tying", [False, True])
@pytest.mark.sampled(1)
def test_what_peft_trains_of_a_tied_model_is_read(
    build, target, saved, ensure_weight_tying, tmp_path
):
    settings = {"target_modules": [target], "modules_to_save": [saved]}
    settings["ensure_weight_tying"] = ensure_weight_tying and build is not masked_bert
    model = by_peft(build, {**settings, "fan_in_fan_out": build is gpt2})
    model.save_pretrained(tmp_path / "theirs")
    mg = read(build, tmp_path / "theirs")
    assert torch.equal(logits(mg.model), logits(model))
    ours = read_by_peft(build, written(mg, tmp_path / "ours"))
    assert torch.equal(logits(ours), logits(model))
    mg.export(tmp_path / "graph")
    assert torch.equal(logits(MaseGraph.from_checkpoint(tmp_path / "graph").model), logits(model))


def step(model):
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    logits_now = model(**inputs())["logits"]
    logits_now.square().mean().backward()
    optimizer.step()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("build, target, saved", TIED[:3])
def test_training_goes_on_where_the_file_was_written(build, target, saved, tmp_path):
    mg = inserted(build, {"target_modules": [target], "modules_to_save": [saved]})
    again = read(build, written(mg, tmp_path))
    copied = copy.deepcopy(again)
    for graph in (mg, again, copied):
        step(graph.model)
    assert torch.equal(logits(again.model), logits(mg.model))
    assert torch.equal(logits(copied.model), logits(mg.model))


@pytest.mark.parametrize("build, target, saved", [TIED[0], TIED[3], TIED[7]])
@pytest.mark.sampled(1)
def test_peft_trains_a_tied_weight_on_as_one(build, target, saved, tmp_path):
    mg = inserted(build, {"target_modules": [target], "modules_to_save": [saved]})
    theirs = peft.PeftModel.from_pretrained(build(), str(written(mg, tmp_path)), is_trainable=True)
    theirs.eval()
    for model in (mg.model, theirs):
        step(model)
    torch.testing.assert_close(logits(theirs), logits(mg.model), atol=1e-4, rtol=1e-4)


OPTIONS = {
    "defaults": (gpt2, {"task_type": "CAUSAL_LM"}),
    "conv1d": (gpt2, {"target_modules": ["c_attn", "c_proj"], "fan_in_fan_out": True}),
    "all-linear of gpt2": (gpt2, {"target_modules": "all-linear", "fan_in_fan_out": True}),
    "square conv1d saved": (
        gpt2,
        {"target_modules": ["c_attn"], "modules_to_save": ["attn.c_proj"], "fan_in_fan_out": True},
    ),
    "block saved": (
        gpt2,
        {"target_modules": ["c_attn"], "modules_to_save": ["mlp"], "fan_in_fan_out": True},
    ),
    "biases of conv1d": (
        gpt2,
        {"target_modules": ["c_attn"], "bias": "lora_only", "fan_in_fan_out": True},
    ),
    "classifier": (
        gpt2_classifier,
        {"task_type": "SEQ_CLS", "target_modules": "all-linear", "fan_in_fan_out": True},
    ),
    "all-linear": (llama, {"target_modules": "all-linear"}),
    "head": (untied, {"target_modules": ["q_proj", "lm_head"]}),
    "tied head": (llama, {"target_modules": ["q_proj", "lm_head"]}),
    "of one layer": (llama, {"target_modules": ["q_proj"], "layers_to_transform": [1]}),
    "patterns": (
        llama,
        {
            "target_modules": r".*\.layers\.[01]\.(self_attn|mlp)\.(q|up)_proj",
            "rank_pattern": {"q_proj": 7, "^model.layers.1.mlp.up_proj": 2},
            "alpha_pattern": {"up_proj": 3, "layers.0.self_attn.q_proj": 9},
            "use_rslora": True,
        },
    ),
    "regular expression": (bert, {"target_modules": r".*layer\.1.*dense", "lora_dropout": 0.1}),
    "biases of layers": (bert, {"target_modules": ["query", "dense"], "bias": "lora_only"}),
    "excluded": (
        llama,
        {"target_modules": ["q_proj"], "exclude_modules": ["layers.0.self_attn.q_proj"]},
    ),
    "biases and a block": (
        bert,
        {"target_modules": ["query"], "modules_to_save": ["pooler"], "bias": "all"},
    ),
    "biases and a classifier": (
        bert,
        {"task_type": "SEQ_CLS", "target_modules": ["query"], "bias": "all"},
    ),
}


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.filterwarnings("ignore:fan_in_fan_out is set to False:UserWarning")
@pytest.mark.filterwarnings("ignore:.*tie_word_embeddings.*:UserWarning")
@pytest.mark.filterwarnings("ignore:.*merge_and_unload would change:UserWarning")
@pytest.mark.filterwarnings("ignore:Setting `save_embedding_layers`:UserWarning")
@pytest.mark.sampled(1)
def test_adapters_of_peft_are_read_whatever_its_options(name, tmp_path):
    build, settings = OPTIONS[name]
    model = by_peft(build, settings)
    model.save_pretrained(tmp_path / "theirs")
    mg = read(build, tmp_path / "theirs")
    assert_close(mg.model, logits(model))
    if not name.startswith("biases and a "):  # peft counts the biases that it has copied twice
        assert (
            sum(p.numel() for p in mg.model.parameters() if p.requires_grad)
            == (model.get_nb_trainable_parameters()[0])
        )
    ours = read_by_peft(build, written(mg, tmp_path / "ours"))
    assert_close(ours, logits(model))
    fused, _ = passes.fuse_lora_weights_transform_pass(mg)
    assert_close(fused.model, logits(model))


@pytest.mark.parametrize("build", [gpt2, gpt2_classifier, llama, untied, bert, masked_bert, opt])
@pytest.mark.sampled(2)
def test_all_linear_is_what_it_is_for_peft(build, tmp_path):
    theirs = by_peft(
        build, {"target_modules": "all-linear", "fan_in_fan_out": "gpt2" in str(build)}
    )
    layers = {
        name.removeprefix("base_model.model.")
        for name, module in theirs.named_modules()
        if isinstance(module, peft.tuners.lora.LoraLayer)
    }
    mg = inserted(build, {"target_modules": "all-linear"})
    assert set(list_adapters(mg.model)) == layers
    expected = logits(mg.model)
    merged = read_by_peft(build, written(mg, tmp_path / "adapter")).merge_and_unload()
    assert_close(merged, expected)


def test_the_output_layer_is_known_of_a_graph_that_was_read(tmp_path):
    raised(llama).export(tmp_path / "graph")
    mg = MaseGraph.from_checkpoint(tmp_path / "graph")
    mg, info = passes.insert_lora_adapter_transform_pass(mg, {"target_modules": "all-linear"})
    assert info["inserted"] == 14 and "lm_head" not in list_adapters(mg.model)
    named, _ = passes.insert_lora_adapter_transform_pass(
        raised(llama), {"target_modules": ["lm_head"]}
    )
    assert list(list_adapters(named.model)) == ["lm_head"]
    with pytest.warns(UserWarning, match="'lm_head' is shared with 'model.embed_tokens': peft"):
        passes.save_lora_adapter_interface_pass(named, tmp_path / "adapter")


def test_adapters_of_tables_are_refused(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        by_peft(llama, {"target_modules": ["q_proj", "embed_tokens"]}).save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match="expected adapters of linear layers"):
        read(llama, tmp_path)


@pytest.mark.long
def test_a_module_that_trains_round_an_adapter_is_refused(tmp_path):
    mg = inserted(masked_bert, {"target_modules": ["transform.dense"]})
    mg.model.cls.predictions.bias.requires_grad_(True)  # the decoder's, which computes with it
    assert_close(read(masked_bert, written(mg, tmp_path)).model, logits(mg.model))
    mg.model.get_submodule("cls.predictions.transform.dense").weight.requires_grad_(True)
    with pytest.raises(
        GraphError, match="'cls.predictions.transform.dense.weight' is trained and PEFT"
    ):
        passes.save_lora_adapter_interface_pass(mg, tmp_path)
