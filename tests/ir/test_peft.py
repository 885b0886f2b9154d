"""Adapters of peft on packed models: trained, merged, written and read again."""

import copy
import logging

import pytest
import torch
from torch import nn

from chop import ChopConfig, MaseGraph, passes
from chop.errors import ConfigError
from chop.nn.packed import PackedEmbedding, PackedLinear
from chop.nn.packed.base import PackedOperator
from tests.ir import decoders

transformers = pytest.importorskip("transformers")
peft = pytest.importorskip("peft")
pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::chop.base.notices.AdjustedWarning"),
]
IDS = torch.tensor([[5, 6, 7, 8], [9, 8, 7, 6]])
CAUSAL = transformers.AutoModelForCausalLM
WEIGHT = {"config": {"weight": {"name": "mxint"}}}


def decoder(kind):
    """A decoder whose layer of 288 outputs is decoded each time, where the rest is decoded once."""
    settings = {"tie_word_embeddings": kind == "tied", "initializer_range": 0.1}
    return decoders.decoder(kind, 320, intermediate_size=288, **settings)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """By kind, and by where it is from, a packed model."""
    home, found = tmp_path_factory.mktemp("packed"), {}
    for kind in ("llama", "tied", "gpt2"):
        model = decoder(kind)
        model.save_pretrained(home / kind)
        config = ChopConfig("mxint8")
        found[kind, "config"] = CAUSAL.from_pretrained(home / kind, quantization_config=config)
        rules = {"linear": WEIGHT, "embedding": WEIGHT}
        quantized, _ = passes.quantize_transform_pass(MaseGraph(model), rules)
        graph, _ = passes.pack_transform_pass(quantized, {"silent": True})
        found[kind, "graph"] = graph
        found[kind, "quantized"] = quantized.to_module()
        found[kind, "to_module"] = graph.to_module()
        graph.save_pretrained(home / f"{kind}-folder")
        found[kind, "folder"] = CAUSAL.from_pretrained(home / f"{kind}-folder")
    return found


@pytest.fixture
def packed(made):
    return lambda kind="llama", source="to_module": copy.deepcopy(made[kind, source])


@torch.no_grad()
def logits(model):
    return model(input_ids=IDS).logits.float()


def reload(model, folder):
    model.save_pretrained(folder)
    again, info = CAUSAL.from_pretrained(folder, output_loading_info=True)
    assert not any(info.values())
    return again


def kinds_of(model):
    return type(model.get_input_embeddings()), type(model.get_output_embeddings())


TARGETS = ["q_proj", "v_proj", "down_proj"]
RANDOM = {"target_modules": TARGETS, "init_weights": False}
LORA = {"r": 4, "target_modules": TARGETS, "init_lora_weights": False}
TUNERS = {
    "lora": lambda: peft.LoraConfig(**LORA),
    "dora": lambda: peft.LoraConfig(**LORA, use_dora=True),
    "head and table": lambda: peft.LoraConfig(
        **{**LORA, "target_modules": ["lm_head", "embed_tokens"]}
    ),
    "adalora": lambda: peft.AdaLoraConfig(
        init_r=4, total_step=9, tinit=1, tfinal=1, target_modules=TARGETS, init_lora_weights=False
    ),
    "ia3": lambda: peft.IA3Config(
        target_modules=["v_proj", "down_proj"],
        feedforward_modules=["down_proj"],
        init_ia3_weights=False,
    ),
    "loha": lambda: peft.LoHaConfig(r=4, **RANDOM),
    "lokr": lambda: peft.LoKrConfig(r=4, **RANDOM),
    "oft": lambda: peft.OFTConfig(oft_block_size=8, **RANDOM),
    "boft": lambda: peft.BOFTConfig(boft_block_size=8, **RANDOM),
    "vera": lambda: peft.VeraConfig(r=8, target_modules=["q_proj", "v_proj"], init_weights=False),
    "hra": lambda: peft.HRAConfig(r=4, **RANDOM),
    "tokens": lambda: peft.TrainableTokensConfig(
        token_indices=[5, 6], target_modules=["embed_tokens"], init_weights=False
    ),
}


@pytest.mark.parametrize("tuner", TUNERS)
@pytest.mark.long
def test_adapters_are_merged_into_the_codes(packed, tuner, tmp_path):
    source = {"lora": "config", "dora": "folder"}.get(tuner, "to_module")
    model = packed("llama", source)
    base = logits(model)
    torch.manual_seed(1)
    adapted = peft.get_peft_model(model, TUNERS[tuner]()).eval()
    wanted = logits(adapted)
    moved = (wanted - base).norm()
    assert moved > 0.01 * base.norm()
    adapted.merge_adapter()
    assert (logits(adapted) - wanted).norm() < 0.5 * moved
    adapted.unmerge_adapter()
    assert (logits(adapted) - wanted).norm() < 0.5 * moved
    merged = adapted.merge_and_unload(safe_merge=tuner in ("lora", "ia3"))
    stored = logits(merged)
    assert (stored - wanted).norm() < 0.5 * moved
    assert kinds_of(merged) == (PackedEmbedding, PackedLinear)
    assert torch.equal(logits(reload(merged, tmp_path)), stored)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("start", ["pissa", "pissa_niter_4", "olora", "gaussian", "orthogonal"])
def test_adapters_start_as_the_model(packed, start):
    # Float: the base without what the adapter takes over. Packed: the same, rounded.
    for model in (decoder("llama"), packed()):
        base = logits(model)
        config = peft.LoraConfig(**{**LORA, "init_lora_weights": start})
        adapted = peft.get_peft_model(model, config).eval()
        assert (logits(adapted) - base).norm() < 0.02 * base.norm()
        with adapted.disable_adapter():
            changed = (logits(adapted) - base).norm() > 0.02 * base.norm()
        assert changed == (start.startswith("pissa") or start == "olora")


def test_several_adapters_are_weighted_and_merged(packed, tmp_path):
    model = packed("llama", "config")
    base = logits(model)
    adapted = peft.get_peft_model(model, peft.LoraConfig(**LORA)).eval()
    adapted.add_adapter("other", peft.LoraConfig(**{**LORA, "target_modules": ["up_proj"]}))
    adapted.add_weighted_adapter(["default", "other"], [0.7, 0.6], "both", "cat")
    adapted.set_adapter("both")
    wanted = logits(adapted)
    merged = adapted.merge_and_unload()
    assert (logits(merged) - wanted).norm() < 0.1 * (wanted - base).norm()
    assert torch.equal(logits(reload(merged, tmp_path)), logits(merged))


def test_layers_that_lie_the_other_way_round(packed, tmp_path):
    model = packed("gpt2", "to_module")
    config = peft.LoraConfig(
        **{**LORA, "target_modules": ["c_attn", "c_proj"]}, fan_in_fan_out=True
    )
    adapted = peft.get_peft_model(model, config).eval()
    wanted = logits(adapted)
    merged = adapted.merge_and_unload()
    assert (logits(merged) - wanted).abs().max() < 0.02
    assert torch.equal(logits(reload(merged, tmp_path)), logits(merged))


def test_layers_of_any_model():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 4))
    x = torch.randn(2, 3, 8, 8)
    graph = MaseGraph(model, dummy_in={"input": x})
    graph, _ = passes.quantize_transform_pass(graph, {"linear": WEIGHT, "conv2d": WEIGHT})
    graph, _ = passes.pack_transform_pass(graph, {"silent": True})
    config = peft.LoraConfig(r=2, target_modules=["0", "3"], init_lora_weights=False)
    adapted = peft.get_peft_model(graph.to_module(), config)
    adapted.train()(x).sum().backward()
    assert all(p.grad is not None for p in adapted.parameters() if p.requires_grad)
    wanted, base = adapted.eval()(x), graph.to_module().eval()(x)
    merged = adapted.merge_and_unload()
    assert all(isinstance(merged[index], PackedOperator) for index in (0, 3))
    assert (merged(x) - wanted).norm() < 0.05 * (wanted - base).norm()


def test_a_merged_model_keeps_tied_codes(packed, tmp_path):
    adapted = peft.get_peft_model(packed("tied", "folder"), peft.LoraConfig(**LORA))
    merged = adapted.eval().merge_and_unload()
    assert merged.lm_head.weight_codes is merged.model.embed_tokens.weight_codes
    assert torch.equal(logits(reload(merged, tmp_path)), logits(merged))


def train(model, **settings):
    """Losses of a model whose adapter is trained, and the model."""
    config = {**LORA, "init_lora_weights": True, "task_type": "CAUSAL_LM", **settings}
    adapted = peft.get_peft_model(model, peft.LoraConfig(**config)).train()
    if settings.get("use_dora"):
        adapted.gradient_checkpointing_enable()
        adapted.enable_input_require_grads()
    trained = [x for x in adapted.parameters() if x.requires_grad]
    optimizer, losses = torch.optim.AdamW(trained, lr=1e-2), []
    for _ in range(4):
        loss = adapted(input_ids=IDS, labels=IDS).loss
        loss.backward()
        assert all(x.grad is not None for x in trained)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, adapted.eval()


@pytest.mark.sampled(5)
@pytest.mark.parametrize("source", ["to_module", "folder", "config"])
@pytest.mark.parametrize("case", ["plain", "checkpointing", "bfloat16"])
def test_adapters_train_and_the_base_stays_packed(packed, made, source, case):
    model = packed("llama", source)
    model = model.to(torch.bfloat16) if case == "bfloat16" else model
    before = {name: x.clone() for name, x in model.named_buffers() if "codes" in name}
    losses, adapted = train(model, use_dora=case == "checkpointing")
    assert losses[-1] < losses[0] - 0.05
    after = [x for name, x in adapted.named_buffers() if "codes" in name]
    assert all(torch.equal(x, y) for x, y in zip(after, before.values(), strict=True))
    with pytest.raises(ConfigError, match="train adapters on mg.to_module"):
        made["llama", "graph"].model.train()(IDS, torch.ones_like(IDS))
    made["llama", "graph"].model.eval()


@pytest.mark.parametrize("names", [["lm_head"], ["embed_tokens"], ["embed_tokens", "lm_head"]])
@pytest.mark.parametrize("kind", ["llama", "tied"])
@pytest.mark.sampled(1)
def test_modules_to_save_are_trained_and_written_as_what_they_are(packed, kind, names, tmp_path):
    model = packed(kind, "config")
    losses, adapted = train(model, modules_to_save=names)
    assert losses[-1] < losses[0] - 0.2
    wanted = logits(adapted)
    adapted.save_pretrained(tmp_path / "adapter")
    again = peft.PeftModel.from_pretrained(packed(kind, "config"), tmp_path / "adapter").eval()
    assert torch.equal(logits(again), wanted)
    merged = adapted.merge_and_unload()
    assert kinds_of(merged) == (PackedEmbedding, PackedLinear)
    assert (logits(merged) - wanted).norm() < 0.02 * wanted.norm()
    assert torch.equal(logits(reload(merged, tmp_path / "merged")), logits(merged))


@pytest.fixture(scope="module")
def untied():
    """A model whose configuration says that it has one weight where it has two, and its graph."""
    model = decoder("tied")
    model.lm_head.weight = nn.Parameter(model.lm_head.weight.detach().roll(1, 0))
    return model, MaseGraph(model)


@pytest.mark.parametrize("how", ["float", "captured", "packed", "quantized", "one packed"])
@pytest.mark.long
def test_what_is_tied_in_name_alone_is_written_and_read_as_two(untied, how, tmp_path):
    model, graph = untied
    if how == "float":
        model.save_pretrained(tmp_path / "float")
        config = ChopConfig("mxint8")
        loaded = CAUSAL.from_pretrained(tmp_path / "float", quantization_config=config)
        assert kinds_of(loaded) == (PackedEmbedding, PackedLinear)
        assert (logits(loaded) - logits(model)).norm() < 0.05 * logits(model).norm()
        expected, again = logits(loaded), reload(loaded, tmp_path / "again")
    else:
        rules = {"linear": WEIGHT} | ({"embedding": WEIGHT} if how == "packed" else {})
        graph = passes.quantize_transform_pass(graph, rules)[0] if how != "captured" else graph
        graph = passes.pack_transform_pass(graph, {"silent": True})[0] if "packed" in how else graph
        expected = logits(graph.to_module())
        graph.save_pretrained(tmp_path / "again")
        again = CAUSAL.from_pretrained(tmp_path / "again")
    assert torch.equal(logits(again), expected) and not again.config.tie_word_embeddings
    assert model.config.tie_word_embeddings


def test_a_folder_of_pickles_with_two_weights_of_one_is_refused(tmp_path, caplog):
    model = decoder("tied")
    model.lm_head.weight = nn.Parameter(model.lm_head.weight.detach().roll(1, 0))
    model.config.save_pretrained(tmp_path)
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    with caplog.at_level(logging.WARNING), pytest.raises((ConfigError, RuntimeError)) as error:
        CAUSAL.from_pretrained(tmp_path, quantization_config=ChopConfig("mxint8"))
    assert "expected tie_word_embeddings=False" in f"{error.value}{caplog.text}"


@pytest.mark.parametrize("count", [330, 100])
@pytest.mark.parametrize("kind", ["llama", "tied"])
@pytest.mark.parametrize("source", ["config", "to_module", "quantized"])
@pytest.mark.sampled(3)
def test_vocabularies_of_another_size_stay_quantized(packed, kind, source, count, tmp_path):
    model = packed(kind, source)
    expected, before = kinds_of(model), logits(model)
    model.resize_token_embeddings(count)
    after, kept = logits(model), min(count, 320)
    assert kinds_of(model) == expected and after.shape[-1] == count
    assert model.lm_head.out_features == model.get_input_embeddings().num_embeddings == count
    torch.testing.assert_close(after[..., :kept], before[..., :kept])
    is_tied = torch.equal(model.lm_head.weight, model.get_input_embeddings().weight)
    assert is_tied == (kind == "tied") and not any(
        isinstance(x, nn.Parameter) and x.shape == (count, 64)
        for x in model.parameters()
        if source != "quantized"
    )
    assert torch.equal(logits(reload(model, tmp_path)), after)


def test_what_cannot_be_written_or_resized_is_refused_by_name(packed, untied, tmp_path):
    adapted = peft.get_peft_model(packed(), peft.LoraConfig(**LORA))
    with pytest.raises(ConfigError, match=r"q_proj.base_layer' has a PEFT adapter around it"):
        adapted.base_model.model.save_pretrained(tmp_path)
    graph, _ = passes.insert_lora_adapter_transform_pass(untied[1], {"rank": 2})
    with pytest.raises(ConfigError, match="a LoraLinear, has a LoRA adapter; resize"):
        graph.to_module().resize_token_embeddings(330)
