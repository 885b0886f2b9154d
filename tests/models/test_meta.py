"""Models of transformers without weights, and their weights from files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import nn

from chop.distributed.plan import named_tensors
from chop.errors import CheckpointError, ConfigError
from chop.models.meta import meta_model, weights_source
from tests.experts import mixture

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
TEXT = {**SIZES, "intermediate_size": 64, "vocab_size": 50}
MODELS = {
    "bert": ("BertForSequenceClassification", "BertConfig", TEXT),
    "gpt2": (
        "GPT2LMHeadModel",
        "GPT2Config",
        {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 50, "n_positions": 64}
        | {"bos_token_id": 1, "eos_token_id": 1},
    ),
    "llama": ("LlamaForCausalLM", "LlamaConfig", {**TEXT, "num_key_value_heads": 2}),
    "vit": (
        "ViTForImageClassification",
        "ViTConfig",
        {**SIZES, "intermediate_size": 64, "image_size": 32, "patch_size": 8},
    ),
}
COMPUTED = {
    "bert": {"bert.embeddings.position_ids", "bert.embeddings.token_type_ids"},
    "llama": {"model.rotary_emb.inv_freq", "model.rotary_emb.original_inv_freq"},
}


def build(name: str) -> Any:
    cls, config, settings = MODELS[name]
    torch.manual_seed(0)
    return getattr(transformers, cls)(getattr(transformers, config)(**settings)).eval()


def read_all(source: Any, model: nn.Module) -> set[str]:
    """Puts whole tensors in the places of those on the meta device; gives the names of others."""
    real = set()
    for name, x in named_tensors(model):
        if not x.is_meta:
            real.add(name)
            continue
        path, _, last = name.rpartition(".")
        module, data = model.get_submodule(path), source.read(name, tuple(map(slice, x.shape)))
        home = module._parameters if last in module._parameters else module._buffers
        home[last] = nn.Parameter(data) if last in module._parameters else data
    return real


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.sampled(3)
def test_every_tensor_is_that_of_from_pretrained(
    tmp_path: Path, name: str, dtype: torch.dtype
) -> None:
    build(name).to(dtype).save_pretrained(tmp_path)
    expected = dict(named_tensors(type(build(name)).from_pretrained(tmp_path)))
    model = meta_model(tmp_path)
    source = weights_source(model, tmp_path)
    assert read_all(source, model) == COMPUTED.get(name, set())
    found = dict(named_tensors(model))
    assert found.keys() == expected.keys()
    for path, x in found.items():
        assert x.dtype == expected[path].dtype, path
        assert torch.equal(x, expected[path]), path


def test_weights_of_a_body_serve_a_model_with_a_head_and_ties_stay_ties(tmp_path: Path) -> None:
    whole = build("gpt2")
    whole.transformer.save_pretrained(tmp_path)
    config = whole.config
    config.architectures = ["GPT2LMHeadModel"]
    config.save_pretrained(tmp_path)
    model: Any = meta_model(tmp_path)
    assert model.lm_head.weight is model.transformer.wte.weight
    read_all(weights_source(model, tmp_path), model)
    assert torch.equal(model.lm_head.weight, whole.lm_head.weight)
    assert torch.equal(
        model.transformer.h[1].mlp.c_fc.weight, whole.transformer.h[1].mlp.c_fc.weight
    )


def test_the_dtype_is_that_of_the_weights_where_the_config_says_none(tmp_path: Path) -> None:
    model = build("bert").half()
    model.save_pretrained(tmp_path)
    config = tmp_path / "config.json"
    config.write_text(config.read_text().replace('"dtype": "float16"', '"dtype": null'))
    weight = "bert.encoder.layer.0.output.dense.weight"
    for given, dtype in ((None, torch.float16), (torch.float32, torch.float32)):
        meta = meta_model(tmp_path, dtype=given)
        assert meta.get_parameter(weight).dtype == dtype
        part = weights_source(meta, tmp_path).read(weight, (slice(8, 16), slice(0, 64)))
        assert torch.equal(part, model.get_parameter(weight)[8:16].to(dtype))


def test_what_does_not_fit_is_refused_in_one_sentence(tmp_path: Path) -> None:
    build("bert").save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match=r"'classifier.weight': the model has .*\(3, 32\).*2"):
        weights_source(meta_model(tmp_path, num_labels=3), tmp_path)
    with pytest.raises(CheckpointError, match="lacks the model's tensor 'cls.predictions"):
        weights_source(meta_model(tmp_path, task="fill-mask"), tmp_path)
    with pytest.raises(ConfigError, match="unknown task 'fillmask': did you mean 'fill-mask'"):
        meta_model(tmp_path, task="fillmask")
    with pytest.raises(ConfigError, match=r"expected a config\.json"):
        meta_model(_empty(tmp_path))


def _empty(folder: Path) -> Path:
    (folder / "empty").mkdir()
    return folder / "empty"


@pytest.mark.parametrize("name", ["Mixtral", "Qwen3Moe", "GptOss"])
def test_matrices_of_experts_are_put_together(tmp_path: Path, name: str) -> None:
    model = mixture(name)
    model.save_pretrained(tmp_path)
    source, prefix = weights_source(meta_model(tmp_path), tmp_path), "model.layers.0.mlp.experts."
    for weight in ("gate_up_proj", "down_proj"):
        own = model.get_parameter(prefix + weight)
        part = (slice(1, 3), slice(0, own.shape[1]), slice(8, 16))
        assert torch.equal(source.read(prefix + weight, part), own[part])


def test_experts_of_other_shapes_are_refused(tmp_path: Path) -> None:
    mixture("Mixtral").save_pretrained(tmp_path)
    file, name = tmp_path / "model.safetensors", "block_sparse_moe.experts.1.w3.weight"
    tensors = load_file(file)
    tensors[f"model.layers.0.{name}"] = torch.zeros(3, 32)
    save_file(tensors, file)
    with pytest.raises(CheckpointError, match="matrices of expert 1 of .* differ in shape from"):
        weights_source(meta_model(tmp_path), tmp_path)


def test_other_tensors_that_transformers_merges_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mixture("Mixtral").save_pretrained(tmp_path)
    monkeypatch.setattr("chop.ir.huggingface.conversions.is_stack_of_experts", lambda _: False)
    with pytest.raises(CheckpointError, match="is assembled from .* and others"):
        weights_source(meta_model(tmp_path), tmp_path)


def test_what_a_folder_says_of_generation_is_read(tmp_path: Path) -> None:
    model = build("llama")
    model.generation_config.update(do_sample=True, temperature=0.7, max_new_tokens=9)
    model.save_pretrained(tmp_path)
    found: Any = meta_model(tmp_path).generation_config
    assert found.to_diff_dict() == model.generation_config.to_diff_dict()
    (tmp_path / "generation_config.json").unlink()
    assert meta_model(tmp_path).generation_config.temperature is None  # type: ignore[union-attr]
