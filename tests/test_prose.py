"""Words of docstrings and names: openings and names of a private dialect are refused."""

import ast
import re
from pathlib import Path

from tests.sources import parse_file
from tests.subcases import subcases

ROOT = Path(__file__).resolve().parents[1]
FILES = sorted((*(ROOT / "src").rglob("*.py"), *(ROOT / "docs").rglob("*.py")))
OPENINGS = frozenset(
    ["Of", "What", "That", "Which", "Where", "Whether", "How", "Why", "As", "Who", "Whose"]
)
"""First words of docstrings that name neither a thing nor an action."""
WORDS = frozenset(["told", "tell", "found", "kept", "noted", "shown", "ways"])
"""Parts of names that say nothing about the value."""
PREDICATES = ("is", "has", "can", "out")
SAVED = {
    "actions/compress/table.py": "left_alone",
    "hardware/folds/shrink.py": "kept",
    "report/charts/chart.py": "kept",
    "report/document.py": "left_out",
    "studies/model.py": "kept_bytes",
    "testing/components.py": "kept",
}
"""Fields that are keys of files, and a parameter that other packages give, by file of `chop`."""


def openings(tree):
    """Yields the lines of docstrings that begin with a refused word."""
    for node in ast.walk(tree):
        for item in body if isinstance(body := getattr(node, "body", None), list) else ():
            if isinstance(item, ast.Expr) and isinstance(item.value, ast.Constant):
                first = re.match(r"\w*", str(item.value.value).strip())[0]
                if first in OPENINGS:
                    yield item.lineno


def names(tree):
    """Yields names of functions, classes, parameters, variables and attributes with their lines."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name, node.lineno
        elif isinstance(node, ast.arg):
            yield node.arg, node.lineno
        elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.id if isinstance(node, ast.Name) else node.attr, node.lineno


def is_refused(name, text):
    parts = name.strip("_").lower().split("_")
    is_afterthought = len(parts) > 1 and parts[-1] == "of" and parts[0] not in PREDICATES
    is_prefix = len(parts) > 1 and parts[0] == "of"
    is_remainder = "left" in parts and "right" not in text
    return bool(WORDS & {*parts}) or is_afterthought or is_prefix or is_remainder


@subcases("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_docstrings_and_names_are_in_the_words_of_the_field(path):
    text = path.read_text(encoding="utf-8")
    tree, saved = parse_file(path), SAVED.get(str(path.relative_to(ROOT)).removeprefix("src/chop/"))
    assert not list(openings(tree)), "name the thing, or the action in the third person"
    refused = [
        f"{name} (line {line})"
        for name, line in names(tree)
        if name != saved and is_refused(name, text)
    ]
    assert not refused, "a function is a verb and its object, a value is named by what it holds"
