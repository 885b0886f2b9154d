"""Native code: compiles C++ sources to shared libraries, once, kept in the cache folder."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from chop.files import atomic_file
from chop.hub import cache_folder

COMPILE_SECONDS = 120
LOADED: dict[str, str] = {}
"""Libraries that this process has asked for, by name: path and instruction set, or the failure."""


@dataclass(frozen=True)
class Sources:
    """Sources of one shared library.

    Attributes:
        name: first part of the file's name in the cache folder.
        files: C++ files, compiled in parallel.
        headers: files that they include.
    """

    name: str
    files: tuple[Path, ...]
    headers: tuple[Path, ...] = ()

    def path(self, compiler: str, flags: Sequence[str]) -> Path:
        """Path of the library in the cache folder; its name hashes sources, compiler and flags.

        Raises:
            SubprocessError: the compiler does not tell its version.
        """
        version = _run(compiler, "--version")
        texts = (file.read_text() for file in (*self.files, *self.headers))
        key = hashlib.sha256("\0".join((*texts, compiler, version, *flags)).encode())
        return cache_folder() / f"{self.name}-{key.hexdigest()[:16]}.so"

    def compiled(self, compiler: str, flags: Sequence[str]) -> Path:
        """The library, from the cache folder or compiled into it. Processes may race.

        Raises:
            SubprocessError: the compiler fails.
            OSError: the folder cannot be written.
        """
        path = self.path(compiler, flags)
        if not path.exists():
            with atomic_file(path) as temporary:
                self._compile(compiler, flags, temporary)
        return path

    def _compile(self, compiler: str, flags: Sequence[str], target: Path) -> None:
        """Every source at once, then the linker."""
        with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor() as pool:
            # By number: sources in different folders may have the same name.
            objects = [str(Path(folder) / f"{number}.o") for number in range(len(self.files))]
            jobs = [
                pool.submit(_run, compiler, *flags, "-c", str(source), "-o", name)
                for source, name in zip(self.files, objects, strict=True)
            ]
            for job in jobs:
                job.result()
            _run(compiler, "-shared", "-pthread", *objects, "-o", str(target))


def compiler() -> str | None:
    """Path of the C++ compiler: `CXX`, or the first of c++, g++ and clang++ that is there."""
    names = (os.environ.get("CXX"), "c++", "g++", "clang++")
    return next((found for name in names if name and (found := shutil.which(name))), None)


def _run(*command: str) -> str:
    done = subprocess.run(
        command, check=True, capture_output=True, text=True, timeout=COMPILE_SECONDS
    )
    return done.stdout
