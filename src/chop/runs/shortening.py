"""Manifests that are too large to be read again: they are written with fewer rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from chop.base.files.writers import TooLargeError, write_json
from chop.base.notices import warn_each_time
from chop.errors import shorten
from chop.runs.serialization import as_json

if TYPE_CHECKING:
    from chop.runs.manifest import Manifest

LONGEST_ERROR = 10_000
"""Characters of an error, where the manifest is too large."""


def write_manifest(path: Path, manifest: Manifest) -> Manifest:
    """Writes a manifest; one that nobody could read again is shortened. Returns what was written.

    Args:
        path: of the file.
        manifest: manifest of a run.
    Raises:
        WriteError: it is too large without rows, or cannot be written.
    """
    for shorter in _ever_shorter(manifest):
        try:
            write_json(path, as_json(shorter), "manifest")
        except TooLargeError as error:
            reason = error
            continue
        if shorter is not manifest:
            warn_each_time(
                f"'{path}' has {len(shorter.rows):,} of {len(manifest.rows):,} rows, and the begin "
                "of a long error: more could not be read again. Tables have all rows.",
                UserWarning,
            )
        return shorter
    raise reason


def _ever_shorter(manifest: Manifest) -> Iterator[Manifest]:
    yield manifest
    most = len(manifest.rows)
    while True:
        most //= 2
        error = manifest.error and shorten(manifest.error, LONGEST_ERROR)
        before = manifest.last_finished
        if before is not None:
            before = replace(before, rows=before.rows[:most])
        yield replace(manifest, rows=manifest.rows[:most], error=error, last_finished=before)
        if most == 0:
            return
