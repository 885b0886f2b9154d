"""Hardware tools: Verilator, Icarus Verilog and Yosys."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from chop.base import children
from chop.base.native import run_tool
from chop.errors import ConfigError, UnavailableError

VERSIONS = {
    "verilator": ("--version", r"Verilator (\S+)"),
    "iverilog": ("-V", r"version (\S+)"),
    "yosys": ("-V", r"Yosys (\S+)"),
}
"""By tool: the option that asks for its version, and where the answer has it."""
INSTALL = "apt-get install --no-install-recommends verilator iverilog yosys"
LINT_SECONDS = 300
ENDED = (-signal.SIGKILL, -signal.SIGTERM)
"""Exit statuses of what others have ended."""


def version(tool: str) -> str | None:
    """Version of a tool of `VERSIONS`; None where it is not installed."""
    option, pattern = VERSIONS[tool]
    try:
        found = re.search(pattern, run_tool(tool, option))
    except (OSError, subprocess.SubprocessError):
        return None
    return found[1] if found else None


def versions() -> dict[str, str | None]:
    """Versions of all tools; None for those that are not installed."""
    return {tool: version(tool) for tool in VERSIONS}


def tool_path(tool: str) -> str:
    """Path of a tool.

    Raises:
        UnavailableError: it is not installed; says how to install it.
    """
    path = shutil.which(tool)
    if path is None:
        raise UnavailableError(f"{tool} is not installed: {INSTALL}")
    return path


def require(*tools: str) -> None:
    """Does nothing where all tools are installed.

    Raises:
        UnavailableError: one is not; says how to install it.
    """
    for tool in tools:
        tool_path(tool)


def lint(
    sources: Sequence[Path],
    top: str,
    parameters: Mapping[str, int] | None = None,
    folder: Path | None = None,
) -> str:
    """Messages of `verilator --lint-only -Wall`; empty where it has no complaint.

    Args:
        sources: SystemVerilog; relative paths start in `folder`. Verilator splits paths at blanks.
        top: the top module.
        parameters: of the top module.
        folder: to run in; default, the working folder.
    Raises:
        UnavailableError: Verilator is not installed, or takes longer than `LINT_SECONDS`.
    """
    values = [f"-G{name}={value}" for name, value in (parameters or {}).items()]
    command = [tool_path("verilator"), "--lint-only", "-Wall", "--top-module", top, *values]
    done = run([*command, *map(str, sources)], folder, LINT_SECONDS)
    return done.stdout + done.stderr


def elaborate(sources: Sequence[Path], top: str, folder: Path) -> str:
    """Messages of Yosys when it elaborates a design; empty where it has no complaint.

    Args:
        sources: SystemVerilog.
        top: the top module.
        folder: of the project, in which Yosys starts: memories are read from there.
    Raises:
        UnavailableError: Yosys is not installed, or takes longer than `LINT_SECONDS`.
    """
    script = f"{read_command(sources)}; hierarchy -check -top {top}; proc; check -assert"
    done = run([tool_path("yosys"), "-q", "-p", script], folder, LINT_SECONDS)
    return done.stdout + done.stderr


def run(
    command: Sequence[str], folder: Path | None, seconds: float, name: str | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs a tool; what it prints is text, and its exit status is not looked at.

    Args:
        command: path of the tool, and its arguments.
        folder: to run in; None for the working folder.
        seconds: time limit.
        name: of the tool in messages; default, that of its program.
    Raises:
        UnavailableError: it takes longer, or is ended from elsewhere, as for want of memory.
    """
    name = name or Path(command[0]).name
    try:
        done = children.run(command, folder, seconds)
    except subprocess.TimeoutExpired:
        raise UnavailableError(f"{name} takes longer than {seconds:g} seconds") from None
    if done.returncode in ENDED:
        raise UnavailableError(
            f"{name} was ended by {signal.Signals(-done.returncode).name}, perhaps for want of "
            "memory: what it found is lost; try again"
        )
    return done


def read_command(sources: Sequence[Path], option: str = "-defer") -> str:
    """The command of Yosys that reads sources.

    Args:
        sources: SystemVerilog; relative paths start where Yosys does.
        option: `-defer`, for modules that get the parameters of each instance, or `-lib`, for
            black boxes.
    Raises:
        ConfigError: a path has a character that Yosys splits or ends commands at.
    """
    names = [str(source) for source in sources]
    if any(re.search(r"[\s;\"#]", name) for name in names):
        raise ConfigError(f"Yosys cannot read paths with blanks, quotes, ';' or '#': {names[0]}")
    return f"read_verilog -sv {option} {' '.join(names)}"
