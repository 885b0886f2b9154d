"""Atomic writes of files, folders, and sets of files."""

from __future__ import annotations

import errno
import glob
import os
import re
import shutil
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import IO

from chop.base.files.locks import folder_lock, lock, unlock
from chop.base.files.reading import require_file
from chop.base.files.refusals import make_folders, writing
from chop.base.files.temporary import TEMPORARY, remove_orphans, temporary_beside
from chop.errors import CheckpointError, ConfigError, WriteError

COMMITTED = ".*.new"
"""Pattern of folders with a complete set of files, some of which are not yet moved into place."""
GONE = ".gone"
"""Folder in a set of files with the names of files to remove when the set is moved into place."""
_written: ContextVar[list[Path] | None] = ContextVar("written", default=None)
_stage: ContextVar[tuple[Path, Path] | None] = ContextVar("stage", default=None)


@contextmanager
def atomic_file(path: str | Path) -> Iterator[Path]:
    """Yields a temporary path, which is renamed to `path` when the block succeeds.

    Parent folders are created. If the block fails, the temporary file is removed, and an older file
    at `path` stays. Among several writers of one path, the last to finish wins.

    Raises:
        WriteError: if the disk is full or read-only, or `path` cannot be a file.
    """
    if not Path(path).name:
        raise WriteError(f"'{path}' is a folder: expected the name of a file.")
    path = _staged(Path(path))
    temporary = temporary_beside(without_orphans(path))
    with writing(path):
        make_folders(path.parent)
        try:
            yield temporary
            if latest(path) != path:
                with folder_lock(path.parent):
                    _move_into_place(*committed(path.parent))
            apply_umask(temporary)
            temporary.replace(path)
            record_writes(path)
        finally:
            temporary.unlink(missing_ok=True)


@contextmanager
def atomic_new_file(path: str | Path) -> Iterator[Path]:
    """Like `atomic_file`, but an existing file at `path` stays: the first writer wins.

    Raises:
        WriteError: if the disk is full or read-only, or `path` cannot be a file.
    """
    path = Path(path)
    temporary = temporary_beside(path)
    with writing(path):
        make_folders(path.parent)
        try:
            yield temporary
            apply_umask(temporary)
            try:
                os.link(temporary, path)
            except OSError:  # another writer was faster, or the file system has no hard links
                if not os.path.lexists(path):
                    temporary.rename(path)
            record_writes(path)
        finally:
            temporary.unlink(missing_ok=True)


@contextmanager
def atomic_files(folder: str | Path, name: str) -> Iterator[Path]:
    """Yields a folder whose files replace those in `folder` atomically, all or none.

    The commit is one rename of the new folder to `.{name}.new`. Its files are then moved into
    place. If a kill interrupts that, `latest` finds them, and the next writer of one of these
    files, under any `name`, completes the move first. Moves are serialized across processes and
    threads, and wait for readers inside `shared_lock`.

    Subfolders of the yielded folder replace folders of the same name. `discard_older` adds names of
    files and folders to remove in the same commit.

    Raises:
        WriteError: if the disk is full or read-only, or one of the paths cannot be a file.
    """
    folder = Path(folder)
    fresh, decided = temporary_beside(without_orphans(folder / name)), folder / f".{name}.new"
    with writing(folder / name):
        make_folders(folder)
        try:
            make_folders(fresh)
            yield fresh
            apply_umask(*fresh.rglob("*"))
            with folder_lock(folder):
                written = list_set_files(fresh)
                places = [folder / entry.name for entry in fresh.iterdir()]
                if decided.is_dir() or any(latest(place) != place for place in places):
                    _move_into_place(*committed(folder))
                for place in places:
                    _check_is_free(place, is_folder=(fresh / place.name).is_dir())
                fresh.rename(decided)
                _move_into_place(decided)
            record_writes(*(folder / file.relative_to(fresh) for file in written))
        finally:
            shutil.rmtree(fresh, ignore_errors=True)


@contextmanager
def staged_files(folder: str | Path, name: str) -> Iterator[Path]:
    """Like `atomic_files`, but also includes files that are written to `folder` itself.

    This applies to files that this thread writes with `atomic_file` or functions built on it.
    """
    with atomic_files(folder, name) as fresh:
        token = _stage.set((Path(folder).absolute(), fresh))
        try:
            yield fresh
        finally:
            _stage.reset(token)


def discard_older(fresh: Path, *names: str) -> None:
    """Marks older files and folders for removal with a set of files.

    Args:
        fresh: folder yielded by `atomic_files` or `staged_files`.
        names: files and folders in the target folder. Missing ones are ignored.
    """
    for name in names:
        (fresh / GONE).mkdir(exist_ok=True)
        (fresh / GONE / name).touch()


def list_set_files(fresh: Path) -> list[Path]:
    """Returns the files in the folder of `atomic_files`, including subfolders."""
    entries = sorted(path for path in fresh.rglob("*") if GONE not in path.relative_to(fresh).parts)
    return [path for path in entries if path.is_file()]


def _check_is_free(place: Path, is_folder: bool) -> None:
    if place.is_dir() and not is_folder:
        raise IsADirectoryError(errno.EISDIR, "a folder with this name exists", place.name)
    if is_folder and os.path.lexists(place) and not place.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, "a file with this name exists", place.name)


def _staged(path: Path) -> Path:
    """Returns where a file is written: into the set of `staged_files` if it belongs to one."""
    folder, fresh = _stage.get() or (None, None)
    is_staged = fresh is not None and path.parent.absolute() == folder
    return fresh / path.name if is_staged and fresh is not None else path


@contextmanager
def shared_lock(folder: str | Path) -> Iterator[None]:
    """Context manager with a shared lock: `atomic_files` moves no files, so reads are consistent.

    A folder that cannot be locked, such as on a read-only disk, is read without a lock.
    """
    with ExitStack() as stack:
        with suppress(OSError):
            stack.enter_context(folder_lock(Path(folder), shared=True))
        yield


@contextmanager
def build_lock(path: str | Path) -> Iterator[None]:
    """Context manager with an exclusive lock on the creation of one file.

    A process that had to wait then finds the file. The lock is a file next to `path`, removed at
    the end; see `chop.base.files.locks`. On file systems without locks, nobody waits.

    Raises:
        WriteError: if the folder is read-only, or its disk is full.
    """
    path = Path(path)
    beside = path.with_name(f".{path.name}.lock")
    while True:
        with writing(path):
            make_folders(path.parent)
            file = beside.open("ab")
        with file:
            with suppress(OSError):  # file systems without locks
                lock(file)
            if not _is_at(file, beside):  # removed by the previous holder of the lock
                continue
            try:
                yield
                return
            finally:
                beside.unlink(missing_ok=True)
                with suppress(OSError):  # forked children hold the file open
                    unlock(file)


def _is_at(file: IO[bytes], path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def latest(path: Path) -> Path:
    """Returns the path of the newest file that `atomic_files` wrote to `path`, usually `path`.

    If the newest set has removed the file, the returned path does not exist.
    """
    for decided in reversed(committed(path.parent)):
        if (decided / path.name).exists() or (decided / GONE / path.name).exists():
            return decided / path.name
    return path


def settle(folder: Path) -> None:
    """Moves sets of files into place after a kill.

    `latest` also finds files that are not moved. On a read-only disk, they stay where they are.
    """
    with suppress(OSError):
        if committed(folder):
            with folder_lock(folder):
                _move_into_place(*committed(folder))


def is_readable_file(path: Path) -> bool:
    """Returns whether a readable regular file exists.

    Raises:
        CheckpointError: if this user may not read it, or it is a pipe, a socket or a device.
    """
    try:
        require_file(path, "artifact")
        return True
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return False
    except OSError as error:
        raise CheckpointError(f"'{path}' cannot be read: {error.strerror}.") from error
    except ConfigError as error:
        raise CheckpointError(f"'{path}' cannot be read: {error}.") from None


def without_orphans(path: Path) -> Path:
    """Removes temporary files of killed writers of a path, and returns the path."""
    remove_orphans(path.parent.glob(f".{glob.escape(path.name)}.*.part"))
    return path


def apply_umask(*paths: Path) -> None:
    """Gives private files, as created by safetensors and tempfile, the default file mode."""
    hidden = _umask()
    for path in paths:
        mode = path.lstat().st_mode
        if stat.S_ISREG(mode) and not mode & (stat.S_IRWXG | stat.S_IRWXO):
            executable = 0o111 if mode & stat.S_IXUSR else 0
            path.chmod((0o666 | executable) & ~hidden)


def _umask() -> int:
    with suppress(OSError, StopIteration):  # Linux reports it without a change for other threads
        lines = Path("/proc/self/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("Umask:")).split()[1], 8)
    mask = os.umask(0)
    os.umask(mask)
    return mask


def committed(folder: Path) -> list[Path]:
    """Returns complete sets of files that wait to be moved to `folder`, oldest first."""
    ages = {}
    for path in folder.glob(COMMITTED):
        with suppress(FileNotFoundError):  # moved by another writer since
            ages[path] = path.stat().st_mtime_ns
    return sorted((path for path in ages if path.is_dir()), key=ages.__getitem__)


def _move_into_place(*sets: Path) -> None:
    for decided in sets:
        for entry in [path for path in decided.iterdir() if path.name != GONE]:
            place = decided.parent / entry.name
            if entry.is_dir() and place.is_dir():
                _discard(place)
            entry.replace(place)
        for name in [*(decided / GONE).glob("*")]:
            _discard(decided.parent / name.name)
            name.unlink()
        with suppress(FileNotFoundError):
            (decided / GONE).rmdir()
        decided.rmdir()


def _discard(place: Path) -> None:
    """Removes a file or folder after renaming it, so that it is never visible in part."""
    if place.is_dir() and not place.is_symlink():
        aside = temporary_beside(place)
        place.rename(aside)
        shutil.rmtree(aside, ignore_errors=True)
    else:
        place.unlink(missing_ok=True)


@contextmanager
def recording_writes() -> Iterator[list[Path]]:
    """Yields a list of all files that this thread finishes inside the block.

    Files in a set of `atomic_files` are listed with their final paths.
    """
    outer, paths = _written.get(), list[Path]()
    token = _written.set(paths)
    try:
        yield paths
    finally:
        _written.reset(token)
        if outer is not None:
            outer += paths


def record_writes(*paths: Path) -> None:
    """Adds finished files to the list of `recording_writes`, if active in this thread."""
    written = _written.get()
    if written is None:
        return
    for path in paths:
        if not any(re.fullmatch(TEMPORARY, part) for part in path.parts) and path not in written:
            written.append(path)
