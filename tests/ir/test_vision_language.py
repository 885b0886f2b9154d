"""Vision-language models: the vision tower stays float, the text decoder is packed."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
import transformers
from torch import Tensor, nn

import chop
from chop import ChopConfig, MaseGraph, passes
from chop.actions.compress.job import CompressConfig
from chop.errors import ConfigError
from chop.ir.huggingface.vision import check_has_vision, vision_modules
from chop.models import load_model
from chop.nn.packed import PackedOperator
from chop.train.rows import check_batch

TEXT = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "vocab_size": 128}
TEXT |= {"num_attention_heads": 4, "num_key_value_heads": 2}
VISION = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1}
VISION |= {"num_attention_heads": 4, "image_size": 16, "patch_size": 8}
IMAGE = 100
"""The token that stands for a part of a picture."""


def _llava() -> transformers.PreTrainedModel:
    config = transformers.LlavaConfig(
        vision_config=transformers.CLIPVisionConfig(**VISION),
        text_config=transformers.LlamaConfig(**TEXT),
        image_token_id=IMAGE,
        image_seq_length=4,
    )
    return transformers.LlavaForConditionalGeneration(config)


def _smolvlm() -> transformers.PreTrainedModel:
    config = transformers.SmolVLMConfig(
        vision_config=VISION,
        text_config=transformers.LlamaConfig(**TEXT),
        image_token_id=IMAGE,
        scale_factor=2,
    )
    return transformers.SmolVLMForConditionalGeneration(config)


def _gemma3() -> transformers.PreTrainedModel:
    config = transformers.Gemma3Config(
        vision_config={**VISION, "model_type": "siglip_vision_model"},
        text_config=transformers.Gemma3TextConfig(**TEXT, head_dim=8),
        image_token_index=IMAGE,
        mm_tokens_per_image=1,
    )
    return transformers.Gemma3ForConditionalGeneration(config)


def _qwen2_vl() -> transformers.PreTrainedModel:
    rope = {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 10000.0}
    tower = {"depth": 1, "embed_dim": 32, "hidden_size": 32, "num_heads": 4, "mlp_ratio": 2}
    special = {"image": IMAGE, "video": 101, "vision_start": 102, "vision_end": 103}
    config = transformers.Qwen2VLConfig(
        vision_config={**tower, "patch_size": 8, "temporal_patch_size": 1},
        text_config={**TEXT, "rope_parameters": rope, "bos_token_id": 1, "eos_token_id": 2},
        **{f"{name}_token_id": number for name, number in special.items()},
    )
    return transformers.Qwen2VLForConditionalGeneration(config)


MODELS = {
    "smolvlm": (_smolvlm, 1, (1, 3, 16, 16)),
    "gemma3": (_gemma3, 1, (3, 16, 16)),
    "qwen2_vl": (_qwen2_vl, 1, (4, 192)),
    "llava": (_llava, 4, (3, 16, 16)),
}
"""What makes each, how many tokens stand for a picture, and the shape of its pixels."""
OUTSIDE = {
    "smolvlm": ["model.vision_model", "model.connector"],
    "gemma3": ["model.vision_tower", "model.multi_modal_projector"],
    "qwen2_vl": ["model.visual"],
    "llava": ["model.vision_tower", "model.multi_modal_projector"],
}


def _model_and_batch(name: str) -> tuple[transformers.PreTrainedModel, dict[str, Tensor]]:
    make, tokens, shape = MODELS[name]
    torch.manual_seed(0)
    ids = torch.randint(3, 99, (2, 9))
    ids[:, 1 : 1 + tokens] = IMAGE
    pixels = torch.randn(2, *shape)
    batch = {"input_ids": ids, "pixel_values": pixels, "attention_mask": torch.ones_like(ids)}
    if name == "qwen2_vl":
        batch["pixel_values"] = pixels.flatten(0, 1)
        batch["image_grid_thw"] = torch.tensor([[1, 2, 2]] * 2)
        batch["mm_token_type_ids"] = (ids == IMAGE).int()
    if name == "gemma3":
        batch["token_type_ids"] = (ids == IMAGE).long()
    return make().eval(), batch


@pytest.mark.filterwarnings("ignore::chop.ir.unreached.UnreachedWarning")
@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", MODELS)
def test_one_switch_leaves_the_tower_float_and_packs_the_text(name, tmp_path):
    model, batch = _model_and_batch(name)
    model.save_pretrained(tmp_path / "float")
    config = ChopConfig("mxint4", skip_vision=True)
    packed = type(model).from_pretrained(tmp_path / "float", quantization_config=config).eval()
    outside = tuple(OUTSIDE[name])
    in_codes = {n for n, x in packed.named_modules() if isinstance(x, PackedOperator)}
    floats = {n for n, x in packed.named_modules() if type(x) in (nn.Linear, nn.Embedding)}
    assert in_codes and floats
    assert not any(path.startswith(outside) for path in in_codes)
    # Its output layer is tied to a table that scales what it gives, and which is not packed.
    heads = {"lm_head"} if name == "gemma3" else set()
    assert {path for path in floats if not path.startswith(outside)} == heads

    packed.save_pretrained(tmp_path / "packed")
    again = type(model).from_pretrained(tmp_path / "packed").eval()
    with torch.no_grad():
        assert torch.equal(again(**batch).logits, packed(**batch).logits)
        assert not torch.equal(packed(**batch).logits, model(**batch).logits)


@pytest.mark.long
@pytest.mark.parametrize("name", ["smolvlm", "llava"])
def test_packed_logits_with_images_are_the_quantized_ones(name):
    model, batch = _model_and_batch(name)
    rule = {"config": {"weight": {"name": "mxint", "width": 4}}}
    skip = vision_modules(model)
    settings = {"by": "type", "linear": rule, "embedding": rule, "skip": skip}
    quantized, _ = passes.quantize_transform_pass(MaseGraph(model, dummy_in=batch), settings)
    corrected, info = passes.gptq_transform_pass(quantized, {"batches": [batch]})
    assert info
    packed, _ = passes.pack_transform_pass(corrected, {"silent": True})
    with torch.no_grad():
        expected = corrected.model(**batch).logits
        assert torch.equal(packed.model(**batch).logits, expected)
        assert torch.equal(packed.to_module()(**batch).logits, expected)
        assert not torch.equal(quantized.model(**batch).logits, expected)


def test_the_modules_outside_are_those_beside_the_decoder():
    for name, outside in OUTSIDE.items():
        assert vision_modules(_model_and_batch(name)[0]) == outside


def test_a_model_without_a_tower_is_refused(tmp_path):
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**TEXT))
    with pytest.raises(ConfigError, match="skip_vision: LlamaForCausalLM has no vision tower"):
        check_has_vision(model, "skip_vision")
    assert vision_modules(model) == []
    model.save_pretrained(tmp_path)
    config = ChopConfig("mxint4", skip_vision=True)
    with pytest.raises(ConfigError, match="has no vision tower"):
        transformers.LlamaForCausalLM.from_pretrained(tmp_path, quantization_config=config)
    with pytest.raises(ConfigError, match="skip_vision: got 'yes'"):
        ChopConfig("mxint4", skip_vision="yes")


SETTINGS = {"formats": ("mxint:width=8",), "max_drop": 1.0, "bench_seconds": 0}


def test_training_on_pictures_in_texts_is_refused_at_once(tmp_path):
    model, batch = _model_and_batch("smolvlm")
    rows = {**batch, "labels": batch["input_ids"]}
    with pytest.raises(ConfigError, match="training on texts with images is not supported"):
        chop.compress(model, rows, rows, out=tmp_path / "out", task="causal-lm", **SETTINGS)
    assert not (tmp_path / "out" / "model.pt").exists()


@pytest.mark.long
@pytest.mark.parametrize("has_pictures", [True, False])
def test_compress_leaves_the_tower_float_and_says_so(has_pictures, tmp_path, capsys):
    model, batch = _model_and_batch("smolvlm")
    ids = torch.randint(3, 99, (16, 9), generator=torch.Generator().manual_seed(1))
    rows = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    settings = {**SETTINGS, "method": ("gptq",), "qat_epochs": 0, "keep_best": True}
    match = "The rows have no images: model.vision_model, model.connector stay in float"
    if has_pictures:
        rows = {name: x.repeat(3, *[1] * (x.dim() - 1)) for name, x in batch.items()}
        settings |= {"skip_vision": True}
        match = "--skip-vision: model.vision_model, model.connector stay in float"
    rows["labels"] = rows["input_ids"]
    found = chop.compress(
        model, rows, rows, out=tmp_path / "out", task="causal-lm", force=True, **settings
    )
    assert match in " ".join(capsys.readouterr().out.split())
    in_codes = [n for n, x in found.model.named_modules() if isinstance(x, PackedOperator)]
    assert in_codes and not any(path.startswith(tuple(OUTSIDE["smolvlm"])) for path in in_codes)
    with torch.no_grad():
        assert found.model(**batch).logits.isfinite().all()


def test_a_folder_with_a_tower_is_loaded_as_it_is(tmp_path):
    model, batch = _model_and_batch("llava")
    model.save_pretrained(tmp_path)
    loaded = load_model(tmp_path, task="text-generation")
    assert type(loaded) is type(model)
    with torch.no_grad():
        assert torch.equal(loaded(**batch).logits, model(**batch).logits)


def test_a_batch_of_texts_with_pictures_is_refused():
    rows = SimpleNamespace(columns={"input_ids": 0, "pixel_values": 0})
    check_batch(rows, 1)
    check_batch(SimpleNamespace(columns={"pixel_values": 0}), 16)
    with pytest.raises(ConfigError, match="one text with images at a time"):
        check_batch(rows, 16)


def test_the_switch_without_a_format_is_refused():
    layers = {"fc": {"weight": "mxint"}}
    with pytest.raises(ConfigError, match="skip_vision .*: expected formats"):
        CompressConfig(formats=(), layers=layers, skip_vision=True)
