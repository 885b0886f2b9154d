"""Verilator build: a project as a shared library, built once and cached."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from chop.base.files.temporary import scratch_folder
from chop.base.native import (
    Sources,
    cache_path,
    cached_file,
    compiler,
    compiler_version,
    cores,
    first_error,
    run_tool,
)
from chop.errors import ConfigError, UnavailableError
from chop.hardware.check.project import Project, list_sources, source_text
from chop.hardware.design.plan import RTL
from chop.hardware.harness.top import AXI, CHECK, FILL, SIMULATION, ports_header, simulation_top
from chop.hardware.tools import tool_path, version

HARNESS = Path(__file__).parent / "harness.cpp"
VERILATOR_FLAGS = ("-O3", "--x-assign", "fast", "--x-initial", "fast", "--noassert")
RUNTIME = ("verilated.cpp", "verilated_threads.cpp")
TRACED_RUNTIME = ("verilated_vcd_c.cpp",)
FLAGS = ("-std=c++17", "-fPIC", "-pthread")
FAST, SLOW = "-O1", "-O0"
"""Compiler optimization of code that runs in every cycle, and of code that runs once. Levels above
-O1 compile longer without faster simulation.
"""
CHUNK_BYTES = 100_000
"""Minimum size of a compilation unit. The headers of Verilator take half a second to compile."""
BUILD_SECONDS = 1800


def verilate(folder: Path, project: Project, wave: bool = False, optimization: str = FAST) -> Path:
    """Returns the shared library that simulates a project, from the cache or newly built.

    Args:
        folder: project folder; `rtl/*.sv` is read.
        project: its content.
        wave: supports waveform output, which slows down simulation.
        optimization: optimization level of the C++ compiler.
    Raises:
        UnavailableError: if Verilator or a C++ compiler is not installed, or the compiler fails.
        ConfigError: if Verilator rejects the design.
        WriteError: if the cache folder is not writable.
    """
    tool_path("verilator")
    compiler_path = compiler()
    if compiler_path is None:
        raise UnavailableError("simulations need a C++ compiler: apt-get install g++")
    flags = (*FLAGS, f"-DVM_TRACE={int(wave)}")
    own = {path.name: source_text(path) for path in list_sources(folder)}
    benches = (CHECK, FILL, *(AXI if project.wrapper else ()))
    sources = own | {f"{name}.sv": (RTL / f"{name}.sv").read_text() for name in benches}
    generated = {
        f"{SIMULATION}.sv": simulation_top(project, project.fifos),
        "ports.h": ports_header(project.ends),
    }
    texts = [text for source in sources.items() for text in source]
    tools = (version("verilator") or "", compiler_path, _version(compiler_path), optimization)
    # All that affects the library. A change of any of it gives another file in the cache.
    key = [*tools, *VERILATOR_FLAGS, *flags, *generated.values(), HARNESS.read_text(), *texts]

    def make(target: Path) -> None:
        with scratch_folder("verilate") as work:
            for file, text in {**sources, **generated}.items():
                (work / file).write_text(text)
            _translate(work, [*sources, f"{SIMULATION}.sv"], wave)
            _compile(work, compiler_path, flags, optimization, target)

    return cached_file(cache_path(f"simulation-{project.top}", ".so", key), make)


@cache
def _version(path: str) -> str:
    return compiler_version(path)


@cache
def _include_folder() -> Path:
    """Returns the folder of the headers and sources of Verilator's runtime."""
    return Path(run_tool("verilator", "--getenv", "VERILATOR_ROOT").strip()) / "include"


def _translate(work: Path, sources: Sequence[str], wave: bool) -> None:
    trace = ("--trace", "--trace-structs") if wave else ()
    try:
        run_tool(
            *("verilator", "--cc", *VERILATOR_FLAGS, *trace),
            *("--top-module", SIMULATION, "--Mdir", str(work)),
            *(str(work / name) for name in sources),
            seconds=BUILD_SECONDS,
        )
    except subprocess.SubprocessError as error:
        reason = first_error(error, "%")
        raise ConfigError(f"verilator does not accept the design: {reason}") from error


def _compile(
    work: Path, compiler: str, flags: Sequence[str], optimization: str, target: Path
) -> None:
    include = _include_folder()
    flags = (*flags, f"-I{work}", f"-I{include}", f"-I{include / 'vltstd'}")
    files = sorted(work.glob("*.cpp"))
    # Verilator marks constructors and symbol tables by these endings.
    once = [file for file in files if file.stem.endswith(("__Slow", "__Syms"))]
    slow = _chunks(work, "slow", once)
    fast = _chunks(work, "fast", [HARNESS, *(file for file in files if file not in once)])
    per_file = {**dict.fromkeys(slow, (SLOW,)), **dict.fromkeys(fast, (optimization,))}
    try:
        runtime = _runtime(compiler, "-DVM_TRACE=1" in flags)
        library = Sources(
            "simulation",
            (*fast, *slow),
            file_flags=per_file,
            objects=(runtime,),
            seconds=BUILD_SECONDS,
        )
        library.compile(compiler, flags, target)
    except subprocess.SubprocessError as error:
        reason = first_error(error)
        raise UnavailableError(f"{compiler} cannot compile the simulation: {reason}") from error


def _chunks(work: Path, name: str, files: Sequence[Path]) -> list[Path]:
    """Groups `files` into compilation units: one per core, fewer if they would be small."""
    size = sum(file.stat().st_size for file in files)
    count = max(1, min(cores(), size // CHUNK_BYTES))
    groups: list[list[Path]] = [[] for _ in range(count)]
    # Largest first into the smallest group gives groups that take about equally long to compile.
    for file in sorted(files, key=lambda file: -file.stat().st_size):
        min(groups, key=lambda group: sum(f.stat().st_size for f in group)).append(file)
    made = []
    for number, group in enumerate(groups):
        made.append(work / f"{name}{number}.cc")
        made[-1].write_text("".join(f'#include "{file}"\n' for file in group))
    return made


def _runtime(compiler: str, wave: bool) -> Path:
    """Returns Verilator's runtime as an object file, compiled once."""
    include = _include_folder()
    files = (*RUNTIME, *TRACED_RUNTIME) if wave else RUNTIME
    runtime = Sources(
        "verilator",
        tuple(include / file for file in files),
        headers=tuple(sorted(include.glob("*.h"))),
        suffix=".o",
        seconds=BUILD_SECONDS,
    )
    flags = (*FLAGS, FAST, f"-DVM_TRACE={int(wave)}")
    return runtime.compiled(compiler, (*flags, f"-I{include}", f"-I{include / 'vltstd'}"))
