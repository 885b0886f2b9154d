"""GGUF pre-tokenizers (`tokenizer.ggml.pre`): splitting of texts before BPE merges.

Steps are `digits` (each digit separate), `words` (GPT-2's words), `bytes` (as characters), or the
regular expression of words. Source: llama.cpp, `llama-vocab.cpp`, the types of pre-tokenizers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from chop.private.transformers_api import gguf_splits

PRE, DEFAULT = "tokenizer.ggml.pre", "default"
BUILDING = ("vocab_file", "added_tokens_decoder", "extra_special_tokens", "backend", "is_local")
"""Tokenizer settings that describe its construction."""
NAME = "gguf_pre"
"""Tokenizer setting that stores the pre-tokenizer name of its GGUF file."""
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
PUNCTUATION, NUMBERS, THREES = r"[\p{P}\$\+<=>\^~\|]+", r"\p{N}+", "[0-9][0-9][0-9]"
WORDS, DIGITS = ("words",), ("digits", "words")
STEPS: Mapping[str, tuple[str, ...]] = {
    # Of several names with the same steps, the first one is written.
    **dict.fromkeys(("gpt-2", "phi-2", "mpt", "olmo", "jais", "trillion", "exaone4"), WORDS),
    **dict.fromkeys(("jina-es", "jina-de", "granite-docling"), WORDS),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "codeshell"), DIGITS),
    **dict.fromkeys(("exaone", "minerva-7b"), DIGITS),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1"), (LLAMA3, "bytes")),
    **dict.fromkeys(("pixtral", "midm-2.0", "lfm2", "jina-v5-nano"), (LLAMA3, "bytes")),
    **dict.fromkeys(("dbrx", "smaug-bpe", "chatglm-bpe"), (LLAMA3, "bytes")),
    **dict.fromkeys(("qwen2", "stablelm2", "hunyuan", "megrez", "kormo"), (QWEN2, "bytes")),
    **dict.fromkeys(("deepseek-r1-qwen", "f2llmv2"), (QWEN2, "bytes")),
    DEFAULT: (PUNCTUATION, GPT2, NUMBERS, THREES, "bytes"),
}
WHOLE_WORDS = (
    *("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1"),
    *("pixtral", "midm-2.0", "lfm2", "jina-v5-nano", "tekken"),
)
"""Names of pre-tokenizers for which a word in the vocabulary is never split by merges."""


def steps_named(name: str) -> tuple[str, ...] | None:
    """Returns the steps of a pre-tokenizer name, or None if it is unknown.

    Args:
        name: value of `tokenizer.ggml.pre`.
    """
    if name in STEPS:
        return STEPS[name]
    split = gguf_splits().get(name)
    return None if split is None else (split, "bytes")


def get_name(steps: tuple[str, ...], said: str | None) -> str | None:
    """Returns the pre-tokenizer name of some steps, or None."""
    if said is not None and steps_named(said) in (steps, None):
        return said
    names = (name for name, known in STEPS.items() if known == steps and name != DEFAULT)
    return next(names, None)


def set_split(tokenizer: Any, name: str) -> bool:
    """Makes a byte-level tokenizer split texts like llama.cpp; returns False if that is unknown.

    Args:
        tokenizer: fast transformers tokenizer; it is changed.
        name: value of `tokenizer.ggml.pre`.
    """
    backend = tokenizer.backend_tokenizer
    tokenizer.init_kwargs[NAME] = name
    if name in WHOLE_WORDS:
        backend.model.ignore_merges = True
    if name in STEPS:
        backend.pre_tokenizer = _pre_tokenizer(STEPS[name])
    return steps_named(name) is not None


def without_others(tokenizer: Any, count: int) -> Any:
    """Returns a tokenizer without tokens that its file lacks, such as defaults of its class."""
    from tokenizers import Tokenizer

    document = json.loads(tokenizer.backend_tokenizer.to_str())
    added = [token for token in document["added_tokens"] if token["id"] < count]
    if len(added) == len(document["added_tokens"]):
        return tokenizer
    backend = Tokenizer.from_str(json.dumps({**document, "added_tokens": added}))
    texts = {token["content"] for token in document["added_tokens"]} - {x["content"] for x in added}
    parts = {
        key: x
        for key, x in tokenizer.init_kwargs.items()
        if key not in BUILDING and not (key.endswith("_token") and str(x) in texts)
    }
    return type(tokenizer)(tokenizer_object=backend, **parts)


def _pre_tokenizer(steps: tuple[str, ...]) -> Any:
    from tokenizers import Regex, pre_tokenizers

    known: dict[str, Any] = {
        "digits": lambda: pre_tokenizers.Digits(individual_digits=True),
        "words": lambda: pre_tokenizers.ByteLevel(add_prefix_space=False),
        "bytes": lambda: pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    }
    made = [
        known[step]() if step in known else pre_tokenizers.Split(Regex(step), "isolated")
        for step in steps
    ]
    return made[0] if len(made) == 1 else pre_tokenizers.Sequence(made)
