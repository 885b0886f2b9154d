"""Turns operating-system errors into one-sentence messages with a suggestion."""

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
"""Error code of the operating system -> suggestion."""
TORCH_WRITER = r"inline_container|PytorchStreamWriter|iostream error"
"""Pattern of `torch.save` messages for files that could not be written."""
PROBE_BYTES = 4096
NAME_BYTES = 255
"""Maximum length of a file name in bytes on most disks."""
MAX_CHARACTERS = 60
"""Maximum number of characters of a name in messages."""


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Context manager that turns write errors into a `WriteError` that names `path`.

    Libraries raise their own errors, see `_get_code`.
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
        target = Path(*(part for part in path.parts if not re.fullmatch(TEMPORARY, part)))
        free = _free_space(target) if code in NO_SPACE else ""
        cause = os.strerror(code)
        if code == errno.EEXIST and (link := _dangling_link(target)):
            cause = f"'{link}' is a link to '{link.readlink()}', which does not exist"
        elif code in (errno.EEXIST, errno.ENOTDIR):
            files = (each for each in (target, *target.parents) if each.is_file())
            if file := next(files, None):
                cause = f"{'it' if file == target else repr(str(file))} is a file, not a folder"
        reason = f"{cause}; {ADVICE[code]}{free}."
        raise WriteError(f"'{target}' cannot be written: {reason}") from error


def _get_code(error: BaseException | None) -> int | None:
    """Returns the operating system's code of an error, or None for other errors.

    Rust libraries only have the code in the message, and torch only its words. NumPy's `tofile`
    reports how many items were written, and torch's archive writer an unexpected position.
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


def _dangling_link(path: Path) -> Path | None:
    """Returns the link without a target in a path, or None."""
    links = (each for each in (path, *path.parents) if each.is_symlink() and not each.exists())
    return next(links, None)


def _free_space(path: Path) -> str:
    """Returns the free space of the disk of a path, for a message."""
    there = next((each for each in (path, *path.absolute().parents) if each.exists()), None)
    with suppress(OSError, TypeError):
        return f" ({shutil.disk_usage(there).free / 1e6:,.1f} MB are free)"  # type: ignore[arg-type]
    return ""


@contextmanager
def names_of_files() -> Iterator[None]:
    """Context manager in which a file name that is too long raises `ConfigError`.

    Systems raise the same error for a long path of short names, which gets its own message.
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
        name_or_path, kind = (name, "the name of a file or folder") if is_name else (path, "a path")
        raise ConfigError(
            f"'{shorten(name_or_path, MAX_CHARACTERS)}' is too long for {kind}; most disks take "
            f"{NAME_BYTES} bytes, and 4,096 of a path."
        ) from error


def _count_bytes(name: str) -> int:
    return len(os.fsencode(name))


def make_folder(path: str | Path) -> Path:
    """Creates a folder with its parents, and checks that files can be written to it.

    Raises:
        WriteError: if it cannot be created, is read-only, or its disk is full.
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
    """Creates a folder and its parents; file systems such as /proc raise ENOENT."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except FileNotFoundError as error:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), str(path)) from error


def _takes_files(folder: Path) -> bool:
    """Returns False for /proc, where a new file does not exist."""
    probe = temporary_beside(folder / "probe")
    try:
        probe.touch(exist_ok=False)
    except FileNotFoundError:
        return not folder.is_dir()
    except OSError:
        return True
    probe.unlink()
    return True
