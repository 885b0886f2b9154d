"""Writing files so that a killed run leaves none half-written, and a full disk is one sentence."""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from chop.errors import ChopError, WriteError

NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
NOT_ALLOWED = (errno.EACCES, errno.EPERM, errno.EROFS)
NO_FOLDER = (errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG)
ADVICE = {
    **dict.fromkeys(NO_SPACE, "free some space, or choose another folder"),
    **dict.fromkeys((*NOT_ALLOWED, *NO_FOLDER, errno.EIO), "choose another folder"),
}
"""By the code of an operating system's error."""
UNFINISHED = r"\..*\.part"
"""Names of folders whose files are not in their places yet."""
PROBE_BYTES = 4096


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Inside, what the disk refuses is a `WriteError` that names `path`.

    Libraries that write in Rust raise errors of their own, with the code in the text alone.
    """
    try:
        yield
    except ChopError:
        raise
    except Exception as error:
        told = re.search(r"\(os error (\d+)\)", str(error))
        code = error.errno if isinstance(error, OSError) else int(told[1]) if told else None
        if code not in ADVICE:
            raise
        shown = Path(*(part for part in path.parts if not re.fullmatch(UNFINISHED, part)))
        reason = f"{os.strerror(code)}; {ADVICE[code]}."
        raise WriteError(f"'{shown}' cannot be written: {reason}") from error


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """Yields a temporary path beside `path`; renames it to `path` when the block succeeds.

    Parent folders are made. If the block fails the temporary file is removed and an older file at
    `path` stays as it was.

    Raises:
        WriteError: the disk is full or read-only, or `path` can be no file.
    """
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            yield temporary
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


@contextmanager
def replacing_together(folder: str | Path, name: str) -> Iterator[Path]:
    """Yields a folder whose files replace those of `folder` if the block succeeds: all or none.

    One rename, of the new folder to `.{name}.new`, decides. Then its files are moved to their
    places; where a kill stops that, `latest` finds them, and the next writer moves them.

    Args:
        folder: is made, with its parents.
        name: of what the files are together; two writers of one name take turns.
    Raises:
        WriteError: the disk is full or read-only, or one of the files can be none.
    """
    folder = Path(folder)
    fresh, decided = folder / f".{name}.{os.getpid()}.part", folder / f".{name}.new"
    with writing(folder / name):
        folder.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(fresh, ignore_errors=True)
        try:
            fresh.mkdir()
            yield fresh
            for file in fresh.iterdir():
                if (folder / file.name).is_dir():
                    raise IsADirectoryError(errno.EISDIR, "a folder is in the way", file.name)
            _move_into_place(decided)
            fresh.rename(decided)
            _move_into_place(decided)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)


def latest(path: Path) -> Path:
    """Where the newest of what `replacing_together` wrote to `path` is: mostly `path` itself."""
    unmoved = (folder / path.name for folder in path.parent.glob(".*.new"))
    return next((file for file in unmoved if file.is_file()), path)


def _move_into_place(decided: Path) -> None:
    for file in list(decided.iterdir()) if decided.is_dir() else ():
        file.replace(decided.parent / file.name)
    if decided.is_dir():
        decided.rmdir()


def make_folder(path: str | Path) -> Path:
    """Makes a folder, and its parents, and makes sure that files can be written to it.

    Raises:
        WriteError: it cannot be made, is read-only, or its disk is full.
    """
    path = Path(path)
    probe = path / f".{os.getpid()}.probe"
    with writing(path):
        path.mkdir(parents=True, exist_ok=True)
        try:
            probe.write_bytes(bytes(PROBE_BYTES))
        finally:
            probe.unlink(missing_ok=True)
    return path


def write_text(path: str | Path, text: str) -> None:
    """Writes a UTF-8 text file in one step.

    Raises:
        WriteError: the disk is full or read-only, or `path` can be no file.
    """
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
