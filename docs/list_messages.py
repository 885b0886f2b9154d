"""List of all texts that users read: errors, warnings, notes, help and texts of pages.

`python -m docs.list_messages [FOLDER ...]` prints a line for each, for reviews of the wording:
kind, file, line and text, separated by tabs. Folders are relative to `src/chop`.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[1] / "src/chop"
LEAST_WORDS = 3
KINDS = (
    ("warning", re.compile("warn")),
    ("error", re.compile("(Error|Refusal)$")),
    ("help", re.compile("^(Option|Argument|Typer|command)$")),
    ("note", re.compile("^(info|note|say|echo|notice)$")),
)
"""Kinds of messages, each with the names of the functions that take them."""


def messages(path: Path) -> Iterator[tuple[str, int, str]]:
    """Yields kind, line and text of each message of a source file.

    Docstrings are not messages. The kind of a text that no function of `KINDS` takes is `text`.
    """
    tree = ast.parse(path.read_text(encoding="utf-8"))
    docstrings: set[ast.expr] = {
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    yield from _messages(tree, "text", docstrings)


def _messages(
    node: ast.AST, kind: str, docstrings: set[ast.expr]
) -> Iterator[tuple[str, int, str]]:
    if isinstance(node, ast.Raise):
        kind = "error"
    elif isinstance(node, ast.FunctionDef | ast.Lambda):
        kind = "text"
    elif isinstance(node, ast.Call):
        kind = _kind(ast.unparse(node.func).rpartition(".")[2], kind)
    if not isinstance(node, ast.Constant | ast.JoinedStr):
        for child in ast.iter_child_nodes(node):
            yield from _messages(child, kind, docstrings)
    elif node not in docstrings and _is_sentence(text := _text(node)):
        yield kind, node.lineno, text.strip()


def _kind(function: str, outer: str) -> str:
    return next((kind for kind, names in KINDS if names.search(function)), outer)


def _text(node: ast.Constant | ast.JoinedStr) -> str:
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    return "".join(
        f"{{{ast.unparse(part.value)}}}" if isinstance(part, ast.FormattedValue) else _text(part)
        for part in node.values
        if isinstance(part, ast.FormattedValue | ast.Constant)
    )


def _is_sentence(text: str) -> bool:
    """Returns true for texts of a few words on one line, without code such as SQL or SVG."""
    words = re.findall(r"(?<!\S)['\"(]?[A-Za-z]{2,}[.,:;)'\"]?(?!\S)", text)
    return len(words) >= LEAST_WORDS and "\n" not in text.strip() and not text.startswith("<")


def main() -> None:
    """Prints the messages of the folders on the command line, or of all."""
    for folder in sys.argv[1:] or [""]:
        for path in sorted((SOURCE / folder).rglob("*.py")):
            for kind, line, text in messages(path):
                sys.stdout.write(f"{kind}\t{path.relative_to(SOURCE)}\t{line}\t{text}\n")


if __name__ == "__main__":
    main()
