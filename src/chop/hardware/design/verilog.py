"""SystemVerilog text: literals, instances and required sources."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from chop.hardware.design.plan import RTL

WIDEST_INT = 31
"""Bits of the magnitude of a `parameter int`."""
FOLDER = "FOLDER"
"""Module parameter with the base folder of memory files."""


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
        code = _code(texts.pop())
        names = set(re.findall(r"[A-Za-z_]\w*", code)) - set(re.findall(r"\bmodule\s+(\w+)", code))
        for name in sorted(names & files.keys()):
            path = files[name]
            if path.name not in paths:
                paths[path.name] = path
                texts.append(path.read_text())
    return paths


def _code(text: str) -> str:
    # Comments name modules that are not instantiated.
    return re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.DOTALL)
