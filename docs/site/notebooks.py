"""Notebooks made from the examples' scripts: their parts as cells, `main` piece by piece.

A notebook has the settings of `run_course.SMALL`, so that all of it runs in seconds, and ends with
the figures that the page of the course promises of its script.
"""

from __future__ import annotations

import ast
import json
import shlex
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from docs.run_course import PAGE, PICTURES, SMALL, items
from docs.site.markdown import code, escaped

ROOT = Path(__file__).resolve().parents[2]
FOLDER = "docs/course/notebooks"
TAKEN = "parse_args()"
"""Call that reads the options of a script; a notebook has their values in its place."""
RUN = """## The run

`main` of the script, piece by piece. Its options make it small: it takes seconds, and its numbers
mean nothing. `parse_args([])` takes the script's own settings."""
FIGURES = "## Its figures"
Cell = dict[str, Any]


def scripts() -> list[str]:
    """The scripts that the page of the course runs."""
    words = [shlex.split(item.command) for item in items(PAGE.read_text())]
    return list(dict.fromkeys(call[1] for call in words if call[0] == "python"))


def get_name(script: str) -> str:
    """`lab_1` of `examples/lab_1.py`."""
    return Path(script).stem


def notebook(script: str) -> dict[str, Any]:
    """A script as a notebook without outputs.

    Args:
        script: its path in the repository.
    Returns: what a file `.ipynb` holds.
    Raises:
        ValueError: the script reads its options in more places than one, or in none.

    Source: nbformat 4.5.
    """
    out = f"runs/{get_name(script)}"
    words = shlex.split(SMALL[f"python {script}"].replace("{out}", out))
    source = (ROOT / script).read_text()
    if source.count(TAKEN) != 1:
        raise ValueError(f"{script} has {source.count(TAKEN)} calls of {TAKEN}; one was expected.")
    source = source.replace(TAKEN, f"parse_args({_quoted(shlex.join(words))}.split())")
    made = [*_cells(source)]
    made += _figures(script, out, made)
    return {
        "cells": [{"id": f"cell-{number}", **cell} for number, cell in enumerate(made)],
        "metadata": {
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        },
        "nbformat": 4,
        "nbformat_minor": 5,
    }


def text(source: str) -> Cell:
    """A cell of Markdown."""
    return {"cell_type": "markdown", "metadata": {}, "source": source}


def program(source: str) -> Cell:
    """A cell of code that has not run; a text that describes a constant at its end is not shown."""
    is_text = isinstance(ast.parse(source).body[-1], ast.Expr) and source.endswith('"""')
    cell = text(source + ";" * is_text)
    return {**cell, "cell_type": "code", "execution_count": None, "outputs": []}


def described(docstring: str) -> Iterator[str]:
    """Description of a script as Markdown: its title, paragraphs and calls."""
    title, _, rest = docstring.partition("\n")
    yield escaped(title)
    for paragraph in rest.strip().split("\n\n"):
        lines = paragraph.splitlines()
        is_code = bool(lines) and lines[0].startswith(("python ", "chop ", "    "))
        yield code(paragraph) if is_code else "\n".join(map(escaped, lines))


def _cells(source: str) -> Iterator[Cell]:
    """Imports, constants and functions of a script, then the statements of `main`."""
    tree, lines = ast.parse(source), source.splitlines()
    said, *statements = tree.body
    *statements, _ = statements  # what calls main
    (main,) = [each for each in statements if getattr(each, "name", "") == "main"]
    yield text("# " + "\n\n".join(described(ast.get_docstring(tree) or "")).strip())
    others = [each for each in statements if each is not main]
    yield from map(program, _parts(lines, others, said, _is_of_another_kind))
    yield text(RUN)
    assert isinstance(main, ast.FunctionDef)
    about, *body = main.body
    if isinstance(body[-1], ast.Return) and body[-1].value:
        start = body[-1].lineno - 1
        lines[start] = lines[start].replace("return ", "", 1)
    yield from map(program, _parts(lines, body, about, _is_behind_a_blank_line))


def _parts(
    lines: Sequence[str], statements: Iterable[ast.stmt], before: ast.stmt, is_new: Any
) -> Iterator[str]:
    """Statements with the comments above them, in parts."""
    part: list[str] = []
    for statement in statements:
        start = min([statement.lineno, *(d.lineno for d in _decorators(statement))]) - 1
        while lines[start - 1].lstrip().startswith("#"):
            start -= 1
        if part and is_new(before, statement, lines[start - 1]):
            yield _dedented(part)
            part = []
        gap = [""] * (bool(part) and not lines[start - 1])
        part += [*gap, *lines[start : statement.end_lineno]]
        before = statement
    yield _dedented(part)


def _decorators(statement: ast.stmt) -> list[ast.expr]:
    return getattr(statement, "decorator_list", [])


def _dedented(part: list[str]) -> str:
    return textwrap.dedent("\n".join(part))


def _is_of_another_kind(before: ast.stmt, statement: ast.stmt, _: str) -> bool:
    """Imports lie together, and constants; a function or a class has a cell of its own."""
    return _kind(statement) == "definition" or _kind(before) != _kind(statement)


def _kind(statement: ast.stmt) -> str:
    if isinstance(statement, (ast.Import, ast.ImportFrom)):
        return "import"
    is_definition = isinstance(statement, (ast.FunctionDef, ast.ClassDef))
    return "definition" if is_definition else "value"


def _is_behind_a_blank_line(_: ast.stmt, __: ast.stmt, above: str) -> bool:
    return not above


def _figures(script: str, out: str, cells: Sequence[Cell]) -> list[Cell]:
    """A cell for each figure of the course's page that no cell ends with."""
    rows = [item for item in items(PAGE.read_text()) if item.command == f"python {script}"]
    names = [name for row in rows for name in row.makes if name.endswith(PICTURES)]
    sources = [cell["source"] for cell in cells]
    displayed = {name for name in names if any(each.endswith(f'"{name}")') for each in sources)}
    made = [_figure(out, name) for name in dict.fromkeys(names) if name not in displayed]
    return [text(FIGURES), program("from chop.base.files import Picture"), *made] if made else []


def _figure(out: str, name: str) -> Cell:
    if "*" not in name:
        return program(f"Picture({_quoted(f'{out}/{name}')})")
    each = f"sorted(Path({_quoted(out)}).glob({_quoted(name)}))"
    return program(f"for path in {each}:\n    display(Picture(path))")


def _quoted(text: str) -> str:
    return json.dumps(text)
