"""Atomic writes of folders: the new one takes the place of an older one."""

from __future__ import annotations

import glob
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from chop.files.atomic import apply_umask, record_writes, without_orphans
from chop.files.refusals import make_folders, writing
from chop.files.temporary import is_orphan, remove_orphans, temporary_beside

ASIDE = ".old"
"""Ends the name of an older folder while a new one takes its place."""


@contextmanager
def atomic_folder(
    path: str | Path, is_foreign: Callable[[Path], bool] | None = None
) -> Iterator[Path]:
    """Atomic write: yields a new folder beside `path` that takes its place when the block succeeds.

    The older folder is renamed before, and removed after that. What a kill between the two leaves,
    the next writer of `path`, or `recover_folder`, puts back. Where another process has removed the
    new folder meanwhile, what is at `path` stays.

    Args:
        path: of the folder.
        is_foreign: whether a file of the older folder, by its path in there, is to be kept: it is
            moved to the new one. Default: none is.

    Raises:
        WriteError: the disk is full or read-only.
    """
    path = Path(path)
    recover_folder(path)
    fresh = temporary_beside(without_orphans(path))
    with writing(path):
        make_folders(fresh)
        try:
            yield fresh
            os.utime(fresh)  # raises where it is gone
            apply_umask(*fresh.rglob("*"))
            written = [file.relative_to(fresh) for file in fresh.rglob("*") if file.is_file()]
            _replace(path, fresh, is_foreign)
            record_writes(*(path / name for name in written))
        finally:
            shutil.rmtree(fresh, ignore_errors=True)


def recover_folder(path: Path) -> None:
    """Puts an older folder back whose writer was killed before the new one had its name.

    Args:
        path: of the folder.
    """
    for aside in path.parent.glob(f".{glob.escape(path.name)}.*{ASIDE}"):
        if is_orphan(aside.name) and not os.path.lexists(path):
            with suppress(OSError):  # another process was faster, or the disk is read-only
                aside.rename(path)
        remove_orphans([aside])


def _replace(path: Path, fresh: Path, is_foreign: Callable[[Path], bool] | None) -> None:
    aside = temporary_beside(path).with_suffix(ASIDE)
    has_older = path.is_dir() and not path.is_symlink()
    if has_older:
        path.rename(aside)
    try:
        fresh.rename(path)
    except OSError:
        if has_older:
            aside.rename(path)
        raise
    if has_older and is_foreign is not None:
        _move_foreign(aside, path, is_foreign)
    shutil.rmtree(aside, ignore_errors=True)


def _move_foreign(aside: Path, path: Path, is_foreign: Callable[[Path], bool]) -> None:
    for file in sorted(aside.rglob("*")):
        name = file.relative_to(aside)
        is_file = file.is_symlink() or not file.is_dir()
        if is_file and is_foreign(name):
            place = _free_place(path, name)
            place.parent.mkdir(parents=True, exist_ok=True)
            file.rename(place)


def _free_place(folder: Path, name: Path) -> Path:
    """Where a kept file goes: to its own name, or one beside files of that name."""
    place = folder
    for number, part in enumerate(name.parts, start=1):
        place, is_last = place / part, number == len(name.parts)
        while os.path.lexists(place) and (is_last or not place.is_dir()):
            place = place.with_name(f"{place.name}.kept")
    return place
