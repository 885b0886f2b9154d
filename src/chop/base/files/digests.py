"""SHA-256 digests stored next to files, which detect truncated or modified files."""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from pathlib import Path

from chop.base.files.atomic import atomic_file
from chop.base.files.reading import NotReadableError, open_regular

SUFFIX = ".sha256"
DIGEST_BYTES = 128
"""Maximum size of a digest file, which contains 64 characters and a size."""


def digest_beside(path: Path) -> Path:
    """Returns the path of the digest of a file."""
    return path.with_name(path.name + SUFFIX)


def write_digest(path: Path, content: Path) -> None:
    """Writes digest and size of the future content of `path`, and flushes both files to disk.

    The digest is written before its file is renamed. After a kill in between, the file is missing,
    or an older file does not match. The digest has the same read permissions as its file.

    Raises:
        WriteError: if the disk is full or read-only.
    """
    with open_regular(content, "artifact") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        size = file.tell()
    with content.open("ab") as file:  # Windows only syncs files that are open for writing
        os.fsync(file.fileno())
    with atomic_file(digest_beside(path)) as temporary, temporary.open("w") as file:
        file.write(f"{digest} {size}\n")
        file.flush()
        os.fsync(file.fileno())
        temporary.chmod(content.stat().st_mode & 0o666)


def find_damage(path: Path) -> str | None:
    """Compares a file with its digest; returns a description of the damage, or None."""
    try:
        expected = _read_digest(digest_beside(path))
        with open_regular(path, "artifact") as file:
            size = os.fstat(file.fileno()).st_size
            if expected is None:
                return "it has no readable digest"
            if size != expected[1]:
                return f"it has {size:,} bytes, expected {expected[1]:,}"
            is_same = hashlib.file_digest(file, "sha256").hexdigest() == expected[0]
    except (OSError, NotReadableError) as error:
        return f"it cannot be read: {getattr(error, 'strerror', None) or error}"
    return None if is_same else "its content does not match its digest"


def _read_digest(path: Path) -> tuple[str, int] | None:
    with suppress(OSError, ValueError), open_regular(path, "cached") as file:
        digest, size = file.read(DIGEST_BYTES).decode("ascii").split()
        return digest, int(size)
    return None


def sync_folder(folder: Path) -> None:
    """Flushes the names in a folder to disk, if the system supports it."""
    with suppress(OSError):  # Windows cannot open folders, and some file systems cannot sync them
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
