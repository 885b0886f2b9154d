"""SystemVerilog text: literals, instances and required sources."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from chop.hardware.design.plan import NO_LOAD, RTL, has_load_port

WIDEST_INT = 31
"""Bits of the magnitude of a `parameter int`."""
FOLDER = "FOLDER"
"""Module parameter with the base folder of memory files."""

_BLANKS = " \t\n\r\f"
_PIECES = re.compile(
    rf'""".*|"(?:\\.|[^"\\\n])*"|\\\r?\n|\\[^{_BLANKS}]+|//[^\n]*|/\*(?:.*?\*/|.*)|[{_BLANKS}]+'
    rf'|[^{_BLANKS}"\\/]+|.',
    re.DOTALL,
)
"""A string, the end of a continued line, an escaped name, a comment, blanks, or other text.

A string in three quotes is one piece with the rest of the text, since not every tool knows it.
"""
_PRAGMA = re.compile(
    r"\A..\W*(?:verilator|synopsys|synthesis|rtl_synthesis|pragma|yosys|verific|cadence|ambit|"
    r"altera|quartus|xilinx|vivado|exemplar|mentor|synplify|synplicity|spyglass|vcs|lint|coverage|"
    r"attribute|verilint|verilog_lint|leda|surefire|0in|psl|sva)(?![a-z0-9])|"
    r"\b(?:translate|synthesis|lint|coverage)_o(?:n|ff)\b|(?:full|parallel)_case\b|"
    r"\\\r?$|\r(?!\n|\Z)|[\0-\x08\x0e-\x1f\x7f]|[^\S \t\n\r]",
    re.IGNORECASE,
)
"""A comment that a tool may act on, or that a tool may end at another place."""
_SEPARATED = re.compile(r"[][(){},;][][(){},;\w\"\$]|[\w\"\$][][(){},;]")
_ESCAPED_END = re.compile(r"\\\S+$")


class FileIn(str):
    """Path of a file in the folder that the parameter `FOLDER` names."""

    __slots__ = ()


class Name(str):
    """Parameter name of the enclosing module."""

    __slots__ = ()


def _literal(value: int | str) -> str:
    """Formats a parameter value: a string, a decimal number, or a signed 64-bit one beyond 32 bits.

    >>> _literal(-5), _literal(2**40), _literal("a.hex"), _literal(FileIn("a.hex"))
    ('-5', "64'sd1099511627776", '"a.hex"', '{FOLDER, "/a.hex"}')
    """
    if isinstance(value, Name):
        return value
    if isinstance(value, str):
        assert re.fullmatch(r"[\w./-]+", value), value
        return f'{{{FOLDER}, "/{value}"}}' if isinstance(value, FileIn) else f'"{value}"'
    sign = "-" if value < 0 else ""
    # A decimal literal without a size has 32 bits.
    size = "" if abs(value) < 2**WIDEST_INT else "64'sd"
    return f"{sign}{size}{abs(value)}"


def instance(
    module: str, name: str, parameters: Mapping[str, int | str], connections: Mapping[str, str]
) -> str:
    """Formats a module instance.

    Args:
        module: module name.
        name: instance name.
        parameters: parameter values by name.
        connections: expressions by port.
    """
    values = [f".{key}({_literal(value)})" for key, value in parameters.items()]
    ports = [f".{key}({value})" for key, value in connections.items()]
    head = f"{module} #(\n    {_joined(values)}\n  ) {name}" if values else f"{module} {name}"
    return f"  {head} (\n    {_joined(ports)}\n  );\n"


def _joined(parts: Sequence[str]) -> str:
    return ",\n    ".join(parts)


def sources(text: str, folder: Path = RTL) -> dict[str, Path]:
    """Returns the sources of all directly and indirectly instantiated modules, by file name.

    A module is a name in the text for which the folder or the library has a file.

    Args:
        text: SystemVerilog.
        folder: folder searched before the library.
    """
    files = {path.stem: path for place in (RTL, folder) for path in sorted(place.glob("*.sv"))}
    paths: dict[str, Path] = {}
    texts = [text]
    while texts:
        code = " ".join(line for _, line in code_lines(texts.pop()))
        names = set(re.findall(r"[A-Za-z_]\w*", code)) - set(re.findall(r"\bmodule\s+(\w+)", code))
        for name in sorted(names & files.keys()):
            path = files[name]
            if path.name not in paths:
                paths[path.name] = path
                texts.append(path.read_text())
    return paths


def read_source(path: Path) -> str:
    """Returns the text of a source, in which the input `load_i` of library modules is connected.

    Sources outside the library may be older than this input, which has no default value, because
    Verilator 5.006 and Icarus 11 have none for ports.
    """
    text = path.read_text()
    return text if path.parent == RTL else tie_load(text, path.parent)


def tie_load(text: str, folder: Path = RTL) -> str:
    """Connects `load_i` to zeros in the instances that lack it, if their ports are named.

    Args:
        text: SystemVerilog.
        folder: folder of the modules, searched before the library.

    >>> tie_load("chop_linear #(.SETS(1)) u_a (.clk_i);")
    "chop_linear #(.SETS(1)) u_a (.load_i(57'b0), .clk_i);"
    """
    code = "".join(
        " " * len(x) if x[0] == '"' or x[:2] in ("//", "/*") else x for x in _pieces(text)
    )
    ends = []
    for name in re.finditer(r"\b[A-Za-z_]\w*\b", code):
        start = _connections(code, name.end()) if has_load_port(name[0], folder) else None
        if start is not None and ".load_i" not in code[start : _closing(code, start)]:
            ends.append(start)
    (tie,) = (f".{port}({value}), " for port, value in NO_LOAD.items())
    for start in reversed(ends):
        text = f"{text[:start]}{tie}{text[start:]}"
    return text


def _pieces(text: str) -> list[str]:
    pieces: list[str] = _PIECES.findall(text)
    return pieces


def _connections(code: str, start: int) -> int | None:
    """Returns the place of an instance's first named port, behind the name of its module."""
    parameters = re.compile(r"\s*#\s*\(").match(code, start)
    if parameters:
        start = _closing(code, parameters.end())
    ports = re.compile(r"\s*\w+\s*(?:\[[^]]*\]\s*)?\((?=\s*\.)").match(code, start)
    return ports.end() if ports else None


def _closing(code: str, start: int) -> int:
    """Returns the place behind the bracket that closes the one ahead of `start`."""
    depth = 1
    for place in range(start, len(code)):
        depth += (code[place] == "(") - (code[place] == ")")
        if depth == 0:
            return place + 1
    return len(code)


def code_lines(text: str) -> list[tuple[int, str]]:
    """Returns the lines of SystemVerilog without comments and blank lines, with their numbers.

    Comments that tools act on (`// verilator ...`, `/* synthesis ... */`) are kept, and strings and
    escaped names are not searched for comments. Blanks become one space, or none beside brackets,
    commas and semicolons, where they have no meaning.

    >>> code_lines('// a wire\\nassign y = "//x"; // why\\nlogic z; /* synthesis keep */')
    [(2, 'assign y = "//x";'), (3, 'logic z; /* synthesis keep */')]
    """
    lines: list[tuple[int, str]] = []
    number, gap = 1, "\n"
    for piece in _PIECES.findall(text):
        # A directive ends with its line, and tools disagree whether a comment continues it.
        continues = gap != "\n" and "`" in lines[-1][1] and "\n" in piece.strip(_BLANKS)
        if not piece.strip(_BLANKS) or (_is_remark(piece) and not continues):
            gap = "\n" if "\n" in gap + piece else " "
        elif gap == "\n":
            lines.append((number, piece))
            gap = ""
        else:
            start, line = lines[-1]
            blank = gap if gap and _needs_gap(line, piece) else ""
            lines[-1] = (start, f"{line}{blank}{piece}")
            gap = ""
        number += piece.count("\n")
    return lines


def _is_remark(piece: str) -> bool:
    """Returns whether a piece is a comment that no tool acts on."""
    is_comment = piece.startswith("//") or (piece[:2] == "/*" and piece[2:].endswith("*/"))
    return is_comment and not _PRAGMA.search(piece)


def _needs_gap(line: str, piece: str) -> bool:
    """Returns whether a blank between two pieces of a line may change their meaning."""
    # A macro may be defined or used, `\name` ends at a blank, and (* begins an attribute.
    if "`" in line or _ESCAPED_END.search(line):
        return True
    return not _SEPARATED.fullmatch(line[-1] + piece[0])
