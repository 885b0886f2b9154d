"""Build of the C++ kernels: a shared library, compiled on first use."""

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
    # Nothing reads floating-point traps or errno, and both prevent vectorization.
    "-fno-trapping-math",
    "-fno-math-errno",
)
OPENMP = "-fopenmp"
"""OpenMP flag for the compiler only. The linker must not get it: torch has already loaded the
library, and a second copy would have its own thread pool. Without the flag, calls start threads.
"""
SETS = {
    "x86-64-v4": "avx512f avx512bw avx512cd avx512dq avx512vl",
    "x86-64-v3": "avx avx2 bmi1 bmi2 f16c fma abm movbe",
}
"""Instruction sets, best first, with the Linux CPU flags that the next set lacks."""
PRODUCTS = ("avx_vnni", "avx512_vnni", "amx_int8", "avx512_bf16", "amx_bf16")
"""Linux flags of the processor's instructions for products of 8-bit integers and bfloat16."""
CPU_INFO = Path("/proc/cpuinfo")
SWITCH, BASELINE = "CHOP_INSTRUCTIONS", "baseline"
"""Environment variable that limits the instruction set, and its value for portable loops."""
_building = threading.Lock()


@dataclass(frozen=True)
class Build:
    """Result of the compilation.

    Attributes:
        library: loaded library, or None.
        detail: path and instruction set of the library, or the reason for its absence.
    """

    library: ctypes.CDLL | None
    detail: str


def library() -> Build:
    """Returns the kernels, compiling them if necessary. Threads and processes may race."""
    # `lru_cache` does not keep two threads from compiling at the same time.
    with _building:
        return _library()


def is_ready() -> bool:
    """Returns True if the library is loaded or compiled already, here or by an earlier process.

    The cache folder is checked once per process, which takes a few milliseconds.
    """
    return _was_compiled() or is_loaded()


@lru_cache(maxsize=1)
def _was_compiled() -> bool:
    compiler_path = compiler()
    try:
        return compiler_path is not None and is_whole(
            SOURCES.path(compiler_path, (*FLAGS, *target(), OPENMP))
        )
    except (OSError, subprocess.SubprocessError):
        return False


def is_loaded() -> bool:
    """Returns True if loading was attempted before, so that `library()` returns immediately."""
    return _library.cache_info().currsize > 0


@lru_cache(maxsize=1)
def _library() -> Build:
    compiler_path = compiler()
    if compiler_path is None:
        build = Build(None, "no C++ compiler found (apt-get install g++)")
    else:
        # Some compilers lack OpenMP. Without it, each call starts its own threads.
        shared = _loaded(compiler_path, (OPENMP,))
        build = shared if shared.library else _loaded(compiler_path, ())
        LOADED[SOURCES.name] = build.detail
    if build.library is None:
        get_logger(__name__).warning(
            "C++ kernels are not available: %s. Rounding large tensors is several times slower.",
            build.detail,
        )
    return build


def compiled(compiler: str, more_flags: Sequence[str] = ()) -> Path:
    """Returns the path of the library for a compiler; see `chop.base.native.Sources.compiled`."""
    return SOURCES.compiled(compiler, (*FLAGS, *target(), *more_flags))


@lru_cache(maxsize=1)
def target() -> tuple[str, ...]:
    """Returns flags that compile for this machine's instruction set only, in a third of the time.

    The result is empty if the instruction set is unknown or the baseline. The loops are then
    compiled for every set. A cache folder that several machines share holds one library per set.
    CHOP_INSTRUCTIONS selects a smaller set to reproduce other machines' results: "x86-64-v3" for
    AVX2, "baseline" for portable loops.

    Raises:
        ConfigError: if the variable has an unknown value, or a set that this machine lacks.
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
    """Returns the instruction sets that Linux reports for this machine."""
    known, names = processor_flags(), [*SETS]
    return [
        name
        for number, name in enumerate(names)
        # A set includes all lower sets, so their flags are required as well.
        if known.issuperset(" ".join(SETS[other] for other in names[number:]).split())
    ]


def product_instructions() -> dict[str, bool]:
    """Returns which instructions for products of 8-bit integers and bfloat16 Linux reports."""
    known = processor_flags()
    return {name: name in known for name in PRODUCTS}


def processor_flags() -> frozenset[str]:
    """Returns the flags of the processor that Linux reports; none on other systems."""
    try:
        text = CPU_INFO.read_text()
    except OSError:
        return frozenset()
    line = next((line for line in text.splitlines() if line.startswith("flags")), "")
    return frozenset(line.split())


def _loaded(compiler: str, more_flags: Sequence[str]) -> Build:
    try:
        path, loaded = load_library(partial(compiled, compiler, more_flags))
    except subprocess.SubprocessError as error:
        return Build(None, f"{compiler} failed: {first_error(error)}")
    except OSError as error:
        return Build(None, f"the library cannot be written or loaded: {error}")
    loaded.chop_instruction_set.restype = ctypes.c_char_p
    return Build(loaded, f"{loaded.chop_instruction_set().decode()}, {path}")
