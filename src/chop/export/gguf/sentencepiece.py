"""GGUF tokenizers in SentencePiece form: character BPE with byte fallback, merges as scores.

Engines merge the two neighbors whose union has the highest score in the vocabulary. An ordered list
of merges becomes scores that decrease in this order. Both give the same tokens if every pair of
tokens with a given union may be merged, and all merges with that union are adjacent in the list.

Source: llama.cpp, `llama-vocab.cpp`, `llm_tokenizer_spm_session`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

SPACE = "▁"
"""Spelling of a space in tokens."""
BYTE = re.compile(r"<0x[0-9A-F]{2}>")
UNKNOWN, BYTES = 2, 6
"""Token types in GGUF."""
Pair = tuple[str, str]


def has_space_before(document: Mapping[str, Any]) -> bool | None:
    """Returns True if a space is put before texts; None if spaces or bytes are spelled differently.

    Args:
        document: content of `tokenizer.json`.
    """
    if not document["model"].get("byte_fallback"):
        return None
    before, steps = document.get("pre_tokenizer") or {}, _normalizers(document)
    if before.get("type") == "Metaspace":
        is_whole = before.get("replacement") == SPACE and not before.get("split") and not steps
        return before.get("prepend_scheme", "always") != "never" if is_whole else None
    # What a text is parted at is a space, of which none is left.
    if before and (before.get("type"), before.get("pattern")) != ("Split", {"String": " "}):
        return None
    replaced = ("Replace", {"String": " "}, SPACE)
    if steps == [("Prepend", None, SPACE), replaced]:
        return True
    return False if steps == [replaced] else None


def _normalizers(document: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    whole = document.get("normalizer") or {"type": "Sequence", "normalizers": []}
    parts = whole["normalizers"] if whole["type"] == "Sequence" else [whole]
    return [(x["type"], x.get("pattern"), x.get("content", x.get("prepend"))) for x in parts]


def compute_scores(
    vocabulary: Mapping[str, int], merges: Sequence[Pair]
) -> tuple[dict[str, float], bool]:
    """Returns scores by token, and True if they reproduce the merges.

    Args:
        vocabulary: ids by token.
        merges: pairs of tokens, by decreasing priority.
    Returns: tokens that no merge creates have no score.
    """
    unions = [left + right for left, right in merges]
    order = {union: rank for rank, union in enumerate(dict.fromkeys(unions))}
    # Merges with one union share a score: they must be adjacent in the list to keep its order.
    turns = sum(one != other for one, other in pairwise(unions))
    is_grouped = turns + bool(unions) == len(order)
    allowed = set(merges)
    pairs = (
        (token[:cut], token[cut:])
        for token in vocabulary
        for cut in range(1, len(token))
        if token[:cut] in vocabulary and token[cut:] in vocabulary
    )
    # Scores allow any split of a token into two tokens, merges only the listed ones.
    is_exact = is_grouped and all(pair in allowed for pair in pairs)
    return {union: -float(rank + 1) for union, rank in order.items()}, is_exact
