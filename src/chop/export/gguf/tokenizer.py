"""GGUF tokenizer: BPE of bytes or of characters as the keys that llama.cpp reads."""

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
"""Types of tokens in GGUF."""
UNUSED_TEXT = "[PAD{}]"
"""Type of an id without a token."""
OTHERWISE = "may split texts in another way"
SPACED = "puts a space also before texts that begin with one, and after special tokens"
IDS = {
    "bos_token_id": "bos_token_id",
    "eos_token_id": "eos_token_id",
    "unk_token_id": "unknown_token_id",
    "pad_token_id": "padding_token_id",
}
"""By attribute of a tokenizer, the key in GGUF."""


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
        scores: of the tokens, of BPE of characters; None: it is of bytes.
        differences: where llama.cpp splits texts otherwise, as far as is known; "": nowhere.
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
        """Its kind in GGUF."""
        return "gpt2" if self.scores is None else "llama"

    @property
    def summary(self) -> str:
        """What it is, for whoever wrote it."""
        kind = f"byte-level BPE, split as '{self.pre}'" if self.scores is None else "SentencePiece"
        return f"{kind}; llama.cpp {self.differences}" if self.differences else kind


def get_vocabulary(tokenizer: Any, size: int) -> Vocabulary:
    """The tokens, merges and settings of a tokenizer.

    Args:
        tokenizer: of transformers.
        size: of the model's embedding; ids without a token get an unused one.

    Raises:
        ConfigError: it is no BPE tokenizer that engines have, or has more tokens than `size`.
    """
    document = _document(tokenizer)
    texts, types = _tokens(document)
    if max(texts) >= size:
        raise ConfigError(
            f"gguf: expected a tokenizer of the model's {size} tokens, got one with the id "
            f"{max(texts)}; give the tokenizer that the model was trained with."
        )
    template = getattr(tokenizer, "chat_template", None)
    if isinstance(template, Mapping):
        template = [{"name": name, "template": text} for name, text in template.items()]
    said = tokenizer.init_kwargs.get(NAME)
    pre = get_name(
        tuple(_steps(document["pre_tokenizer"])), said if isinstance(said, str) else None
    )
    found = Vocabulary(
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
        return found if is_split_alike else replace(found, differences=OTHERWISE)
    is_metaspace = (document.get("pre_tokenizer") or {}).get("type") == "Metaspace"
    return _of_characters(found, space_before, SPACED if is_metaspace and space_before else "")


def _tokens(document: Mapping[str, Any]) -> tuple[dict[int, str], dict[int, int]]:
    """Texts and types of tokens by id."""
    vocabulary = document["model"]["vocab"]
    texts = {index: token for token, index in vocabulary.items()}
    types = {
        index: UNUSED if x == UNUSED_TEXT.format(index) else NORMAL for index, x in texts.items()
    }
    for token in document.get("added_tokens") or []:
        texts[token["id"]] = token["content"]
        types[token["id"]] = CONTROL if token["special"] else USER_DEFINED
    return texts, types


def _of_characters(found: Vocabulary, space_before: bool, differences: str) -> Vocabulary:
    """Scores in the place of merges; types as SentencePiece has them."""
    vocabulary = {token: index for index, token in enumerate(found.tokens)}
    halves = (pair.partition(" ") for pair in found.merges)
    scores, is_exact = compute_scores(vocabulary, [(left, right) for left, _, right in halves])
    named = zip(found.tokens, found.types, strict=True)
    types = [BYTES if BYTE.fullmatch(token) else kind for token, kind in named]
    unknown = found.ids.get("unknown_token_id")
    if unknown is not None:
        types[unknown] = UNKNOWN
    # Engines look for added tokens in the text itself, whose spaces are spaces.
    spelled = [
        token.replace(SPACE, " ") if kind == USER_DEFINED else token
        for token, kind in zip(found.tokens, types, strict=True)
    ]
    return replace(
        found,
        tokens=spelled,
        types=types,
        merges=[],
        ids={**found.ids, "add_space_prefix": space_before},
        scores=[scores.get(token, 0.0) for token in found.tokens],
        differences=differences if is_exact else OTHERWISE,
    )


def _document(tokenizer: Any) -> dict[str, Any]:
    """A tokenizer's `tokenizer.json`, where that is of BPE that engines have."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    document: dict[str, Any] = {} if backend is None else json.loads(backend.to_str())
    kind = document.get("model", {}).get("type", type(tokenizer).__name__)
    steps = _steps(document.get("pre_tokenizer"))
    if kind == "BPE" and has_space_before(document) is not None:
        return document
    if kind != "BPE" or not {"bytes", "words"} & set(steps):
        what = "BPE of characters otherwise" if kind == "BPE" else kind
        raise ConfigError(
            "gguf: expected a fast tokenizer of byte-level BPE, or of characters with bytes for "
            f"others and spaces as '{SPACE}', got {what}; write the file "
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
