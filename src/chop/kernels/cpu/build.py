"""C++ kernels: the shared library, compiled when it is first needed."""

from __future__ import annotations

import ctypes
import os
import subprocess
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path

from chop.base.native import LOADED, Sources, compiler, first_error, is_whole, load_library
from chop.base.notices import get_logger
from chop.errors import ConfigError

FOLDER = Path(__file__).parent
SOURCES = Sources("kernels", (*sorted(FOLDER.glob("*.cpp")),), (*sorted(FOLDER.glob("*.h")),))
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
SETS = {
    "x86-64-v4": "avx512f avx512bw avx512cd avx512dq avx512vl",
    "x86-64-v3": "avx avx2 bmi1 bmi2 f16c fma abm movbe",
}
"""Instruction sets, the best one first, by what Linux calls those of their instructions that the
next one lacks."""
CPU_INFO = Path("/proc/cpuinfo")
SWITCH, BASELINE = "CHOP_INSTRUCTIONS", "baseline"
"""An environment variable, and its value for loops that every processor runs."""
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
        return found is not None and is_whole(SOURCES.path(found, (*FLAGS, *target(), OPENMP)))
    except (OSError, subprocess.SubprocessError):
        return False


def is_loaded() -> bool:
    """True when asking for the library costs nothing any more, whether there is one or not."""
    return _library.cache_info().currsize > 0


@lru_cache(maxsize=1)
def _library() -> Build:
    found = compiler()
    if found is None:
        build = Build(None, "no C++ compiler: apt-get install g++")
    else:
        shared = _loaded(found, (OPENMP,))
        build = shared if shared.library else _loaded(found, ())
        LOADED[SOURCES.name] = build.detail
    if build.library is None:
        get_logger(__name__).warning(
            "Large tensors are rounded several times slower than by compiled loops: %s.",
            build.detail,
        )
    return build


def compiled(compiler: str, more_flags: Sequence[str] = ()) -> Path:
    """Path of the shared library of one compiler; see `chop.base.native.Sources.compiled`."""
    return SOURCES.compiled(compiler, (*FLAGS, *target(), *more_flags))


@lru_cache(maxsize=1)
def target() -> tuple[str, ...]:
    """Flags that compile loops for this machine's instructions alone, in a third of the time.

    None where the machine does not tell them, or has the least: loops are then compiled for each
    set. A cache folder that several machines share has a library for each set. The variable
    CHOP_INSTRUCTIONS asks for fewer, which shows on any machine what others compute: "x86-64-v3"
    for AVX2, "baseline" for no vector instructions beyond the least.

    Raises:
        ConfigError: the variable has another value, or one that this machine has not.
    """
    asked, sets = os.environ.get(SWITCH), known_sets()
    if asked == BASELINE:
        return ("-DCHOP_ONE_INSTRUCTION_SET",)
    if asked and asked not in sets:
        expected = ", ".join(repr(name) for name in (*sets, BASELINE))
        raise ConfigError(f"{SWITCH}: expected {expected} or nothing, got '{asked}'.")
    best = asked or next(iter(sets), None)
    return () if best is None else (f'-DCHOP_TARGET="arch={best}"', f"-DCHOP_LEVEL={best[-1]}")


def known_sets() -> list[str]:
    """The sets that the machine has, as far as it tells."""
    try:
        text = CPU_INFO.read_text()
    except OSError:
        return []
    line = next((line for line in text.splitlines() if line.startswith("flags")), "")
    known, names = set(line.split()), [*SETS]
    return [
        name
        for number, name in enumerate(names)
        if known.issuperset(" ".join(SETS[other] for other in names[number:]).split())
    ]


def _loaded(compiler: str, more_flags: Sequence[str]) -> Build:
    try:
        path, loaded = load_library(partial(compiled, compiler, more_flags))
    except subprocess.SubprocessError as error:
        return Build(None, f"{compiler} failed: {first_error(error)}")
    except OSError as error:
        return Build(None, f"cannot be kept or loaded: {error}")
    loaded.chop_instruction_set.restype = ctypes.c_char_p
    return Build(loaded, f"{loaded.chop_instruction_set().decode()}, {path}")
