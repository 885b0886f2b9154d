"""GGUF tokenizer: byte-level or character BPE as keys for llama.cpp."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from chop.errors import ConfigError
from chop.export.gguf.sentencepiece import (
    BYTE,
    BYTES,
    SPACE,
    UNKNOWN,
    compute_scores,
    has_space_before,
)
from chop.export.gguf.split import DEFAULT, NAME, WHOLE_WORDS, get_name, steps_named

NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5
"""Token types in GGUF."""
UNUSED_TEXT = "[PAD{}]"
"""Text of an id without a token."""
OTHERWISE = "may split texts differently"
SPACED = "also puts a space before texts that begin with one, and after special tokens"
IDS = {
    "bos_token_id": "bos_token_id",
    "eos_token_id": "eos_token_id",
    "unk_token_id": "unknown_token_id",
    "pad_token_id": "padding_token_id",
}
"""GGUF keys by tokenizer attribute."""


@dataclass(frozen=True)
class Vocabulary:
    """Tokenizer in GGUF form.

    Attributes:
        tokens: tokens by id.
        types: types of the tokens.
        merges: pairs of tokens separated by a space, by decreasing priority.
        pre: llama.cpp's name of the pre-tokenizer.
        ids: special tokens, and flags that add one before or after texts, by GGUF key.
        chat_template: one template, named templates, or None.
        scores: scores of the tokens for character BPE; None for byte-level BPE.
        differences: known differences from llama.cpp's splitting; "" if none is known.
    """

    tokens: list[str]
    types: list[int]
    merges: list[str]
    pre: str
    ids: dict[str, int | bool]
    chat_template: str | list[dict[str, str]] | None
    scores: list[float] | None = None
    differences: str = ""

    @property
    def model(self) -> str:
        """Name of the tokenizer model in GGUF."""
        return "gpt2" if self.scores is None else "llama"

    @property
    def summary(self) -> str:
        """Short description for the user."""
        kind = f"byte-level BPE, split as '{self.pre}'" if self.scores is None else "SentencePiece"
        return f"{kind}; llama.cpp {self.differences}" if self.differences else kind


def get_vocabulary(tokenizer: Any, size: int) -> Vocabulary:
    """Returns the tokens, merges and settings of a tokenizer.

    Args:
        tokenizer: transformers tokenizer.
        size: size of the model's embedding; ids without a token get an unused one.

    Raises:
        ConfigError: if engines do not support the tokenizer, or if it has more tokens than `size`.
    """
    document = _document(tokenizer)
    texts, types = _tokens(document)
    if max(texts) >= size:
        raise ConfigError(
            f"gguf: the tokenizer has the id {max(texts)}, but the model only {size} tokens. Pass "
            "the tokenizer that the model was trained with."
        )
    template = getattr(tokenizer, "chat_template", None)
    if isinstance(template, Mapping):
        template = [{"name": name, "template": text} for name, text in template.items()]
    said = tokenizer.init_kwargs.get(NAME)
    pre = get_name(
        tuple(_steps(document["pre_tokenizer"])), said if isinstance(said, str) else None
    )
    vocabulary = Vocabulary(
        [texts.get(index, UNUSED_TEXT.format(index)) for index in range(size)],
        [types.get(index, UNUSED) for index in range(size)],
        [x if isinstance(x, str) else " ".join(x) for x in document["model"]["merges"]],
        pre or DEFAULT,
        _ids(tokenizer),
        template,
    )
    space_before = has_space_before(document)
    if space_before is None:
        takes_words = bool(document["model"].get("ignore_merges"))
        is_split_alike = (
            pre is not None
            and steps_named(pre) is not None
            and (not takes_words or pre in WHOLE_WORDS)
        )
        return vocabulary if is_split_alike else replace(vocabulary, differences=OTHERWISE)
    is_metaspace = (document.get("pre_tokenizer") or {}).get("type") == "Metaspace"
    return _as_sentencepiece(
        vocabulary, space_before, SPACED if is_metaspace and space_before else ""
    )


def _tokens(document: Mapping[str, Any]) -> tuple[dict[int, str], dict[int, int]]:
    """Returns texts and types of tokens by id."""
    vocabulary = document["model"]["vocab"]
    texts = {index: token for token, index in vocabulary.items()}
    types = {
        index: UNUSED if x == UNUSED_TEXT.format(index) else NORMAL for index, x in texts.items()
    }
    for token in document.get("added_tokens") or []:
        texts[token["id"]] = token["content"]
        types[token["id"]] = CONTROL if token["special"] else USER_DEFINED
    return texts, types


def _as_sentencepiece(source: Vocabulary, space_before: bool, differences: str) -> Vocabulary:
    """Replaces merges by scores, and token types by those of SentencePiece."""
    vocabulary = {token: index for index, token in enumerate(source.tokens)}
    halves = (pair.partition(" ") for pair in source.merges)
    scores, is_exact = compute_scores(vocabulary, [(left, right) for left, _, right in halves])
    named = zip(source.tokens, source.types, strict=True)
    types = [BYTES if BYTE.fullmatch(token) else kind for token, kind in named]
    unknown = source.ids.get("unknown_token_id")
    if unknown is not None:
        types[unknown] = UNKNOWN
    # Engines look for added tokens in the text itself, whose spaces are spaces.
    spelled = [
        token.replace(SPACE, " ") if kind == USER_DEFINED else token
        for token, kind in zip(source.tokens, types, strict=True)
    ]
    return replace(
        source,
        tokens=spelled,
        types=types,
        merges=[],
        ids={**source.ids, "add_space_prefix": space_before},
        scores=[scores.get(token, 0.0) for token in source.tokens],
        differences=differences if is_exact else OTHERWISE,
    )


def _document(tokenizer: Any) -> dict[str, Any]:
    """Returns the `tokenizer.json` of a BPE tokenizer that engines support."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    document: dict[str, Any] = {} if backend is None else json.loads(backend.to_str())
    kind = document.get("model", {}).get("type", type(tokenizer).__name__)
    steps = _steps(document.get("pre_tokenizer"))
    if kind == "BPE" and has_space_before(document) is not None:
        return document
    if kind != "BPE" or not {"bytes", "words"} & set(steps):
        what = "another kind of character BPE" if kind == "BPE" else kind
        raise ConfigError(
            "gguf: expected a fast tokenizer of byte-level BPE, or of character BPE with byte "
            f"fallback and spaces as '{SPACE}', got {what}. Write the file without a tokenizer "
            "(--no-tokenizer), and pass token ids to engines."
        )
    normalizer = (document.get("normalizer") or {}).get("type")
    if normalizer is not None:
        raise ConfigError(
            f"gguf: engines do not support the tokenizer's normalizer ({normalizer}). Write the "
            "file without a tokenizer (--no-tokenizer), and pass token ids to engines."
        )
    return document


def _steps(pre_tokenizer: Mapping[str, Any] | None) -> list[str]:
    """Returns the steps of a pre-tokenizer: words or digits, a regular expression, bytes."""
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
    ids_by_key: dict[str, int | bool] = {}
    for attribute, key in IDS.items():
        index = getattr(tokenizer, attribute, None)
        if index is not None:
            ids_by_key[key] = int(index)
    ids = tokenizer("a").input_ids
    for key, special, end in (("bos", "bos_token_id", 0), ("eos", "eos_token_id", -1)):
        ids_by_key[f"add_{key}_token"] = len(ids) > 1 and ids[end] == ids_by_key.get(special)
    return ids_by_key
