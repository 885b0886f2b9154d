"""Atomic replacement of folders."""

from __future__ import annotations

import errno
import glob
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from chop.base.files.atomic import apply_umask, record_writes, without_orphans
from chop.base.files.refusals import make_folders, writing
from chop.base.files.temporary import OWNER, is_orphan, remove_orphans, temporary_beside

ASIDE = ".old"
"""Suffix of an older folder during its replacement."""
TAKEN = (errno.ENOTEMPTY, errno.EEXIST)
"""Error numbers of a rename onto an existing folder."""
NAME_ASIDE = re.compile(rf"\.(?P<name>.+)\.{OWNER.pattern}{re.escape(ASIDE)}", re.DOTALL)


@contextmanager
def atomic_folder(
    path: str | Path, is_foreign: Callable[[Path], bool] | None = None
) -> Iterator[Path]:
    """Yields a new folder that replaces `path` when the block succeeds.

    The older folder is renamed first and removed last. After a kill in between, the next writer of
    `path` or `recover_folder` restores it. If another process has removed the new folder meanwhile,
    the folder at `path` stays.

    Args:
        path: target folder.
        is_foreign: returns whether to carry over a file of the older folder, given its relative
            path. The file is in the new folder before the folder gets its name. Default: no files.

    Raises:
        WriteError: if the disk is full or read-only.
    """
    path = Path(path)
    recover_folder(path)
    fresh = temporary_beside(without_orphans(path))
    with writing(path):
        make_folders(fresh)
        try:
            yield fresh
            os.utime(fresh)  # raises if the folder was removed
            apply_umask(*fresh.rglob("*"))
            written = [file.relative_to(fresh) for file in fresh.rglob("*") if file.is_file()]
            _replace(path, fresh, is_foreign)
            record_writes(*(path / name for name in written))
        finally:
            shutil.rmtree(fresh, ignore_errors=True)


def recover_folder(path: Path) -> None:
    """Restores an older folder whose writer was killed before the replacement was complete."""
    _recover(path.parent, path.name)


def recover_folders(parent: Path) -> None:
    """Restores all such folders in a parent folder."""
    _recover(parent, None)


def _recover(parent: Path, name: str | None) -> None:
    for aside in parent.glob(f".{glob.escape(name or '')}*{ASIDE}"):
        match = NAME_ASIDE.fullmatch(aside.name)
        if match is None or name not in (None, match["name"]):
            continue
        place = parent / match["name"]
        if is_orphan(aside.name) and not os.path.lexists(place):
            with suppress(OSError):  # another process was faster, or the disk is read-only
                aside.rename(place)
        remove_orphans([aside])


def _replace(path: Path, fresh: Path, is_foreign: Callable[[Path], bool] | None) -> None:
    older: list[Path] = []
    to_move: list[tuple[Path, Path]] = []
    try:
        while True:
            if _is_own_folder(path):
                older.append(temporary_beside(path).with_suffix(ASIDE))
                with suppress(FileNotFoundError):  # another writer was faster
                    path.rename(older[-1])
                    to_move += _bring_foreign(older[-1], fresh, is_foreign)
            try:
                fresh.rename(path)
                break
            except OSError as error:
                if not fresh.exists() or not (error.errno in TAKEN or _is_own_folder(path)):
                    raise
                # Another writer has placed its folder there meanwhile: the last one wins.
    except BaseException:
        if older and older[-1].exists() and not os.path.lexists(path):
            older[-1].rename(path)
        raise
    for file, name in to_move:
        _move(file, path, name)
    for aside in older:
        shutil.rmtree(aside, ignore_errors=True)


def _is_own_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _bring_foreign(
    aside: Path, fresh: Path, is_foreign: Callable[[Path], bool] | None
) -> list[tuple[Path, Path]]:
    """Copies or links foreign files of the older folder into the new one.

    Returns: files that could be neither linked nor copied, with their names; they must be moved.
    """
    to_move = []
    for file in sorted(aside.rglob("*")) if is_foreign is not None else ():
        name = file.relative_to(aside)
        is_file = file.is_symlink() or not file.is_dir()
        if is_file and is_foreign is not None and is_foreign(name):
            place = _free_place(fresh, name)
            try:
                place.parent.mkdir(parents=True, exist_ok=True)
                _link(file, place)
            except OSError:
                to_move.append((file, name))
    return to_move


def _link(file: Path, place: Path) -> None:
    try:
        os.link(file, place, follow_symlinks=False)
    except (OSError, NotImplementedError):  # no hard links, or a file of another user
        try:
            shutil.copy2(file, place, follow_symlinks=False)
        except OSError:
            place.unlink(missing_ok=True)
            raise


def _move(file: Path, path: Path, name: Path) -> None:
    place = _free_place(path, name)
    place.parent.mkdir(parents=True, exist_ok=True)
    file.rename(place)


def _free_place(folder: Path, name: Path) -> Path:
    """Returns a free path for a carried-over file, under its own name or a variant of it."""
    place = folder
    for number, part in enumerate(name.parts, start=1):
        place, is_last = place / part, number == len(name.parts)
        while os.path.lexists(place) and (is_last or not place.is_dir()):
            place = place.with_name(f"{place.name}.kept")
    return place
