"""Compiles the C++ sources when they are first needed, and keeps the result in the cache folder."""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from chop.files import replacing
from chop.hub import cache_folder

FOLDER = Path(__file__).parent
SOURCES = sorted(FOLDER.glob("*.cpp"))
HEADERS = sorted(FOLDER.glob("*.h"))
FLAGS = (
    "-std=c++17",
    "-O3",
    "-fPIC",
    "-pthread",
    # A fused multiply-add rounds once where the reference rounds twice.
    "-ffp-contract=off",
    # Neither is looked at, and both keep loops from becoming vector instructions.
    "-fno-trapping-math",
    "-fno-math-errno",
)
OPENMP = "-fopenmp"
"""Given to the compiler and not to the linker: torch has loaded the OpenMP library already, and
two of them would have two pools of threads. Without, every call starts threads of its own."""
COMPILE_SECONDS = 120
_building = threading.Lock()


@dataclass(frozen=True)
class Build:
    """What came of compiling.

    Attributes:
        library: the loaded library, or None.
        detail: where it is and the instruction set that it uses, or why there is none.
    """

    library: ctypes.CDLL | None
    detail: str


def compiler() -> str | None:
    """Path of the C++ compiler: `CXX`, or the first of c++, g++ and clang++ that is there."""
    names = (os.environ.get("CXX"), "c++", "g++", "clang++")
    return next((found for name in names if name and (found := shutil.which(name))), None)


def library() -> Build:
    """The kernels, compiled now if they never were. Threads and processes may race."""
    with _building:
        return _library()


def is_ready() -> bool:
    """True when the library can be had without compiling, here or by an earlier process.

    The cache folder is looked into once a process, for some milliseconds.
    """
    return _was_compiled() or is_loaded()


@lru_cache(maxsize=1)
def _was_compiled() -> bool:
    found = compiler()
    try:
        return found is not None and _path(found, (*FLAGS, OPENMP)).exists()
    except (OSError, subprocess.SubprocessError):
        return False


def is_loaded() -> bool:
    """True when asking for the library costs nothing any more, whether there is one or not."""
    return _library.cache_info().currsize > 0


@lru_cache(maxsize=1)
def _library() -> Build:
    found = compiler()
    if found is None:
        return Build(None, "no C++ compiler: apt-get install g++")
    shared = _loaded(found, (OPENMP,))
    return shared if shared.library else _loaded(found, ())


def _loaded(compiler: str, more_flags: Sequence[str]) -> Build:
    try:
        path = compiled(compiler, more_flags)
        loaded = ctypes.CDLL(str(path))
    except subprocess.SubprocessError as error:
        reason = str(getattr(error, "stderr", None) or error).strip().splitlines()
        return Build(None, f"{compiler} failed: {reason[0] if reason else 'no message'}")
    except OSError as error:
        return Build(None, f"cannot be kept or loaded: {error}")
    loaded.chop_instruction_set.restype = ctypes.c_char_p
    return Build(loaded, f"{loaded.chop_instruction_set().decode()}, {path}")


def compiled(compiler: str, more_flags: Sequence[str] = ()) -> Path:
    """The shared library, from the cache folder or compiled into it.

    Raises:
        SubprocessError: the compiler fails.
        OSError: the folder cannot be written.
    """
    flags = (*FLAGS, *more_flags)
    path = _path(compiler, flags)
    if not path.exists():
        with replacing(path) as temporary:
            _compile(compiler, flags, temporary)
    return path


def _path(compiler: str, flags: Sequence[str]) -> Path:
    """Where the library of these sources and this compiler is kept."""
    version = _run(compiler, "--version")
    texts = (file.read_text() for file in (*SOURCES, *HEADERS))
    key = hashlib.sha256("\0".join((*texts, compiler, version, *flags)).encode())
    return cache_folder() / f"kernels-{key.hexdigest()[:16]}.so"


def _compile(compiler: str, flags: Sequence[str], target: Path) -> None:
    """Every source at once, then the linker."""
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor() as pool:
        objects = [str(Path(folder) / f"{source.stem}.o") for source in SOURCES]
        jobs = [
            pool.submit(_run, compiler, *flags, "-c", str(source), "-o", name)
            for source, name in zip(SOURCES, objects, strict=True)
        ]
        for job in jobs:
            job.result()
        _run(compiler, "-shared", "-pthread", *objects, "-o", str(target))


def _run(*command: str) -> str:
    done = subprocess.run(
        command, check=True, capture_output=True, text=True, timeout=COMPILE_SECONDS
    )
    return done.stdout
