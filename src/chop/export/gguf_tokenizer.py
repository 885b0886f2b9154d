"""GGUF tokenizer: a byte-level BPE tokenizer as the keys that llama.cpp reads."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from chop.errors import ConfigError

NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5
"""Types of tokens in GGUF."""
UNKNOWN_PRE = "default"
IDS = {
    "bos_token_id": "bos_token_id",
    "eos_token_id": "eos_token_id",
    "unk_token_id": "unknown_token_id",
    "pad_token_id": "padding_token_id",
}
"""By attribute of a tokenizer, the key in GGUF."""
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
PRE_TOKENIZERS = {
    ("words",): "gpt-2",
    ("digits", "words"): "smollm",
    (LLAMA3, "bytes"): "llama-bpe",
    (QWEN2, "bytes"): "qwen2",
}
"""Names of llama.cpp's ways to split a text before merges, by the steps of the tokenizer."""


@dataclass(frozen=True)
class Vocabulary:
    """A tokenizer as GGUF holds it.

    Attributes:
        tokens: by id.
        types: of the tokens.
        merges: pairs of tokens, parted by a space, the first one first.
        pre: llama.cpp's name of how texts are split before merges.
        ids: of special tokens, and whether texts get one in front and behind, by key of GGUF.
        chat_template: one, named ones, or None.
    """

    tokens: list[str]
    types: list[int]
    merges: list[str]
    pre: str
    ids: dict[str, int | bool]
    chat_template: str | list[dict[str, str]] | None

    @property
    def summary(self) -> str:
        """What it is, for whoever wrote it."""
        note = "" if self.pre != UNKNOWN_PRE else "; llama.cpp may split texts in another way"
        return f"byte-level BPE, split as '{self.pre}'{note}"


def vocabulary_of(tokenizer: Any, size: int) -> Vocabulary:
    """The tokens, merges and settings of a tokenizer.

    Args:
        tokenizer: of transformers.
        size: of the model's embedding; ids without a token get an unused one.

    Raises:
        ConfigError: it is no byte-level BPE tokenizer, or has more tokens than `size`.
    """
    document = _document(tokenizer)
    model, added = document["model"], document.get("added_tokens") or []
    texts = {index: token for token, index in model["vocab"].items()}
    types = dict.fromkeys(texts, NORMAL)
    for token in added:
        texts[token["id"]] = token["content"]
        types[token["id"]] = CONTROL if token["special"] else USER_DEFINED
    if max(texts) >= size:
        raise ConfigError(
            f"gguf: expected a tokenizer of the model's {size} tokens, got one with the id "
            f"{max(texts)}; give the tokenizer that the model was trained with."
        )
    template = getattr(tokenizer, "chat_template", None)
    if isinstance(template, Mapping):
        template = [{"name": name, "template": text} for name, text in template.items()]
    return Vocabulary(
        [texts.get(index, f"[PAD{index}]") for index in range(size)],
        [types.get(index, UNUSED) for index in range(size)],
        [pair if isinstance(pair, str) else " ".join(pair) for pair in model["merges"]],
        PRE_TOKENIZERS.get(tuple(_steps(document["pre_tokenizer"])), UNKNOWN_PRE),
        _ids(tokenizer),
        template,
    )


def _document(tokenizer: Any) -> dict[str, Any]:
    """A tokenizer's `tokenizer.json`, where that is of byte-level BPE."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    document: dict[str, Any] = {} if backend is None else json.loads(backend.to_str())
    kind = document.get("model", {}).get("type", type(tokenizer).__name__)
    steps = _steps(document.get("pre_tokenizer"))
    if kind != "BPE" or not {"bytes", "words"} & set(steps):
        what = "BPE of characters" if kind == "BPE" else kind
        raise ConfigError(
            f"gguf: expected a fast tokenizer of byte-level BPE, got {what}; write the file "
            "without a tokenizer (--no-tokenizer), and give engines token ids."
        )
    normalizer = (document.get("normalizer") or {}).get("type")
    if normalizer is not None:
        raise ConfigError(
            f"gguf: engines normalize no text, and the tokenizer does ({normalizer}); write the "
            "file without a tokenizer (--no-tokenizer), and give engines token ids."
        )
    return document


def _steps(pre_tokenizer: Mapping[str, Any] | None) -> list[str]:
    """What a pre-tokenizer does: words or digits, a regular expression, bytes as characters."""
    if pre_tokenizer is None:
        return []
    kind = pre_tokenizer["type"]
    if kind == "Sequence":
        return [step for part in pre_tokenizer["pretokenizers"] for step in _steps(part)]
    if kind == "ByteLevel" and not pre_tokenizer["add_prefix_space"]:
        return ["words" if pre_tokenizer["use_regex"] else "bytes"]
    if kind == "Digits" and pre_tokenizer["individual_digits"]:
        return ["digits"]
    if kind == "Split" and pre_tokenizer["behavior"] == "Isolated":
        return [pre_tokenizer["pattern"].get("Regex", kind)]
    return [kind]


def _ids(tokenizer: Any) -> dict[str, int | bool]:
    found: dict[str, int | bool] = {}
    for attribute, key in IDS.items():
        index = getattr(tokenizer, attribute, None)
        if index is not None:
            found[key] = int(index)
    ids = tokenizer("a").input_ids
    for key, special, end in (("bos", "bos_token_id", 0), ("eos", "eos_token_id", -1)):
        found[f"add_{key}_token"] = len(ids) > 1 and ids[end] == found.get(special)
    return found
