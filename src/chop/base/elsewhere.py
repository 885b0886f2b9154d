"""Advice for names that `chop` itself lacks and one of its packages has."""

from __future__ import annotations

import ast
from pathlib import Path

from chop.base.files.reading import read_text

PARTNERS = {"load": "MaseGraph.from_checkpoint"}
"""Name that is looked for -> name of `chop` that does the same under another name."""


def advise(name: str) -> str:
    """Returns an ending of a sentence with the public name of a package, or nothing.

    Names are read from `__all__` in the files, because imports would take seconds.

    >>> advise("fit"), advise("load")
    ('; use chop.train.fit', '; use chop.MaseGraph.from_checkpoint')
    """
    if name in PARTNERS:
        return f"; use chop.{PARTNERS[name]}"
    for file in sorted(Path(__file__).parents[1].glob("[!_]*/__init__.py")):
        text = read_text(file, "source")
        if f'"{name}"' in text and name in _public_names(text):
            return f"; use chop.{file.parent.name}.{name}"
    return ""


def _public_names(text: str) -> list[str]:
    """Returns the value of `__all__` in the text of a module; empty if it is not a literal."""
    for node in ast.parse(text).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            try:
                return list(ast.literal_eval(node.value))
            except ValueError:
                return []
    return []
