"""Hugging Face models, one per family, from tiny random configurations."""

from __future__ import annotations

import copy
import functools
import pickle
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import nn

from chop.capture.inputs import dummy_inputs
from chop.capture.tracer import capture
from chop.captured.leaves import tensors_in
from chop.captured.record import CaptureWarning
from chop.errors import CaptureError, ConfigError, GuardError

TEXT = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "vocab_size": 128,
    "max_position_embeddings": 64,
}
VISION = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "image_size": 16,
    "patch_size": 4,
}
LLAMA = {**TEXT, "num_key_value_heads": 2, "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 2}
SEQ2SEQ = {
    "d_model": 32,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "vocab_size": 128,
    "max_position_embeddings": 64,
}
SPEECH = {
    **{key: value for key, value in TEXT.items() if key != "max_position_embeddings"},
    "conv_dim": [16, 16],
    "conv_kernel": [4, 3],
    "conv_stride": [4, 2],
    "num_conv_pos_embeddings": 4,
    "num_conv_pos_embedding_groups": 2,
    "num_hidden_layers": 1,
    "mask_time_prob": 0.0,
    "layerdrop": 0.0,
}

FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "encoder": ("BertForSequenceClassification", {**TEXT, "num_labels": 3}),
    "relative_positions": ("DebertaV2Model", TEXT),
    "decoder": (
        "GPT2LMHeadModel",
        {"n_embd": 32, "n_layer": 1, "n_head": 4, "vocab_size": 128, "n_positions": 64},
    ),
    "rotary_decoder": ("LlamaForCausalLM", {**LLAMA, "num_hidden_layers": 1}),
    "sliding_decoder": ("Gemma2Model", {**LLAMA, "head_dim": 8, "sliding_window": 8}),
    "experts": ("MixtralForCausalLM", {**LLAMA, "num_hidden_layers": 1, "num_local_experts": 4}),
    "seq2seq": (
        "T5ForConditionalGeneration",
        {
            "d_model": 32,
            "d_kv": 8,
            "d_ff": 64,
            "num_heads": 4,
            "vocab_size": 128,
            "num_layers": 1,
            "num_decoder_layers": 2,
        },
    ),
    "vision": ("ViTForImageClassification", {**VISION, "num_hidden_layers": 1}),
    "windowed_vision": (
        "SwinModel",
        {"image_size": 32, "embed_dim": 8, "depths": [1, 1], "num_heads": [2, 2], "window_size": 4},
    ),
    "convolution": (
        "ResNetForImageClassification",
        {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "layer_type": "basic"},
    ),
    "modern_convolution": (
        "ConvNextModel",
        {"hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2, "drop_path_rate": 0.2},
    ),
    "audio": (
        "WhisperModel",
        {
            **SEQ2SEQ,
            "num_mel_bins": 16,
            "pad_token_id": 0,
            "max_source_positions": 20,
            "max_target_positions": 32,
        },
    ),
    "speech": ("HubertModel", SPEECH),
    "two_towers": ("CLIPModel", {"text_config": TEXT, "vision_config": VISION}),
    "state_space": (
        "Mamba2Model",
        {
            "hidden_size": 32,
            "num_hidden_layers": 1,
            "vocab_size": 128,
            "state_size": 8,
            "num_heads": 8,
            "head_dim": 8,
            "n_groups": 2,
            "chunk_size": 1,
        },
    ),
    "layout": ("LayoutLMModel", {**TEXT, "num_hidden_layers": 1}),
}

# Weight norm keeps its parameters in classes that torch itself refuses to pickle.
NOT_PICKLABLE = {"speech"}

# Much like others, or slow to capture.
LONG = {
    *("state_space", "sliding_decoder", "two_towers", "layout", "modern_convolution"),
}

# Its mixer computes in one way in training and in another otherwise.
HIDDEN = {"state_space": "Mamba2Mixer"}


def build(family: str) -> nn.Module:
    name, settings = FAMILIES[family]
    cls = getattr(transformers, name)
    torch.manual_seed(0)
    return cls(cls.config_class(**settings, use_cache=False))


def run(model: nn.Module, inputs: dict[str, Any], training: bool = False) -> list[torch.Tensor]:
    model.train(training)
    torch.manual_seed(1)
    return tensors_in(model(**inputs))


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(family, marks=[pytest.mark.long] if family in LONG else [])
        for family in FAMILIES
    ],
)
def case(request: pytest.FixtureRequest) -> Any:
    model = build(request.param)
    inputs = dummy_inputs(model)
    if request.param in HIDDEN:
        with pytest.warns(CaptureWarning, match=HIDDEN[request.param]):
            return request.param, model, inputs, capture(model, inputs)
    return request.param, model, inputs, capture(model, inputs, strict=True)


def close(found: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    assert expected
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.sampled(1)
def test_family_in_eval_and_at_other_sizes(case: Any) -> None:
    family, model, inputs, captured = case
    close(run(captured, inputs), run(model, inputs))
    close(run(captured, dummy_inputs(model, batch=1)), run(model, dummy_inputs(model, batch=1)))
    if family != "state_space":
        other = dummy_inputs(model, batch=5, length=9)
        close(run(captured, other), run(model, other))


@pytest.mark.sampled(2)
def test_family_in_training(case: Any) -> None:
    _, model, inputs, captured = case
    close(run(captured, inputs, training=True), run(model, inputs, training=True))


@pytest.mark.sampled(2)
def test_family_gradients_and_state(case: Any) -> None:
    _, model, inputs, captured = case
    gradients = []
    for twin in (model, captured):
        twin.zero_grad()
        sum(t.square().mean() for t in run(twin, inputs) if t.requires_grad).backward()
        gradients.append({_name(name): p.grad for name, p in twin.named_parameters()})
    assert list(captured.state_dict()) == list(model.state_dict())
    assert any(gradient is not None for gradient in gradients[0].values())
    for name, gradient in gradients[1].items():
        expected = gradients[0][name]
        gradients[1][name] = gradient if expected is None else gradient.view_as(expected)
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-4, atol=1e-5)


def _name(parameter: str) -> str:
    """What a model calls a parameter of experts that is the weight of a layer in its graph."""
    return re.sub(r"(experts\.\w+)\.weight$", r"\1_proj", parameter)


@pytest.mark.sampled(1)
def test_family_copies_and_pickles(case: Any) -> None:
    family, _, inputs, captured = case
    expected = run(captured, inputs)
    close(run(copy.deepcopy(captured), inputs), expected)
    if family in NOT_PICKLABLE:
        with pytest.raises(RuntimeError, match="parametrized modules"):
            pickle.dumps(captured)
    else:
        close(run(pickle.loads(pickle.dumps(captured)), inputs), expected)


@functools.cache
def encoder_with_loss() -> tuple[nn.Module, nn.Module]:
    """A model and its capture, which no test changes."""
    model = build("encoder")
    return model, capture(model, input_names=["input_ids", "attention_mask", "labels"])


@pytest.mark.long
def test_sequences_longer_than_the_table_are_refused() -> None:
    captured = capture(build("encoder"))
    with pytest.raises(GuardError, match=r"input_ids\.shape\[1\] <= 64 .*modeling_bert\.py:\d+"):
        captured(**dummy_inputs(build("encoder"), batch=2, length=65))


@pytest.mark.long
def test_layer_dropping_is_switched_off_and_said_so() -> None:
    model = transformers.HubertModel(transformers.HubertConfig(**{**SPEECH, "layerdrop": 0.1}))
    with pytest.warns(CaptureWarning, match=r"layerdrop=0\.1"):
        captured = capture(model)
    assert model.config.layerdrop == 0.1
    inputs = dummy_inputs(model)
    close(run(captured, inputs), run(model, inputs))


def test_unknown_inputs_are_refused() -> None:
    with pytest.raises(ConfigError, match="did you mean 'attention_mask'"):
        capture(build("encoder"), input_names=["input_ids", "attention_masks"])
    with pytest.raises(
        CaptureError, match="takes only input_ids, attention_mask, .* got input_ids$"
    ):
        capture(build("decoder"), input_names=["input_ids", "cache"])


@pytest.mark.long
def test_the_trainer_gives_the_same_losses(tmp_path: Path) -> None:
    model, captured = encoder_with_loss()
    rows = [
        {name: value[0] for name, value in dummy_inputs(model, TRAINED, batch=1).items()}
        for _ in range(12)
    ]
    for index, row in enumerate(rows):
        row["labels"] = torch.tensor(index % 3)
        row["input_ids"] = torch.randint(5, 128, row["input_ids"].shape)
    assert losses(copy.deepcopy(captured), rows, tmp_path) == losses(
        copy.deepcopy(model), rows, tmp_path
    )


TRAINED = ["input_ids", "attention_mask", "labels", "token_type_ids"]


def losses(model: nn.Module, rows: list[dict[str, Any]], folder: Path) -> list[float]:
    arguments = transformers.TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=4,
        num_train_epochs=2,
        learning_rate=1e-3,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        seed=1,
        use_cpu=True,
        disable_tqdm=True,
        label_names=["labels"],
        remove_unused_columns=False,
    )
    trainer = transformers.Trainer(
        model=model, args=arguments, train_dataset=rows, eval_dataset=rows
    )
    trainer.train()
    history = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert len(history) == 6
    return [*history, trainer.evaluate()["eval_loss"]]


def test_pictures_are_as_large_as_configurations_say_or_as_processors_make_them() -> None:
    silent, names, speaks = (build(f) for f in ("convolution", "modern_convolution", "vision"))
    assert dummy_inputs(silent)["pixel_values"].shape == (3, 3, 224, 224)
    assert dummy_inputs(names)["pixel_values"].shape == (3, 3, 224, 224)
    assert dummy_inputs(speaks)["pixel_values"].shape == (3, 3, 16, 16)


@pytest.mark.long
def test_hooks_that_a_first_run_puts_on_a_model_do_not_add_up() -> None:
    model = build("encoder").eval()
    inputs = dummy_inputs(model)
    captured = capture(model, inputs, concrete_args={"output_hidden_states": True})
    for _ in range(2):
        expected = model(**inputs, output_hidden_states=True).hidden_states
        assert len(expected) == model.config.num_hidden_layers + 1
    found = captured(**inputs)["hidden_states"]
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)
