"""Atomic writes of files and folders; what the disk refuses is one sentence."""

from __future__ import annotations

import csv
import errno
import glob
import io
import json
import math
import os
import re
import shutil
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import IO, Any

from chop.errors import CheckpointError, ChopError, WriteError
from chop.locks import folder_lock, lock, unlock
from chop.temporary import owner_mark, remove_orphans

NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
NOT_ALLOWED = (errno.EACCES, errno.EPERM, errno.EROFS)
NO_FOLDER = (errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG)
ADVICE = {
    **dict.fromkeys(NO_SPACE, "free some space, or choose another folder"),
    **dict.fromkeys((*NOT_ALLOWED, *NO_FOLDER, errno.EIO), "choose another folder"),
}
"""By the code of an operating system's error."""
TEMPORARY = r"\..*\.part"
"""Names of folders whose files are not in their places yet."""
COMMITTED = ".*.new"
"""Names of folders of files that belong together, are all written, and are not all moved yet."""
PROBE_BYTES = 4096
_written: ContextVar[list[Path] | None] = ContextVar("written", default=None)
_stage: ContextVar[tuple[Path, Path] | None] = ContextVar("stage", default=None)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Write errors: inside, what the disk refuses is a `WriteError` that names `path`.

    Libraries that write in Rust raise errors of their own, with the code in the text alone.
    """
    try:
        yield
    except ChopError:
        raise
    except Exception as error:
        match = re.search(r"\(os error (\d+)\)", str(error))
        code = error.errno if isinstance(error, OSError) else int(match[1]) if match else None
        if code == errno.ENOENT and not _takes_files(path if path.is_dir() else path.parent):
            code = errno.EPERM
        if code not in ADVICE:
            raise
        shown = Path(*(part for part in path.parts if not re.fullmatch(TEMPORARY, part)))
        reason = f"{os.strerror(code)}; {ADVICE[code]}."
        raise WriteError(f"'{shown}' cannot be written: {reason}") from error


@contextmanager
def atomic_file(path: str | Path) -> Iterator[Path]:
    """Atomic write: yields a temporary path, renamed to `path` when the block succeeds.

    Parent folders are made. If the block fails the temporary file is removed and an older file at
    `path` stays as it was. Of several writers of one path, the last to finish wins.

    Raises:
        WriteError: the disk is full or read-only, or `path` can be no file.
    """
    path = _staged(Path(path))
    temporary = _temporary(path)
    with writing(path):
        _make_folders(path.parent)
        try:
            yield temporary
            if latest(path) != path:
                with folder_lock(path.parent):
                    _move_into_place(*_committed(path.parent))
            _apply_umask(temporary)
            temporary.replace(path)
            _record(path)
        finally:
            temporary.unlink(missing_ok=True)


@contextmanager
def atomic_new_file(path: str | Path) -> Iterator[Path]:
    """Like `atomic_file`, but a file that is at `path` by then stays: the first writer wins.

    Raises:
        WriteError: the disk is full or read-only, or `path` can be no file.
    """
    path = Path(path)
    temporary = _temporary(path)
    with writing(path):
        _make_folders(path.parent)
        try:
            yield temporary
            _apply_umask(temporary)
            try:
                os.link(temporary, path)
            except OSError:  # another writer was faster, or the file system has no hard links
                if not os.path.lexists(path):
                    temporary.rename(path)
            _record(path)
        finally:
            temporary.unlink(missing_ok=True)


@contextmanager
def atomic_folder(path: str | Path) -> Iterator[Path]:
    """Atomic write: yields a new folder beside `path` that takes its place when the block succeeds.

    Where another process has removed the new folder meanwhile, what is at `path` stays.

    Raises:
        WriteError: the disk is full or read-only.
    """
    path = Path(path)
    fresh = _temporary(_without_orphans(path))
    with writing(path):
        _make_folders(fresh)
        try:
            yield fresh
            os.utime(fresh)  # raises where it is gone
            _apply_umask(*fresh.rglob("*"))
            shutil.rmtree(path, ignore_errors=True)
            fresh.replace(path)
            _record(*(file for file in path.rglob("*") if file.is_file()))
        finally:
            shutil.rmtree(fresh, ignore_errors=True)


@contextmanager
def atomic_files(folder: str | Path, name: str) -> Iterator[Path]:
    """Atomic write of several files: those of the yielded folder replace `folder`'s, all or none.

    One rename, of the new folder to `.{name}.new`, decides. Then its files are moved to their
    places; where a kill stops that, `latest` finds them, and the next writer of a file of theirs,
    whatever the `name`, moves them before its own. Writers move one after the other, in whatever
    process or thread, and wait for readers inside `shared_lock`.

    Args:
        folder: is made, with its parents.
        name: of what the files are together.
    Raises:
        WriteError: the disk is full or read-only, or one of the files can be none.
    """
    folder = Path(folder)
    fresh, decided = _temporary(_without_orphans(folder / name)), folder / f".{name}.new"
    with writing(folder / name):
        _make_folders(folder)
        try:
            _make_folders(fresh)
            yield fresh
            _apply_umask(*fresh.iterdir())
            with folder_lock(folder):
                places = [folder / file.name for file in fresh.iterdir()]
                if decided.is_dir() or any(latest(place) != place for place in places):
                    _move_into_place(*_committed(folder))
                for place in places:
                    if place.is_dir():
                        raise IsADirectoryError(errno.EISDIR, "a folder is in the way", place.name)
                fresh.rename(decided)
                _move_into_place(decided)
            _record(*places)
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
    the end; see `chop.locks`. Nobody waits on file systems without locks.

    Raises:
        WriteError: the folder is read-only, or its disk is full.
    """
    path = Path(path)
    beside = path.with_name(f".{path.name}.lock")
    while True:
        with writing(path):
            _make_folders(path.parent)
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
    """Where the newest of what `atomic_files` wrote to `path` is: mostly `path` itself."""
    unmoved = [folder / path.name for folder in _committed(path.parent)]
    return next((file for file in reversed(unmoved) if file.is_file()), path)


def is_readable_file(path: Path) -> bool:
    """Whether a file is there.

    Raises:
        CheckpointError: this user may not read it.
    """
    try:
        with path.open("rb"):
            return True
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return False
    except OSError as error:
        raise CheckpointError(f"'{path}' cannot be read: {error.strerror}.") from error


def _make_folders(path: Path) -> None:
    """Makes a folder and its parents; file systems that take none, as /proc, refuse by ENOENT."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except FileNotFoundError as error:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), str(path)) from error


def _takes_files(folder: Path) -> bool:
    """False of /proc, where a new file is one that does not exist."""
    probe = _temporary(folder / "probe")
    try:
        probe.touch(exist_ok=False)
    except FileNotFoundError:
        return not folder.is_dir()
    except OSError:
        return True
    probe.unlink()
    return True


def _temporary(path: Path) -> Path:
    """A name beside `path` that no other writer has; `TEMPORARY` matches it."""
    return path.with_name(f".{path.name}.{owner_mark()}.part")


def _without_orphans(path: Path) -> Path:
    """A path, beside which nothing is left of killed writers of it."""
    remove_orphans(path.parent.glob(f".{glob.escape(path.name)}.*.part"))
    return path


def _apply_umask(*paths: Path) -> None:
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


def _committed(folder: Path) -> list[Path]:
    """The sets of files that wait to be moved to `folder`, oldest first."""
    ages = {}
    for path in folder.glob(COMMITTED):
        with suppress(FileNotFoundError):  # moved by another writer since
            ages[path] = path.stat().st_mtime_ns
    return sorted((path for path in ages if path.is_dir()), key=ages.__getitem__)


def _move_into_place(*sets: Path) -> None:
    for decided in sets:
        for file in list(decided.iterdir()):
            file.replace(decided.parent / file.name)
        decided.rmdir()


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


def _record(*paths: Path) -> None:
    found = _written.get()
    if found is None:
        return
    for path in paths:
        if not any(re.fullmatch(TEMPORARY, part) for part in path.parts) and path not in found:
            found.append(path)


def make_folder(path: str | Path) -> Path:
    """Makes a folder, and its parents, and makes sure that files can be written to it.

    Raises:
        WriteError: it cannot be made, is read-only, or its disk is full.
    """
    path = Path(path)
    probe = path / f".{os.getpid()}.probe"
    with writing(path):
        _make_folders(path)
        try:
            probe.write_bytes(bytes(PROBE_BYTES))
        finally:
            probe.unlink(missing_ok=True)
    return path


def write_text(path: str | Path, text: str) -> None:
    """Atomic write of a UTF-8 text file.

    Raises:
        WriteError: the disk is full or read-only, or `path` can be no file.
    """
    with atomic_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: str | Path, document: Any) -> None:
    """Atomic write of a JSON file, indented; numbers that are not finite become null.

    Raises:
        WriteError: the disk is full or read-only, or `path` can be no file.
    """
    write_text(path, json.dumps(_finite(document), indent=2, allow_nan=False) + "\n")


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_csv(path: str | Path, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Writes a CSV file with a header in one step; numbers have full precision.

    Raises:
        WriteError: the disk is full or read-only, or `path` can be no file.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    write_text(path, text.getvalue())


def append_line(path: str | Path, line: str) -> None:
    """Appends a line to a UTF-8 text file; it is on the disk when this returns.

    Writers in other processes wait. Where a kill has cut the last line short, the new one begins
    after it.

    Raises:
        WriteError: the disk is full or read-only, or `path` can be no file.
    """
    path = Path(path)
    with writing(path):
        _make_folders(path.parent)
        with path.open("a+b") as file:
            with suppress(OSError):  # file systems without locks
                lock(file)
            size = file.seek(0, os.SEEK_END)
            if size:
                file.seek(size - 1)
            torn = bool(size) and file.read(1) != b"\n"
            file.write(b"\n" * torn + line.encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        _record(path)
