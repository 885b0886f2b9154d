"""GGUF tokenizers of characters: BPE with bytes for what it lacks, as SentencePiece's scores.

Engines merge the two neighbors whose union has the highest score of the vocabulary. Merges in an
order become scores that fall in this order; both give the same tokens where every pair of tokens
whose union is one may be merged, and those of one union follow one another.

Source: llama.cpp, `llama-vocab.cpp`, `llm_tokenizer_spm_session`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

SPACE = "▁"
"""How tokens spell a space."""
BYTE = re.compile(r"<0x[0-9A-F]{2}>")
UNKNOWN, BYTES = 2, 6
"""Types of tokens in GGUF."""
Pair = tuple[str, str]


def has_space_before(document: Mapping[str, Any]) -> bool | None:
    """Whether texts get a space in front; None: spaces are spelled otherwise, or bytes are.

    Args:
        document: a tokenizer's `tokenizer.json`.
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
    """Scores by token, and whether they stand for the merges.

    Args:
        vocabulary: ids by token.
        merges: pairs of tokens, the first one first.
    Returns: Tokens that no merge makes are not among the scores.
    """
    unions = [left + right for left, right in merges]
    order = {union: rank for rank, union in enumerate(dict.fromkeys(unions))}
    turns = sum(one != other for one, other in pairwise(unions))
    is_grouped = turns + bool(unions) == len(order)
    allowed = set(merges)
    pairs = (
        (token[:cut], token[cut:])
        for token in vocabulary
        for cut in range(1, len(token))
        if token[:cut] in vocabulary and token[cut:] in vocabulary
    )
    is_exact = is_grouped and all(pair in allowed for pair in pairs)
    return {union: -float(rank + 1) for union, rank in order.items()}, is_exact
