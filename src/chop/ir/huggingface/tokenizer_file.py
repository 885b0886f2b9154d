"""Validation of tokenizer files before `tokenizers` reads them.

That library allocates memory by a number in its character tables, and a failed allocation ends the
process. Added tokens take it quadratic time. Replacements and templates can lengthen a text by any
factor.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from chop.base.files.documents import read_json
from chop.base.files.library_errors import library_errors
from chop.errors import CheckpointError

FILE, CONFIG, ADDED = "tokenizer.json", "tokenizer_config.json", "added_tokens.json"
PARTS = ("normalizer", "pre_tokenizer", "post_processor", "decoder")
MOST_ADDED = 2**16
"""Maximum number of added tokens; models from the hub have at most a few thousand."""
MOST_GROWTH = 2**16
"""Maximum factor by which all replacements together may lengthen a text."""
MOST_PIECES = 2**10
"""Maximum number of parts of a template."""


def check_tokenizer_files(folder: Path) -> None:
    """Checks the sizes in tokenizer files against their limits.

    Args:
        folder: local folder; missing files are skipped.
    Raises:
        CheckpointError: if a file is not JSON, or exceeds a limit.
    """
    document = _read(folder / FILE)
    _check_added(folder / FILE, document.get("added_tokens"))
    for value in _read(folder / CONFIG).values():
        _check_added(folder / CONFIG, value)
    _check_added(folder / ADDED, _read(folder / ADDED))
    growth = 1.0
    for part in _objects([document.get(name) for name in PARTS]):
        kind = part.get("type")
        if kind == "Precompiled" and not _is_whole_table(_decoded(part)):
            raise CheckpointError(
                f"'{folder / FILE}' cannot be read: its precompiled_charsmap is cut short."
            )
        if kind == "TemplateProcessing" and _longest(part) > MOST_PIECES:
            raise CheckpointError(
                f"'{folder / FILE}' has a template of {_longest(part):,} parts, expected "
                f"{MOST_PIECES:,} at most."
            )
        if kind == "Replace":
            growth *= _growth(part)
    if growth > MOST_GROWTH:
        raise CheckpointError(
            f"'{folder / FILE}' has replacements that make a text {growth:.3g} times as long, "
            f"expected {MOST_GROWTH:,} times at most."
        )


def _is_whole_table(table: bytes) -> bool:
    """Returns whether a SentencePiece character table has as many bytes as it declares.

    >>> _is_whole_table(bytes([4, 0, 0, 0, 1, 2, 3, 4])), _is_whole_table(bytes([255] * 4))
    (True, False)
    """
    return len(table) >= 4 and struct.unpack_from("<I", table)[0] <= len(table) - 4


def _read(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    with library_errors(path, problem="has a tokenizer or processor that cannot be read"):
        document: dict[str, Any] = read_json(path, "tokenizer")
    return document


def _check_added(path: Path, tokens: Any) -> None:
    if isinstance(tokens, dict | list) and len(tokens) > MOST_ADDED:
        raise CheckpointError(
            f"'{path}' has {len(tokens):,} added tokens, expected {MOST_ADDED:,} at most."
        )


def _objects(value: Any) -> Iterator[dict[str, Any]]:
    """Yields nested objects of a document; `read_json` has limited its depth."""
    if isinstance(value, dict):
        yield value
        value = list(value.values())
    for item in value if isinstance(value, list) else ():
        yield from _objects(item)


def _decoded(part: dict[str, Any]) -> bytes:
    try:
        return base64.b64decode(part.get("precompiled_charsmap") or "")
    except (ValueError, TypeError):
        return b""


def _longest(part: dict[str, Any]) -> int:
    tokens = part.get("special_tokens")
    listed = [part.get("single"), part.get("pair")]
    listed += [each.get("ids") for each in _objects(tokens)]
    return max((len(each) for each in listed if isinstance(each, list)), default=0)


def _growth(part: dict[str, Any]) -> float:
    """Returns the largest factor by which a replacement lengthens a text."""
    content, pattern = part.get("content"), part.get("pattern")
    if not isinstance(content, str) or not isinstance(pattern, dict):
        return 1
    text = pattern.get("String")
    if isinstance(text, str) and text:
        return max(1, len(content) / len(text))
    return 1 + len(content)  # an expression may match between all characters
