"""Native code: C++ sources compiled once and cached by content."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import logging
import os
import re
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal

from chop.base import children
from chop.base.files import atomic_file, build_lock
from chop.base.files.digests import digest_beside, find_damage, sync_folder, write_digest
from chop.base.files.temporary import remove_orphans, scratch_folder
from chop.base.hub import cache_folder
from chop.errors import WriteError

log = logging.getLogger(__name__)

COMPILE_SECONDS = 600
"""Wall-clock limit of a compiler, long enough for a busy machine."""
LOADED: dict[str, str] = {}
"""Libraries requested in this process, by name: path and instruction set, or the failure."""
MADE = re.compile(
    r"[\w.-]+-[0-9a-f]{12,16}\.(so|o|safetensors|json|config|bit)(\.sha256)?"
    r"|\.[\w.-]+\.(part|lock)",
    re.ASCII,
)
"""Pattern of removable files in the cache folder: rebuildable files and leftovers of kills."""
CACHE_BYTES = 2**30
"""Maximum size of all compiled files; the least recently used ones are removed first."""
USED_SECONDS = 600
"""Seconds after a request during which a process may still load a file."""
HAS_OWNERS = hasattr(os, "geteuid")
"""False on Windows, which has no numeric owners and permissions."""
OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
LINK = {".so": ("-shared", "-pthread"), ".o": ("-r", "-nostdlib")}
"""Linker flags by the suffix of the output."""


@dataclass(frozen=True)
class Sources:
    """C++ sources of a shared library, or of an object file for linking.

    Attributes:
        name: prefix of the file name in the cache folder.
        files: C++ files, compiled in parallel.
        headers: included files.
        file_flags: additional flags of single files.
        objects: compiled files to link, with content hashes in their names.
        suffix: ".so" for a shared library, ".o" for an object file.
        seconds: time limit of each compiler call.
    """

    name: str
    files: tuple[Path, ...]
    headers: tuple[Path, ...] = ()
    file_flags: Mapping[Path, tuple[str, ...]] = field(default_factory=dict)
    objects: tuple[Path, ...] = ()
    suffix: Literal[".so", ".o"] = ".so"
    seconds: float = COMPILE_SECONDS

    def path(self, compiler: str, flags: Sequence[str]) -> Path:
        """Returns the path in the cache folder, with a hash of sources, compiler and flags.

        Raises:
            SubprocessError: if the compiler does not report its version.
        """
        texts = (file.read_text() for file in (*self.files, *self.headers))
        own = (f"{file.name} {' '.join(more)}" for file, more in self.file_flags.items())
        objects = (file.name for file in self.objects)
        version = compiler_version(compiler)
        return cache_path(
            self.name, self.suffix, (*texts, compiler, version, *flags, *own, *objects)
        )

    def compiled(self, compiler: str, flags: Sequence[str]) -> Path:
        """Returns the cached file, compiled by one of the concurrent processes if missing.

        Raises:
            SubprocessError: if the compiler fails; `first_error` returns the reason.
            OSError: if the folder is not writable.
        """
        return cached_file(self.path(compiler, flags), partial(self.compile, compiler, flags))

    def compile(self, compiler: str, flags: Sequence[str], target: Path) -> None:
        """Compiles the sources in parallel on all cores, and links them to `target`.

        Raises:
            SubprocessError: if the compiler fails; `first_error` returns the reason.
        """
        with scratch_folder("compile") as folder, ThreadPoolExecutor(cores()) as pool:
            # Numbered, because sources in different folders may have the same name.
            objects = [str(folder / f"{number}.o") for number in range(len(self.files))]
            jobs = [
                pool.submit(
                    run_tool,
                    *(compiler, *flags, *self.file_flags.get(source, ())),
                    *("-c", str(source), "-o", name),
                    seconds=self.seconds,
                )
                for source, name in zip(self.files, objects, strict=True)
            ]
            try:
                for job in jobs:
                    job.result()
            finally:
                pool.shutdown(cancel_futures=True)
            linked = (*LINK[self.suffix], *objects, *map(str, self.objects), "-o", str(target))
            run_tool(compiler, *linked, seconds=self.seconds)


def cache_path(name: str, suffix: str, parts: Iterable[str]) -> Path:
    """Returns a path in the cache folder whose name hashes `parts`.

    Raises:
        WriteError: if the folder cannot be created.
    """
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
    return cache_folder() / f"{name}-{key}{suffix}"


def cached_file(path: Path, make: Callable[[Path], None]) -> Path:
    """Returns a cached code file, created by one of the concurrent callers if missing.

    A digest next to it verifies its content. Files that do not match are rebuilt.

    Compiled files take at most `CACHE_BYTES`. The folder may be shared. Files that another user
    created or could have modified are not executed but rebuilt.

    Args:
        path: path from `cache_path`.
        make: writes the file to a given path.

    Raises:
        WriteError: if it cannot be stored, or other users can replace files in the folder.
    """
    if not _keeps_files(path.parent):
        raise WriteError(
            f"code is not cached in '{path.parent}', because other users can replace its files: "
            f"run `chmod go-w '{path.parent}'`, or set CHOP_CACHE to another folder."
        )
    if is_whole(path):
        with contextlib.suppress(OSError):  # owned by root, or on a read-only disk
            for file in (path, digest_beside(path)):
                os.utime(file)
        return path
    with build_lock(path):
        if not is_whole(path):
            _make(path, make)
    remove_unused(path.parent, CACHE_BYTES)
    return path


def load_library(built: Callable[[], Path]) -> tuple[Path, ctypes.CDLL]:
    """Returns the path of a library loaded into this process, rebuilt once if loading fails.

    A file with a correct digest may fail to load if it was built on another system or by a broken
    compiler.

    Args:
        built: returns its path, from `cached_file`.
    Raises:
        OSError: if the rebuilt library does not load.
    """
    path = built()
    try:
        return path, ctypes.CDLL(str(path))
    except OSError as error:
        remove_damaged(path, f"it does not load ({error})")
    path = built()
    return path, ctypes.CDLL(str(path))


def _make(path: Path, make: Callable[[Path], None]) -> None:
    """Creates a code file and its digest, replacing existing ones."""
    if is_trusted(path) and (damage := find_damage(path)):
        remove_damaged(path, damage)
    for file in (path, digest_beside(path)):
        if file.is_dir() and not file.is_symlink():  # no file can take the name of a folder
            shutil.rmtree(file)
    remove_orphans(path.parent.glob(".*.part"))
    with atomic_file(path) as temporary:
        make(temporary)
        temporary.chmod(temporary.stat().st_mode & ~OTHERS_WRITE)
        write_digest(path, temporary)
    sync_folder(path.parent)


def remove_damaged(path: Path, damage: str) -> None:
    """Removes a damaged file from the cache folder, and logs that it will be rebuilt."""
    log.warning("'%s' is damaged: %s. It is removed and built again.", path, damage)
    discard(path)


def discard(path: Path) -> None:
    """Removes a file from the cache folder with its digest, if they exist."""
    for file in (path, digest_beside(path)):
        with contextlib.suppress(OSError):
            file.unlink()


def is_whole(path: Path) -> bool:
    """Returns whether a code file is trusted and matches its digest.

    Args:
        path: file created by `cached_file`.
    """
    return is_trusted(path) and is_trusted(digest_beside(path)) and find_damage(path) is None


def remove_unused(folder: Path, most_bytes: int = 0) -> tuple[int, int]:
    """Removes rebuildable files, least recently used first.

    Files used within `USED_SECONDS` stay, and so do files that only another user may remove.

    Args:
        folder: cache folder, or a subfolder.
        most_bytes: total size that may remain.
    Returns: number and total size of the removed files.
    """
    files = []
    for path in folder.iterdir():
        with contextlib.suppress(OSError):  # removed by another process since
            status = path.lstat()
            if MADE.fullmatch(path.name) and stat.S_ISREG(status.st_mode):
                files.append((status.st_mtime, status.st_size, path))
    total = sum(size for _, size, _ in files)
    count = freed = 0
    for used, size, path in sorted(files):
        if total - freed <= most_bytes or time.time() - used < USED_SECONDS:
            break
        with contextlib.suppress(OSError):
            path.unlink()
            count, freed = count + 1, freed + size
            digest_beside(path).unlink(missing_ok=True)
    return count, freed


def is_trusted(path: Path, is_kind: Callable[[int], bool] = stat.S_ISREG) -> bool:
    """Returns whether a file exists that only this user or root can have written or replaced.

    Links are not trusted, because their target may change.

    Args:
        path: path of the file.
        is_kind: required file type by mode: a regular file, or `stat.S_ISDIR`.
    """
    try:
        status = path.lstat()
    except FileNotFoundError:
        return False
    if not is_kind(status.st_mode):
        return False
    is_private = _is_own(status) and not (HAS_OWNERS and status.st_mode & OTHERS_WRITE)
    return is_private and _keeps_files(path.parent)


def _keeps_files(folder: Path) -> bool:
    """Returns whether only this user or root can rename or remove their files in a folder.

    A sticky folder, such as that of temporary files, may be writable for others.
    """
    status = folder.stat()
    is_open = HAS_OWNERS and status.st_mode & OTHERS_WRITE and not status.st_mode & stat.S_ISVTX
    return _is_own(status) and not is_open


def _is_own(status: os.stat_result) -> bool:
    return not HAS_OWNERS or status.st_uid in (os.geteuid(), 0)


def cores() -> int:
    """Returns the number of cores available to this process."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def compiler() -> str | None:
    """Returns the path of the C++ compiler: `CXX`, or the first of c++, g++ and clang++."""
    names = (os.environ.get("CXX"), "c++", "g++", "clang++")
    return next((path for name in names if name and (path := shutil.which(name))), None)


def compiler_version(compiler: str) -> str:
    """Returns the version text of a compiler.

    Raises:
        SubprocessError: if the compiler reports none.
    """
    return run_tool(compiler, "--version")


def run_tool(*command: str, seconds: float = COMPILE_SECONDS) -> str:
    """Runs a compiler or source generator, and returns its output.

    Raises:
        SubprocessError: if it fails or exceeds `seconds`. Its children end with it.
    """
    # Version queries take seconds at most and need no supervisor.
    done = children.run(command, seconds=seconds, supervised=len(command) > 2)
    if done.returncode:
        raise subprocess.CalledProcessError(done.returncode, command, done.stdout, done.stderr)
    return done.stdout


def first_error(error: subprocess.SubprocessError, mark: str = "error:") -> str:
    """Returns the first line of a tool's output that reports an error, or else the first line.

    >>> text = "In file a.h:1,\\na.cpp:2: error: 'x' was not declared\\na.cpp:3: error: more"
    >>> first_error(subprocess.CalledProcessError(1, "c++", stderr=text))
    "a.cpp:2: error: 'x' was not declared"

    Args:
        error: error of `run_tool`.
        mark: marker of error lines, case-insensitive.
    """
    if isinstance(error, subprocess.TimeoutExpired):
        return f"it took longer than {error.timeout:g} seconds"
    messages = getattr(error, "stderr", None) or getattr(error, "output", None) or str(error)
    lines = [line for line in messages.splitlines() if line.strip()]
    return next((line for line in lines if mark in line.lower()), (lines or ["no message"])[0])
