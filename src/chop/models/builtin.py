"""Built-in models: constructor, data set and training recipe."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from chop.data.builtin_names import builtin_name
from chop.data.stories import END
from chop.data.tokenizer import STORY_LIMIT, STORY_TOKENS, STORY_VOCABULARY
from chop.runs import MANIFEST

if TYPE_CHECKING:
    from torch import nn


HELD = ("config.json", "*.safetensors", "*.gguf", "pytorch_model*.bin")
"""File patterns that identify a model folder."""


@dataclass(frozen=True)
class Recipe:
    """Training recipe that reaches a built-in model's usual accuracy in seconds on a CPU."""

    epochs: int
    lr: float
    batch_size: int
    weight_decay: float = 0.01


@dataclass(frozen=True)
class BuiltinModel:
    """Built-in model.

    Attributes:
        build: number of labels -> untrained module.
        dataset: its built-in data set.
        num_labels: number of classes of that data set; for text, number of tokens.
        recipe: recipe used by `chop.train.load_trained`.
        task: name of its task in `chop.train.TASKS`.
    """

    build: Callable[[int], nn.Module]
    dataset: str
    num_labels: int
    recipe: Recipe
    task: str = "classification"


def _mlp(num_labels: int) -> nn.Module:
    from chop.models.images import DigitsMLP

    return DigitsMLP(num_labels)


def _cnn(num_labels: int) -> nn.Module:
    from chop.models.images import DigitsCNN

    return DigitsCNN(num_labels)


def _vit(num_labels: int) -> nn.Module:
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        image_size=8,
        patch_size=2,
        num_channels=1,
        hidden_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=192,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        num_labels=num_labels,
    )
    model: nn.Module = ViTForImageClassification(config)
    return model


def _bert_tiny(num_labels: int) -> nn.Module:
    from transformers import BertConfig, BertForSequenceClassification

    # For training from scratch on short texts: without dropout and from larger weights it learns
    # to read in a few epochs, and with BERT's settings it stays at counting words.
    config = BertConfig(
        vocab_size=512,
        hidden_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=512,
        max_position_embeddings=512,
        initializer_range=0.05,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        num_labels=num_labels,
    )
    model: nn.Module = BertForSequenceClassification(config)
    return model


def _gpt_tiny(num_labels: int) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    # Grouped queries and a tied embedding, as in current small decoders.
    config = LlamaConfig(
        vocab_size=num_labels,
        hidden_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=256,
        max_position_embeddings=STORY_LIMIT,
        initializer_range=0.05,
        tie_word_embeddings=True,
        pad_token_id=STORY_TOKENS.index("<pad>"),
        bos_token_id=STORY_TOKENS.index("<s>"),
        eos_token_id=STORY_TOKENS.index(END),
    )
    model: nn.Module = LlamaForCausalLM(config)
    return model


BUILTIN_MODELS: dict[str, BuiltinModel] = {
    "mlp": BuiltinModel(_mlp, "digits", 10, Recipe(epochs=60, lr=3e-3, batch_size=32)),
    "cnn": BuiltinModel(_cnn, "digits", 10, Recipe(epochs=20, lr=3e-3, batch_size=32)),
    "vit": BuiltinModel(_vit, "digits", 10, Recipe(epochs=30, lr=3e-3, batch_size=64)),
    "bert-tiny": BuiltinModel(_bert_tiny, "reviews", 2, Recipe(epochs=8, lr=5e-4, batch_size=32)),
    "gpt-tiny": BuiltinModel(
        _gpt_tiny, "stories", STORY_VOCABULARY, Recipe(4, lr=4e-3, batch_size=32), "causal-lm"
    ),
}


def builtin_model(name: object) -> str | None:
    """Returns the built-in model with a name; None if the name refers to another model.

    A folder with a Hugging Face or GGUF model takes precedence; the prefix `builtin:` always
    selects the built-in model.

    Raises:
        ConfigError: if no built-in model has a name such as `builtin:resnet18`.
    """
    return builtin_name(name, BUILTIN_MODELS, "model", has_model)


def has_model(path: Path) -> bool:
    """Returns whether a path is a folder with a model's configuration or weights."""
    if not path.is_dir() or (path / MANIFEST).is_file():
        return False
    return any(any(path.glob(pattern)) for pattern in HELD)
