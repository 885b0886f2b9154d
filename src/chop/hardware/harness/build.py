"""Verilate: a project as a shared library, built once and kept in the cache folder."""

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
from chop.hardware.harness.top import CHECK, FILL, SIMULATION, ports_header, simulation_top
from chop.hardware.tools import tool_path, version

HARNESS = Path(__file__).parent / "harness.cpp"
VERILATOR_FLAGS = ("-O3", "--x-assign", "fast", "--x-initial", "fast", "--noassert")
RUNTIME = ("verilated.cpp", "verilated_threads.cpp")
TRACED_RUNTIME = ("verilated_vcd_c.cpp",)
FLAGS = ("-std=c++17", "-fPIC", "-pthread")
FAST, SLOW = "-O1", "-O0"
"""Optimization of what runs in every cycle, and of what runs once. Beyond -O1 the compiler takes
longer and the simulation does not."""
CHUNK_BYTES = 100_000
"""Least size of a file for the compiler: Verilator's headers alone take it half a second."""
BUILD_SECONDS = 1800


def verilate(folder: Path, project: Project, wave: bool = False, optimization: str = FAST) -> Path:
    """The shared library that simulates a project, from the cache folder or built into it, once.

    Args:
        folder: of the project; `rtl/*.sv` is read.
        project: what is in it.
        wave: whether runs can write waveforms, which makes them slower.
        optimization: of the C++ compiler.
    Raises:
        UnavailableError: Verilator or a C++ compiler is not installed, or the compiler fails.
        ConfigError: Verilator does not accept the design.
        WriteError: the cache folder cannot be written.
    """
    tool_path("verilator")
    found = compiler()
    if found is None:
        raise UnavailableError("simulations need a C++ compiler: apt-get install g++")
    flags = (*FLAGS, f"-DVM_TRACE={int(wave)}")
    own = {path.name: source_text(path) for path in list_sources(folder)}
    sources = own | {f"{name}.sv": (RTL / f"{name}.sv").read_text() for name in (CHECK, FILL)}
    generated = {
        f"{SIMULATION}.sv": simulation_top(
            project.top, project.ports, project.streams, project.fifos
        ),
        "ports.h": ports_header(project.ports),
    }
    texts = [text for source in sources.items() for text in source]
    tools = (version("verilator") or "", found, _version(found), optimization)
    key = [*tools, *VERILATOR_FLAGS, *flags, *generated.values(), HARNESS.read_text(), *texts]

    def make(target: Path) -> None:
        with scratch_folder("verilate") as work:
            for file, text in {**sources, **generated}.items():
                (work / file).write_text(text)
            _translate(work, [*sources, f"{SIMULATION}.sv"], wave)
            _compile(work, found, flags, optimization, target)

    return cached_file(cache_path(f"simulation-{project.top}", ".so", key), make)


@cache
def _version(found: str) -> str:
    return compiler_version(found)


@cache
def _include_folder() -> Path:
    """Folder of the headers and sources of Verilator's runtime."""
    return Path(run_tool("verilator", "--getenv", "VERILATOR_ROOT").strip()) / "include"


def _translate(work: Path, sources: Sequence[str], wave: bool) -> None:
    """SystemVerilog to C++."""
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
    """C++ to a shared library."""
    include = _include_folder()
    flags = (*flags, f"-I{work}", f"-I{include}", f"-I{include / 'vltstd'}")
    files = sorted(work.glob("*.cpp"))
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
    """Files that include `files`: as many as there are cores, fewer if they would be small."""
    size = sum(file.stat().st_size for file in files)
    count = max(1, min(cores(), size // CHUNK_BYTES))
    groups: list[list[Path]] = [[] for _ in range(count)]
    for file in sorted(files, key=lambda file: -file.stat().st_size):
        min(groups, key=lambda group: sum(f.stat().st_size for f in group)).append(file)
    made = []
    for number, group in enumerate(groups):
        made.append(work / f"{name}{number}.cc")
        made[-1].write_text("".join(f'#include "{file}"\n' for file in group))
    return made


def _runtime(compiler: str, wave: bool) -> Path:
    """Verilator's runtime as an object file, compiled once."""
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
