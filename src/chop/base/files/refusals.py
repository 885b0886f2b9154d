"""Refusals: what the disk does not write, or take for a name, is one sentence with a way out."""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from chop.base.files.temporary import TEMPORARY, temporary_beside
from chop.errors import ChopError, ConfigError, WriteError, shorten

NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
NOT_ALLOWED = (errno.EACCES, errno.EPERM, errno.EROFS)
NO_FOLDER = (errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP)
ADVICE = {
    **dict.fromkeys(NO_SPACE, "free some space, or choose another folder"),
    **dict.fromkeys((*NOT_ALLOWED, *NO_FOLDER, errno.EIO), "choose another folder"),
}
"""By the code of an operating system's error."""
TORCH_WRITER = r"inline_container|PytorchStreamWriter|iostream error"
"""In messages of `torch.save` whose file was not written."""
PROBE_BYTES = 4096
NAME_BYTES = 255
"""Of a name, on most disks."""
SHOWN_CHARACTERS = 60
"""Of a name that is too long."""


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Write errors: inside, what the disk refuses is a `WriteError` that names `path`.

    Libraries raise errors of their own, see `_get_code`.
    """
    try:
        yield
    except ChopError:
        raise
    except Exception as error:
        code = _get_code(error)
        if code == errno.ENOENT and not _takes_files(path if path.is_dir() else path.parent):
            code = errno.EPERM
        if code not in ADVICE:
            raise
        shown = Path(*(part for part in path.parts if not re.fullmatch(TEMPORARY, part)))
        free = _free_space(shown) if code in NO_SPACE else ""
        reason = f"{os.strerror(code)}; {ADVICE[code]}{free}."
        raise WriteError(f"'{shown}' cannot be written: {reason}") from error


def _get_code(error: BaseException | None) -> int | None:
    """The operating system's code of an error; None: it is another one.

    Libraries in Rust have it in the text alone, torch its words. NumPy's `tofile` tells how many
    items were written, and torch's writer of archives that its position is not the expected one.
    """
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno
    text = str(error)
    if match := re.search(r"\(os error (\d+)\)", text):
        return int(match[1])
    if match := re.search(r"write\(\): fd \d+ failed with (.+)", text):
        return next((code for code in ADVICE if os.strerror(code) == match[1]), None)
    if isinstance(error, OSError):
        return errno.ENOSPC if re.fullmatch(r"\d+ requested and \d+ written", text) else None
    if isinstance(error, RuntimeError) and re.search(TORCH_WRITER, text):
        return _get_code(error.__context__) or errno.ENOSPC
    return None


def _free_space(path: Path) -> str:
    """Returns the free space of the disk of a path, for a message."""
    there = next((each for each in (path, *path.absolute().parents) if each.exists()), None)
    with suppress(OSError, TypeError):
        return f" ({shutil.disk_usage(there).free / 1e6:,.1f} MB are free)"  # type: ignore[arg-type]
    return ""


@contextmanager
def names_of_files() -> Iterator[None]:
    """Inside, a name that is too long for a file is a `ConfigError`, wherever it is looked up.

    A system says the same of a long path of short names, which is told as that.
    """
    try:
        yield
    except ChopError:
        raise
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG or not error.filename:
            raise
        path = os.fsdecode(error.filename)
        name = max(Path(path).parts, key=_count_bytes)
        is_name = _count_bytes(name) > NAME_BYTES
        shown, kind = (name, "the name of a file or folder") if is_name else (path, "a path")
        raise ConfigError(
            f"'{shorten(shown, SHOWN_CHARACTERS)}' is too long for {kind}; most disks take "
            f"{NAME_BYTES} bytes, and 4,096 of a path."
        ) from error


def _count_bytes(name: str) -> int:
    return len(os.fsencode(name))


def make_folder(path: str | Path) -> Path:
    """Makes a folder, and its parents, and makes sure that files can be written to it.

    Raises:
        WriteError: it cannot be made, is read-only, or its disk is full.
    """
    path = Path(path)
    probe = path / f".{os.getpid()}.probe"
    with writing(path):
        make_folders(path)
        try:
            probe.write_bytes(bytes(PROBE_BYTES))
        finally:
            probe.unlink(missing_ok=True)
    return path


def make_folders(path: Path) -> None:
    """Makes a folder and its parents; file systems that take none, as /proc, refuse by ENOENT."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except FileNotFoundError as error:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), str(path)) from error


def _takes_files(folder: Path) -> bool:
    """False of /proc, where a new file is one that does not exist."""
    probe = temporary_beside(folder / "probe")
    try:
        probe.touch(exist_ok=False)
    except FileNotFoundError:
        return not folder.is_dir()
    except OSError:
        return True
    probe.unlink()
    return True
