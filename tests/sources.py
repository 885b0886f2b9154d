"""Syntax trees of source files, which many tests read and each process parses once."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path


@cache
def parse_file(path: Path) -> ast.Module:
    """Returns the tree of a Python file; it is shared, so nobody changes it."""
    return ast.parse(path.read_text(encoding="utf-8"))
