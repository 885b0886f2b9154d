"""Rotations: the float function stays, for each architecture, and who is refused is named."""

import copy
import json
from types import SimpleNamespace

import pytest
import torch
import transformers
from torch import nn

from chop import MaseGraph, passes
from chop.actions.compress.ptq import quantize_after_training
from chop.actions.compress.settings import CompressConfig
from chop.errors import ConfigError, GraphError
from chop.export.packed_model import packed_model
from chop.formats import QuantSpec, parse_format_string
from chop.nn.hadamard import Hadamard, Rotated
from chop.nn.packed import PackedLinear

IDS = torch.tensor([[5, 6, 7, 8, 9], [9, 8, 7, 6, 5]])
BATCH = {"input_ids": IDS, "attention_mask": torch.ones_like(IDS)}
SIZES = {
    "vocab_size": 40,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
HEADS = {"head_dim": 8}
ROTATED = {
    "llama": ("Llama", {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True}),
    "llama-eager": ("Llama", {"attn_implementation": "eager", **HEADS}),
    "qwen2": ("Qwen2", {"tie_word_embeddings": True}),
    "qwen3": ("Qwen3", HEADS),
    "mistral": ("Mistral", HEADS),
    "gemma": ("Gemma", HEADS),
    "phi3": ("Phi3", {}),
}
REFUSED = {
    "gemma2": (
        "Gemma2",
        HEADS,
        "'model.layers.0.post_.*layernorm' .* computes a part",
    ),
    "olmo2": ("Olmo2", {}, "Olmo2RMSNorm"),
    "phi": ("Phi", {"hidden_size": 32}, r"'model.layers.0.input_layernorm' .LayerNorm. reads it"),
    "mixtral": ("Mixtral", {"num_local_experts": 2}, "MixtralExperts"),
}


def decoder(name, settings, dtype=torch.float32):
    """A decoder whose gains and biases are far from one and zero."""
    torch.manual_seed(0)
    cls = getattr(transformers, f"{name}ForCausalLM")
    model = cls(getattr(transformers, f"{name}Config")(**SIZES | settings)).eval()
    for parameter in model.parameters():
        with torch.no_grad():
            if parameter.dim() == 1:
                parameter += 0.3 * torch.randn_like(parameter)
            else:
                parameter *= 4
    return model.to(dtype)


@pytest.fixture(scope="module")
def llama():
    """A decoder with tied embeddings and biases, what it computes, and its rotated graph."""
    model = decoder(*ROTATED["llama"])
    mg = MaseGraph(model)
    rotated, info = passes.rotate_transform_pass(mg)
    with torch.no_grad():
        return model, model(**BATCH).logits, mg, rotated, info


def quantized(mg, text="mxint:width=4"):
    spec = QuantSpec(**dict.fromkeys(("weight", "data_in"), parse_format_string(text)))
    return passes.quantize_transform_pass(mg, {"by": "type", "linear": {"config": spec}})[0]


@pytest.mark.parametrize("name", ROTATED)
@pytest.mark.sampled(1)
@torch.no_grad()
def test_the_float_function_stays(name):
    model = decoder(*ROTATED[name])
    before = copy.deepcopy(model.state_dict())
    expected = model(**BATCH).logits
    rotated, info = passes.rotate_transform_pass(MaseGraph(model))
    size = expected.abs().amax()
    assert (rotated.model(**BATCH).logits - expected).abs().amax() < 1e-5 * size
    whole = rotated.to_module()
    assert type(whole) is type(model)
    assert (whole(**BATCH).logits - expected).abs().amax() < 1e-5 * size
    assert all(torch.equal(x, before[key]) for key, x in model.state_dict().items())
    attention = "model.layers.0.self_attn"
    has_values = name != "phi3"  # whose values are rows of a layer that makes queries too
    assert info["values"] == ({f"{attention}.v_proj": f"{attention}.o_proj"} if has_values else {})
    assert info["online"]["model.layers.0.mlp.down_proj"] == 40
    assert (f"{attention}.o_proj" in info["online"]) == (not has_values)
    assert info["untied"] == (["lm_head"] if model.config.tie_word_embeddings else [])
    # Something was rotated: no gain is left, no row of the embedding is what it was.
    norm = rotated.model.get_parameter("model.norm.weight")
    assert torch.equal(norm, torch.full_like(norm, float(name != "gemma")))
    table = rotated.model.get_parameter("model.embed_tokens.weight")
    was = before["model.embed_tokens.weight"]
    torch.testing.assert_close(table.norm(dim=1), was.norm(dim=1))
    assert ((table - was).abs().amax(1) > 0.01).float().mean() > 0.9


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.long
def test_other_architectures_are_refused_by_name(name):
    cls, settings, text = REFUSED[name]
    with pytest.raises(GraphError, match=text):
        passes.rotate_transform_pass(MaseGraph(decoder(cls, settings)))


@pytest.mark.long
@torch.no_grad()
def test_a_weight_of_its_own_for_the_tied_output_layer(llama):
    _, expected, _, rotated, _ = llama
    whole = rotated.to_module()
    assert not whole.config.tie_word_embeddings
    whole.tie_weights()
    torch.testing.assert_close(whole(**BATCH).logits, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.long
@torch.no_grad()
def test_twice_is_another_rotation(llama):
    _, expected, _, rotated, _ = llama
    again, info = passes.rotate_transform_pass(rotated, {"seed": 3})
    assert info["skipped"] == {
        "model.layers.0.mlp.down_proj.linear": "its input is already rotated"
    }
    torch.testing.assert_close(again.model(**BATCH).logits, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.long
@torch.no_grad()
def test_blocks_and_what_is_not_rotated_online(llama):
    _, expected, mg, _, _ = llama
    rotated, info = passes.rotate_transform_pass(mg, {"block": 4, "online": False})
    assert info["online"] == {} and list(info["skipped"]) == ["model.layers.0.mlp.down_proj"]
    assert not any(isinstance(m, Hadamard) for m in rotated.model.modules())
    torch.testing.assert_close(rotated.model(**BATCH).logits, expected, rtol=1e-4, atol=1e-5)
    with pytest.raises(ConfigError, match="merge or online"):
        passes.rotate_transform_pass(mg, {"merge": False, "online": False})


@torch.no_grad()
def test_jobs_rotate_groups_of_the_format_or_all_channels(llama):
    mxint = parse_format_string("mxint:width=8:block_size=[8]")
    blocks = {"group": {"q_proj": 8, "down_proj": 8}, "all": {"q_proj": 24, "down_proj": 40}}
    blocks["merged"] = {"down_proj": 40}
    for rotation, expected in blocks.items():
        given = (llama[2], mxint, ("linear",), SimpleNamespace(train=None), 4, ("rotate",))
        mg = quantize_after_training(*given, rotation=rotation)
        parts = {path.split(".")[-1]: m for path, m in mg.model.named_modules()}
        found = {name: m.rotation.block for name, m in parts.items() if isinstance(m, Rotated)}
        assert {name: found.get(name) for name in expected} == expected
        assert ("q_proj" in found) == (rotation != "merged")
        error = (mg.model(**BATCH).logits - llama[1]).norm()
        assert error < 0.05 * llama[1].norm()
    with pytest.raises(ConfigError, match="rotation: 'all' needs method rotate"):
        CompressConfig(rotation="all")


@torch.no_grad()
def test_any_model_is_rotated_while_it_runs():
    torch.manual_seed(0)
    odd = nn.Linear(7, 3)
    model = nn.Sequential(nn.Linear(48, 20), nn.LayerNorm(20), nn.GELU(), nn.Linear(20, 7), odd)
    model.append(nn.Linear(3, 7)).append(odd)
    mg = MaseGraph(model.eval(), dummy_in={"input": torch.randn(2, 48)})
    rotated, info = passes.rotate_transform_pass(mg, {"merge": False, "block": 16})
    assert info["online"] == {"0": 16, "3": 4}
    assert sorted(info["skipped"]) == ["4", "5"]
    x = torch.randn(5, 48)
    torch.testing.assert_close(rotated.model(x), model(x))
    assert type(rotated.to_module()[0]) is Rotated
    torch.testing.assert_close(rotated.to_module()(x), model(x))


@pytest.mark.long
@torch.no_grad()
def test_experts_are_told_to_be_left_alone():
    mg = MaseGraph(decoder("Mixtral", {"num_local_experts": 2}))
    _, info = passes.rotate_transform_pass(mg, {"merge": False})
    assert "model.layers.0.self_attn.q_proj" in info["online"]
    experts = [path for path, reason in info["skipped"].items() if "several experts" in reason]
    assert experts == [f"model.layers.0.mlp.experts.{name}" for name in ("gate_up", "down")]


@pytest.mark.parametrize("stage", ["float", "quantized", "packed"])
@pytest.mark.long
@torch.no_grad()
def test_saved_and_read_again(llama, stage, tmp_path):
    mg = llama[3] if stage == "float" else quantized(llama[3])
    wanted = mg.model(**BATCH).logits
    if stage == "packed":
        mg, _ = passes.pack_transform_pass(mg, {"silent": True})
        assert torch.equal(mg.model(**BATCH).logits, wanted)
        layer = mg.to_module().model.layers[0].mlp.down_proj
        assert type(layer) is Rotated and type(layer.linear) is PackedLinear
    mg.export(tmp_path / "graph")
    read = MaseGraph.from_checkpoint(tmp_path / "graph")
    assert torch.equal(read.model(**BATCH).logits, wanted)
    assert torch.equal(read.to_module()(**BATCH).logits, wanted)
    mg.save_pretrained(tmp_path / "folder")
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "folder")
    assert torch.equal(loaded(**BATCH).logits, wanted)
    card = (tmp_path / "folder" / "README.md").read_text()
    assert "inputs of 1 layers rotated by Hadamard matrices" in card
    captured = MaseGraph(loaded)  # a rotation is a node of its own again
    assert torch.equal(captured.model(**BATCH).logits, wanted)
    path = "model.layers.0.mlp.down_proj.rotation"
    assert path in [node.target for node in captured.nodes]


def test_a_broken_rotation_in_a_folder_is_refused(llama, tmp_path):
    llama[3].save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    for entry, text in (
        ({"rotation": 36}, "divides 40 features, got 36"),
        ({"rotation": -4}, "down_proj': Hadamard: .* got -4"),
        ({"rotation": 4, "packed": True}, "with only a rotation"),
    ):
        config["quantization_config"]["modules"] = {"model.layers.0.mlp.down_proj": entry}
        path.write_text(json.dumps(config))
        with pytest.raises(ConfigError, match=text):
            transformers.AutoModelForCausalLM.from_pretrained(tmp_path)


def test_engines_that_do_not_rotate_are_told(llama):
    weight = {"config": {"weight": {"name": "group_integer", "width": 4, "group_size": 8}}}
    small, _ = passes.quantize_transform_pass(llama[3], {"linear": weight})
    _, reasons = packed_model(small, "gptq")
    assert list(reasons) == ["model.layers.0.mlp.down_proj"]
    assert "it rotates its input" in reasons["model.layers.0.mlp.down_proj"]


@pytest.mark.long
@torch.no_grad()
def test_bfloat16_keeps_its_dtype_and_accuracy():
    model = decoder(*ROTATED["llama"])
    exact = model(**BATCH).logits
    half = decoder(*ROTATED["llama"], dtype=torch.bfloat16)
    rotated, _ = passes.rotate_transform_pass(MaseGraph(half))
    assert {x.dtype for x in rotated.model.parameters()} == {torch.bfloat16}
    error = (rotated.model(**BATCH).logits - exact).norm()
    assert error < 3 * (half(**BATCH).logits - exact).norm()


def test_layers_that_cannot_change_are_refused(llama):
    mg = llama[2]
    with pytest.raises(GraphError, match="is already quantized; rotate before"):
        passes.rotate_transform_pass(quantized(mg))
    with pytest.raises(GraphError, match="LoRA adapters"):
        passes.rotate_transform_pass(passes.insert_lora_adapter_transform_pass(mg)[0])
    pruned, _ = passes.prune_transform_pass(mg, {"weight": {"sparsity": 0.5}})
    with pytest.raises(GraphError, match="is pruned"):
        passes.rotate_transform_pass(pruned)
    broken = mg.copy()
    with torch.no_grad():
        broken.model.get_parameter("model.layers.0.mlp.up_proj.weight")[0, 0] = float("nan")
    with pytest.raises(ConfigError, match="not finite"):
        passes.rotate_transform_pass(broken)
