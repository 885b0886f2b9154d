"""Atomic writes of files, of folders, and of sets of files: all or none."""

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
from chop.errors import CheckpointError, ConfigError

COMMITTED = ".*.new"
"""Names of folders of files that belong together, are all written, and are not all moved yet."""
GONE = ".gone"
"""Folder in a set of files: it has the names of what goes where the set is moved into place."""
_written: ContextVar[list[Path] | None] = ContextVar("written", default=None)
_stage: ContextVar[tuple[Path, Path] | None] = ContextVar("stage", default=None)


@contextmanager
def atomic_file(path: str | Path) -> Iterator[Path]:
    """Atomic write: yields a temporary path, renamed to `path` when the block succeeds.

    Parent folders are made. If the block fails the temporary file is removed and an older file at
    `path` stays as it was. Of several writers of one path, the last to finish wins.

    Raises:
        WriteError: the disk is full or read-only, or `path` can be no file.
    """
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
    """Like `atomic_file`, but a file that is at `path` by then stays: the first writer wins.

    Raises:
        WriteError: the disk is full or read-only, or `path` can be no file.
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
    """Atomic write of several files: those of the yielded folder replace `folder`'s, all or none.

    One rename, of the new folder to `.{name}.new`, decides. Then its files are moved to their
    places; where a kill stops that, `latest` finds them, and the next writer of a file of theirs,
    whatever the `name`, moves them before its own. Writers move one after the other, in whatever
    process or thread, and wait for readers inside `shared_lock`.

    Folders in the yielded one replace folders of the same name; `discard_older` adds names of files
    and folders that go with the same rename.

    Raises:
        WriteError: the disk is full or read-only, or one of the files can be none.
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
                written = files_of_set(fresh)
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
    """Like `atomic_files`; inside, files that are written into `folder` itself are of the set too.

    Those are meant that this thread writes by `atomic_file`, and by what is made of it.
    """
    with atomic_files(folder, name) as fresh:
        token = _stage.set((Path(folder).absolute(), fresh))
        try:
            yield fresh
        finally:
            _stage.reset(token)


def discard_older(fresh: Path, *names: str) -> None:
    """Adds to a set of files the names of older files and folders that it has none for.

    Args:
        fresh: the folder that `atomic_files` or `staged_files` has yielded.
        names: files and folders beside those of the set. Missing ones are ignored.
    """
    for name in names:
        (fresh / GONE).mkdir(exist_ok=True)
        (fresh / GONE / name).touch()


def files_of_set(fresh: Path) -> list[Path]:
    """The files in the folder of `atomic_files`, and in folders in it."""
    entries = sorted(path for path in fresh.rglob("*") if GONE not in path.relative_to(fresh).parts)
    return [path for path in entries if path.is_file()]


def _check_is_free(place: Path, is_folder: bool) -> None:
    if place.is_dir() and not is_folder:
        raise IsADirectoryError(errno.EISDIR, "a folder is in the way", place.name)
    if is_folder and os.path.lexists(place) and not place.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, "a file is in the way", place.name)


def _staged(path: Path) -> Path:
    """Where a file is written for now: into the set of `staged_files`, where it is of one."""
    folder, fresh = _stage.get() or (None, None)
    is_staged = fresh is not None and path.parent.absolute() == folder
    return fresh / path.name if is_staged and fresh is not None else path


@contextmanager
def shared_lock(folder: str | Path) -> Iterator[None]:
    """Shared lock: inside, `atomic_files` moves no files of `folder`; `latest` finds one set.

    Where the folder cannot be locked, on a read-only disk without locks, it is read as it is.
    """
    with ExitStack() as stack:
        with suppress(OSError):
            stack.enter_context(folder_lock(Path(folder), shared=True))
        yield


@contextmanager
def build_lock(path: str | Path) -> Iterator[None]:
    """Exclusive lock on the making of one file: inside, no other process or thread makes `path`.

    Who had to wait finds the file. The lock is one on a file beside `path`, which is removed at
    the end; see `chop.base.files.locks`. Nobody waits on file systems without locks.

    Raises:
        WriteError: the folder is read-only, or its disk is full.
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
            if not _is_at(file, beside):  # removed by the process that was waited for
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
    """Returns the place of the newest file that `atomic_files` wrote to `path`: mostly `path`.

    Where the newest set has removed it, that is a path at which nothing is.
    """
    for decided in reversed(committed(path.parent)):
        if (decided / path.name).exists() or (decided / GONE / path.name).exists():
            return decided / path.name
    return path


def settle(folder: Path) -> None:
    """Moves sets of files into their places that a kill has left beside them.

    Without it `latest` finds them. On a read-only disk they stay where they are.
    """
    with suppress(OSError):
        if committed(folder):
            with folder_lock(folder):
                _move_into_place(*committed(folder))


def is_readable_file(path: Path) -> bool:
    """Returns true if a file is there.

    Raises:
        CheckpointError: this user may not read it, or it is a pipe, a socket or a device.
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
    """A path, beside which nothing is left of killed writers of it."""
    remove_orphans(path.parent.glob(f".{glob.escape(path.name)}.*.part"))
    return path


def apply_umask(*paths: Path) -> None:
    """Gives private files, as safetensors and tempfile make them, the mode of new ones."""
    hidden = _umask()
    for path in paths:
        mode = path.lstat().st_mode
        if stat.S_ISREG(mode) and not mode & (stat.S_IRWXG | stat.S_IRWXO):
            executable = 0o111 if mode & stat.S_IXUSR else 0
            path.chmod((0o666 | executable) & ~hidden)


def _umask() -> int:
    with suppress(OSError, StopIteration):  # Linux tells without changing it for other threads
        lines = Path("/proc/self/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("Umask:")).split()[1], 8)
    found = os.umask(0)
    os.umask(found)
    return found


def committed(folder: Path) -> list[Path]:
    """The sets of files that wait to be moved to `folder`, oldest first."""
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
    """Removes a file, or a folder, which has another name before anything of it is gone."""
    if place.is_dir() and not place.is_symlink():
        aside = temporary_beside(place)
        place.rename(aside)
        shutil.rmtree(aside, ignore_errors=True)
    else:
        place.unlink(missing_ok=True)


@contextmanager
def recording_writes() -> Iterator[list[Path]]:
    """Yields a list to which every file is added that this thread finishes inside the block.

    Files that are only prepared, in a folder of `atomic_files`, are added with their places.
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
    """Adds finished files to the list of `recording_writes`, where this thread is inside one."""
    found = _written.get()
    if found is None:
        return
    for path in paths:
        if not any(re.fullmatch(TEMPORARY, part) for part in path.parts) and path not in found:
            found.append(path)
