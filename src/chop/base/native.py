"""Native code: compiles C++ sources once, kept in the cache folder by their content."""

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

COMPILE_SECONDS = 120
LOADED: dict[str, str] = {}
"""Libraries that this process has asked for, by name: path and instruction set, or the failure."""
MADE = re.compile(
    r"[\w.-]+-[0-9a-f]{12,16}\.(so|o|safetensors|json|config|bit)(\.sha256)?"
    r"|\.[\w.-]+\.(part|lock)",
    re.ASCII,
)
"""Names of files in the cache folder that can be made again, and of what a kill has left there."""
CACHE_BYTES = 2**30
"""Of all compiled files, beyond which those that were not used for longest are removed."""
USED_SECONDS = 600
"""A process that asked for a file so long ago may be about to load it."""
HAS_OWNERS = hasattr(os, "geteuid")
"""Windows tells neither owner nor writers by numbers."""
OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
LINK = {".so": ("-shared", "-pthread"), ".o": ("-r", "-nostdlib")}
"""Flags of the linker, by the suffix of what it writes."""


@dataclass(frozen=True)
class Sources:
    """Sources of one shared library, or of one object file that libraries are linked with.

    Attributes:
        name: first part of the file's name in the cache folder.
        files: C++ files, compiled in parallel.
        headers: files that they include.
        file_flags: flags of single files, which follow those of all.
        objects: compiled files to link with, named by their content as those of the cache folder.
        suffix: ".so" of a shared library, ".o" of an object file.
        seconds: time limit of each call of the compiler.
    """

    name: str
    files: tuple[Path, ...]
    headers: tuple[Path, ...] = ()
    file_flags: Mapping[Path, tuple[str, ...]] = field(default_factory=dict)
    objects: tuple[Path, ...] = ()
    suffix: Literal[".so", ".o"] = ".so"
    seconds: float = COMPILE_SECONDS

    def path(self, compiler: str, flags: Sequence[str]) -> Path:
        """Path in the cache folder; its name hashes sources, compiler and flags.

        Raises:
            SubprocessError: the compiler does not tell its version.
        """
        texts = (file.read_text() for file in (*self.files, *self.headers))
        own = (f"{file.name} {' '.join(more)}" for file, more in self.file_flags.items())
        objects = (file.name for file in self.objects)
        version = compiler_version(compiler)
        return cache_path(
            self.name, self.suffix, (*texts, compiler, version, *flags, *own, *objects)
        )

    def compiled(self, compiler: str, flags: Sequence[str]) -> Path:
        """The file, from the cache folder or compiled into it: of processes that race, by one.

        Raises:
            SubprocessError: the compiler fails; `first_error` says why.
            OSError: the folder cannot be written.
        """
        return kept(self.path(compiler, flags), partial(self.compile, compiler, flags))

    def compile(self, compiler: str, flags: Sequence[str], target: Path) -> None:
        """Compiles the sources, as many at a time as there are cores, and links them to `target`.

        Raises:
            SubprocessError: the compiler fails; `first_error` says why.
        """
        with scratch_folder("compile") as folder, ThreadPoolExecutor(cores()) as pool:
            # By number: sources in different folders may have the same name.
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
    """Path in the cache folder of a file that is made of `parts`, which its name hashes.

    Raises:
        WriteError: the folder cannot be made.
    """
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
    return cache_folder() / f"{name}-{key}{suffix}"


def kept(path: Path, make: Callable[[Path], None]) -> Path:
    """A file of code in the cache folder; where it is not there, one of the callers makes it.

    A digest beside it tells whether it is whole. What does not match is removed and made again.

    Compiled files take at most `CACHE_BYTES`. A folder may be shared. What another user has placed
    there, or could have changed, is no code to run: it is made again in its place.

    Args:
        path: of the file, from `cache_path`.
        make: writes it to the path that it is given.

    Raises:
        WriteError: it cannot be put there, or other users can replace files of the folder.
    """
    if not _keeps_files(path.parent):
        raise WriteError(
            f"no code is kept in '{path.parent}', where another user can replace files: "
            f"`chmod go-w '{path.parent}'` forbids it, or CHOP_CACHE names another folder."
        )
    if is_whole(path):
        with contextlib.suppress(OSError):  # of root, or on a read-only disk
            for file in (path, digest_beside(path)):
                os.utime(file)
        return path
    with build_lock(path):
        if not is_whole(path):
            _make(path, make)
    remove_unused(path.parent, CACHE_BYTES)
    return path


def load_library(built: Callable[[], Path]) -> tuple[Path, ctypes.CDLL]:
    """A shared library in this process; one that does not load is built again, once.

    Its digest may be right: it was built on another system, or by a compiler that was broken.

    Args:
        built: gives its path, from `kept`.
    Raises:
        OSError: a library that was just built does not load.
    """
    path = built()
    try:
        return path, ctypes.CDLL(str(path))
    except OSError as error:
        remove_damaged(path, f"it does not load ({error})")
    path = built()
    return path, ctypes.CDLL(str(path))


def _make(path: Path, make: Callable[[Path], None]) -> None:
    """Makes a file of code and its digest, in the place of what is there."""
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
    """Removes a file of the cache folder, which is made again, and says so in a line."""
    log.warning("'%s' is damaged: %s. It is removed and built again.", path, damage)
    discard(path)


def discard(path: Path) -> None:
    """Removes a file of the cache folder with its digest, where they are there."""
    for file in (path, digest_beside(path)):
        with contextlib.suppress(OSError):
            file.unlink()


def is_whole(path: Path) -> bool:
    """Returns whether a file of code may be used: it is trusted, and as it was written.

    Args:
        path: file made by `kept`.
    """
    return is_trusted(path) and is_trusted(digest_beside(path)) and find_damage(path) is None


def remove_unused(folder: Path, most_bytes: int = 0) -> tuple[int, int]:
    """Removes files that can be made again, those first that were not used for longest.

    What was used within `USED_SECONDS` stays, and so does what another user may remove alone.

    Args:
        folder: the cache folder, or one in it.
        most_bytes: that may stay in all.
    Returns: how many files were removed, and their bytes.
    """
    found = []
    for path in folder.iterdir():
        with contextlib.suppress(OSError):  # removed by another process since
            status = path.lstat()
            if MADE.fullmatch(path.name) and stat.S_ISREG(status.st_mode):
                found.append((status.st_mtime, status.st_size, path))
    total = sum(size for _, size, _ in found)
    count = freed = 0
    for used, size, path in sorted(found):
        if total - freed <= most_bytes or time.time() - used < USED_SECONDS:
            break
        with contextlib.suppress(OSError):
            path.unlink()
            count, freed = count + 1, freed + size
            digest_beside(path).unlink(missing_ok=True)
    return count, freed


def is_trusted(path: Path, is_kind: Callable[[int], bool] = stat.S_ISREG) -> bool:
    """Whether a file is there that nobody but this user or root can have written or replaced.

    A link is no such file: what it leads to may be changed elsewhere.

    Args:
        path: of the file.
        is_kind: what it has to be, by its mode: a file, or `stat.S_ISDIR`.
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
    """Whether nobody but this user or root can rename or remove what they have in a folder.

    Others may write into it where it is sticky, as the folder of temporary files is.
    """
    status = folder.stat()
    is_open = HAS_OWNERS and status.st_mode & OTHERS_WRITE and not status.st_mode & stat.S_ISVTX
    return _is_own(status) and not is_open


def _is_own(status: os.stat_result) -> bool:
    return not HAS_OWNERS or status.st_uid in (os.geteuid(), 0)


def cores() -> int:
    """Cores that this process may use."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def compiler() -> str | None:
    """Path of the C++ compiler: `CXX`, or the first of c++, g++ and clang++ that is there."""
    names = (os.environ.get("CXX"), "c++", "g++", "clang++")
    return next((found for name in names if name and (found := shutil.which(name))), None)


def compiler_version(compiler: str) -> str:
    """What a compiler says about itself.

    Raises:
        SubprocessError: it does not.
    """
    return run_tool(compiler, "--version")


def run_tool(*command: str, seconds: float = COMPILE_SECONDS) -> str:
    """Runs a compiler, or what writes its sources, and returns what it prints.

    Raises:
        SubprocessError: it fails, or takes longer than `seconds`; what it started ends with it.
    """
    # What tells its version, in seconds at most, needs no supervisor.
    done = children.run(command, seconds=seconds, supervised=len(command) > 2)
    if done.returncode:
        raise subprocess.CalledProcessError(done.returncode, command, done.stdout, done.stderr)
    return done.stdout


def first_error(error: subprocess.SubprocessError, mark: str = "error:") -> str:
    """The first line of a tool's messages that tells of an error, or else the first line of all.

    >>> text = "In file a.h:1,\\na.cpp:2: error: 'x' was not declared\\na.cpp:3: error: more"
    >>> first_error(subprocess.CalledProcessError(1, "c++", stderr=text))
    "a.cpp:2: error: 'x' was not declared"

    Args:
        error: of `run_tool`.
        mark: what such lines have, in any case.
    """
    if isinstance(error, subprocess.TimeoutExpired):
        return f"it took longer than {error.timeout:g} seconds"
    messages = getattr(error, "stderr", None) or getattr(error, "output", None) or str(error)
    lines = [line for line in messages.splitlines() if line.strip()]
    return next((line for line in lines if mark in line.lower()), (lines or ["no message"])[0])
