"""SystemVerilog text: literals, instances, and the sources that a text needs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from chop.hardware.design.plan import RTL

WIDEST_INT = 31
"""Bits of the magnitude of a `parameter int`."""
FOLDER = "FOLDER"
"""Parameter of a module: the folder that the paths of its memories start in."""


class FileIn(str):
    """Path of a file in the folder that the parameter `FOLDER` names."""

    __slots__ = ()


class Name(str):
    """Name of a parameter of the module around."""

    __slots__ = ()


def _literal(value: int | str) -> str:
    """A parameter's value: a string, a decimal number, or a signed 64-bit one beyond 32 bits.

    >>> _literal(-5), _literal(2**40), _literal("a.hex"), _literal(FileIn("a.hex"))
    ('-5', "64'sd1099511627776", '"a.hex"', '{FOLDER, "/a.hex"}')
    """
    if isinstance(value, Name):
        return value
    if isinstance(value, str):
        assert re.fullmatch(r"[\w./-]+", value), value
        return f'{{{FOLDER}, "/{value}"}}' if isinstance(value, FileIn) else f'"{value}"'
    sign = "-" if value < 0 else ""
    size = "" if abs(value) < 2**WIDEST_INT else "64'sd"
    return f"{sign}{size}{abs(value)}"


def instance(
    module: str, name: str, parameters: Mapping[str, int | str], connections: Mapping[str, str]
) -> str:
    """An instance of a module.

    Args:
        module: its name.
        name: of the instance.
        parameters: by name.
        connections: expressions by port.
    """
    values = [f".{key}({_literal(value)})" for key, value in parameters.items()]
    ports = [f".{key}({value})" for key, value in connections.items()]
    head = f"{module} #(\n    {_joined(values)}\n  ) {name}" if values else f"{module} {name}"
    return f"  {head} (\n    {_joined(ports)}\n  );\n"


def _joined(parts: Sequence[str]) -> str:
    return ",\n    ".join(parts)


def sources(text: str, folder: Path = RTL) -> dict[str, Path]:
    """Sources of all modules that a text instantiates, and of theirs, by file name.

    A module is a name in the text, for which the folder or the library has a file.

    Args:
        text: SystemVerilog.
        folder: searched before the library.
    """
    files = {path.stem: path for place in (RTL, folder) for path in sorted(place.glob("*.sv"))}
    found: dict[str, Path] = {}
    texts = [text]
    while texts:
        code = _code(texts.pop())
        names = set(re.findall(r"[A-Za-z_]\w*", code)) - set(re.findall(r"\bmodule\s+(\w+)", code))
        for name in sorted(names & files.keys()):
            path = files[name]
            if path.name not in found:
                found[path.name] = path
                texts.append(path.read_text())
    return found


def _code(text: str) -> str:
    """Without comments."""
    return re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.DOTALL)
