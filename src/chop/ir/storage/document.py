"""JSON document of a checkpoint: one line per node, module and tensor, with a final digest."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from chop.base.files.documents import parse_json
from chop.base.files.library_errors import library_errors
from chop.base.files.reading import read_bytes
from chop.errors import CheckpointError, ConfigError
from chop.ir.storage.codec import Json

FORMAT = "chop checkpoint"
VERSION = 3
DIGEST = "sha256"
"""Key of the digest of all preceding bytes. Earlier versions wrote none."""
BEFORE_DIGEST = f',\n"{DIGEST}": "'


def render(document: Mapping[str, Json]) -> bytes:
    """Returns the bytes of a document, with its format, version and digest."""
    head = {"format": FORMAT, "version": VERSION}
    parts = [f'"{name}": {_value(value)}' for name, value in {**head, **document}.items()]
    text = ("{\n" + ",\n".join(parts)).encode()
    return text + f'{BEFORE_DIGEST}{hashlib.sha256(text).hexdigest()}"\n}}\n'.encode()


def _value(value: Json) -> str:
    if isinstance(value, list) and value:
        return "[\n  " + ",\n  ".join(map(_line, value)) + "\n]"
    if isinstance(value, dict) and value:
        lines = (f"{_line(key)}: {_line(item)}" for key, item in value.items())
        return "{\n  " + ",\n  ".join(lines) + "\n}"
    return _line(value)


def _line(value: Json) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def read_document(path: Path) -> dict[str, Json]:
    """Reads the document of a checkpoint.

    Raises:
        CheckpointError: if it is missing, truncated, corrupt, foreign or of another version.
    """
    with library_errors(path):
        data = read_bytes(path, "checkpoint")
    if data[:2] in (b"PK", b"\x80\x02", b"\x80\x04", b"\x80\x05"):
        raise CheckpointError(
            f"'{path}' is a pickle, which could run code and is never loaded; expected a file that "
            "MaseGraph.export wrote. Load it where it was made and export the model from there."
        )
    try:
        document = parse_json(data, None)
    except ConfigError as error:
        raise CheckpointError(f"'{path}' is cut off or corrupt: {error}.") from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise CheckpointError(f"'{path}' is not a chop checkpoint: it does not contain '{FORMAT}'.")
    version = document.get("version")
    if version != VERSION:
        raise CheckpointError(
            f"'{path}' has version {version!r}; this chop reads version {VERSION}. "
            f"{_way_out(version)}"
        )
    text = data.rpartition(BEFORE_DIGEST.encode())[0]
    if DIGEST in document and document.pop(DIGEST) != hashlib.sha256(text).hexdigest():
        raise CheckpointError(
            f"'{path}' is corrupt: it does not match the SHA-256 at its end. Export it again, or "
            "get both files from where they were made. After an edit by hand, remove the entry "
            f"'{DIGEST}' and the comma before it."
        )
    return document


def _way_out(version: Any) -> str:
    if isinstance(version, int) and version > VERSION:
        return "Upgrade mase-chop."
    return "Capture the model again, and export it with this chop."
