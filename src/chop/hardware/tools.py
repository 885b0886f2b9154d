"""Hardware tools: Verilator, Icarus Verilog, Yosys and slang."""

from __future__ import annotations

import importlib.util
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from chop.base import children
from chop.base.native import run_tool
from chop.base.notices import warn_once
from chop.errors import ConfigError, UnavailableError

VERSIONS = {
    "verilator": ("--version", r"Verilator (\S+)"),
    "iverilog": ("-V", r"version (\S+)"),
    "yosys": ("-V", r"Yosys (\S+)"),
}
"""Version option of each tool, and the pattern of the version in its output."""
INSTALL = "apt-get install --no-install-recommends verilator iverilog yosys"
LINT_SECONDS = 300
ENDED = (-signal.SIGKILL, -signal.SIGTERM)
"""Exit statuses of processes ended by a signal from outside."""


def version(tool: str) -> str | None:
    """Returns the version of a tool in `VERSIONS`; None if it is not installed."""
    option, pattern = VERSIONS[tool]
    try:
        match = re.search(pattern, run_tool(tool, option))
    except (OSError, subprocess.SubprocessError):
        return None
    return match[1] if match else None


def versions() -> dict[str, str | None]:
    """Returns the versions of all tools; None for tools that are not installed."""
    return {tool: version(tool) for tool in VERSIONS}


def tool_path(tool: str) -> str:
    """Returns the path of a tool.

    Raises:
        UnavailableError: if it is not installed; the message says how to install it.
    """
    path = shutil.which(tool)
    if path is None:
        raise UnavailableError(f"{tool} is not installed: {INSTALL}")
    return path


def require(*tools: str) -> None:
    """Checks that all tools are installed.

    Raises:
        UnavailableError: if one is not installed; the message says how to install it.
    """
    for tool in tools:
        tool_path(tool)


def lint(
    sources: Sequence[Path],
    top: str,
    parameters: Mapping[str, int] | None = None,
    folder: Path | None = None,
) -> str:
    """Returns the messages of `verilator --lint-only -Wall`; empty if there are none.

    Args:
        sources: SystemVerilog sources, relative to `folder`. Verilator splits paths at blanks.
        top: top module.
        parameters: parameters of the top module.
        folder: working folder; default: the current one.
    Raises:
        UnavailableError: if Verilator is not installed or takes longer than `LINT_SECONDS`.
    """
    values = [f"-G{name}={value}" for name, value in (parameters or {}).items()]
    command = [tool_path("verilator"), "--lint-only", "-Wall", "--top-module", top, *values]
    done = run([*command, *map(str, sources)], folder, LINT_SECONDS)
    return done.stdout + done.stderr


def elaborate(sources: Sequence[Path], top: str, folder: Path) -> str:
    """Returns the messages of Yosys from elaborating a design; empty if there are none.

    Args:
        sources: SystemVerilog sources.
        top: top module.
        folder: project folder, where Yosys runs and reads memories.
    Raises:
        UnavailableError: if Yosys is not installed or takes longer than `LINT_SECONDS`.
    """
    script = f"{read_command(sources)}; hierarchy -check -top {top}; proc; check -assert"
    done = run([tool_path("yosys"), "-q", "-p", script], folder, LINT_SECONDS)
    return done.stdout + done.stderr


def check_language(sources: Sequence[Path], top: str, folder: Path) -> str:
    """Returns the messages of slang from elaborating a design; empty if there are none.

    slang follows IEEE 1800-2023 strictly, as commercial synthesis tools do. Verilator and Yosys
    accept more, such as names used before their declaration.

    Args:
        sources: SystemVerilog sources, absolute or relative to `folder`.
        top: top module.
        folder: project folder.
    """
    from pyslang import Bag, DiagnosticEngine, SourceManager, TextDiagnosticClient
    from pyslang.ast import Compilation, CompilationOptions
    from pyslang.syntax import SyntaxTree

    options, manager = CompilationOptions(), SourceManager()
    options.topModules = {top}
    design = Compilation(Bag([options]))
    for source in sources:
        design.addSyntaxTree(SyntaxTree.fromFile(str(folder / source), manager))
    engine, text = DiagnosticEngine(manager), TextDiagnosticClient()
    engine.addClient(text)
    # A shift by the whole width gives zero by the standard; components of one lane use it.
    engine.setWarningOptions(["none", "default", "no-shift-count-overflow"])
    for diagnostic in design.getAllDiagnostics():
        engine.issue(diagnostic)
    return text.getString()


def source_messages(sources: Sequence[Path], top: str, folder: Path) -> Iterator[tuple[str, str]]:
    """Yields each tool that reads a design, and its messages; empty if there are none.

    slang is used if it is installed. A warning names an installation that cannot be imported.

    Args:
        sources: SystemVerilog sources, absolute or relative to `folder`.
        top: top module.
        folder: project folder.
    Raises:
        UnavailableError: if Verilator or Yosys is not installed or takes too long.
    """
    yield "verilator --lint-only -Wall", lint(sources, top, folder=folder)
    yield "yosys", elaborate(sources, top, folder)
    if importlib.util.find_spec("pyslang"):
        try:
            yield "slang", check_language(sources, top, folder)
        except ImportError as error:
            warn_once(
                f"the circuit is not checked by slang, since pyslang cannot be imported ({error}): "
                "pip install --force-reinstall 'mase-chop[slang]', or pip uninstall pyslang."
            )


def run(
    command: Sequence[str], folder: Path | None, seconds: float, name: str | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs a tool and captures its text output, without checking its exit status.

    Args:
        command: path of the tool, and its arguments.
        folder: working folder; None for the current one.
        seconds: time limit.
        name: tool name in messages; default: the program name.
    Raises:
        UnavailableError: if it exceeds the limit or is killed, such as when memory runs out.
    """
    name = name or Path(command[0]).name
    try:
        done = children.run(command, folder, seconds)
    except subprocess.TimeoutExpired:
        raise UnavailableError(f"{name} takes longer than {seconds:g} seconds") from None
    if done.returncode in ENDED:
        raise UnavailableError(
            f"{name} was ended by {signal.Signals(-done.returncode).name}, perhaps because memory "
            "ran out; try again"
        )
    return done


def read_command(sources: Sequence[Path], option: str = "-defer") -> str:
    """Returns the Yosys command that reads sources.

    Args:
        sources: SystemVerilog sources, relative to Yosys' working folder.
        option: `-defer` for modules with parameters per instance, or `-lib` for black boxes.
    Raises:
        ConfigError: if a path has a character at which Yosys splits or ends commands.
    """
    names = [str(source) for source in sources]
    if any(re.search(r"[\s;\"#]", name) for name in names):
        raise ConfigError(f"Yosys cannot read paths with blanks, quotes, ';' or '#': {names[0]}")
    return f"read_verilog -sv {option} {' '.join(names)}"
