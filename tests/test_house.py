"""Size of the package, as far as a newcomer has to know it: no figure grows by accident.

`python -m tests.test_house` prints the figures. A change that raises one raises its bound in the
same commit; a change that lowers one lowers the bound.
"""

import ast
import sys
from functools import cache

import pytest

from tests.sources import parse_file
from tests.test_architecture import SOURCE, drawing, get_module, imported

BOUNDS = {
    "subpackages": 36,
    "imports between subpackages": 288,
    "files": 1_150,
    "files at one level": 29,
    "lines that are not blank": 140_700,
    "functions per 1,000 lines of logic": 107,
    "public functions and classes": 3_795,
    "lines of the longest file": 506,
}
SLACK = 0.02
"""Share of a bound by which a figure may lie below it."""
FLAT = {"formats", "passes/analysis", "passes/interface", "passes/transforms", "private"}
"""Folders of one file for each format, pass or library, however many there are."""


@pytest.mark.parametrize("name", BOUNDS)
def test_a_figure_is_raised_on_purpose(name):
    assert figures()[name] <= BOUNDS[name], "simplify, or raise the bound on purpose"
    assert figures()[name] >= (1 - SLACK) * BOUNDS[name], "lower the bound"


@cache
def figures():
    texts = {path: path.read_text().splitlines() for path in SOURCE.rglob("*.py")}
    trees = {path: parse_file(path) for path in texts}
    functions = sum(
        isinstance(node, ast.FunctionDef) for tree in trees.values() for node in ast.walk(tree)
    )
    logic = sum(lines_of_logic(trees[path], texts[path]) for path in trees)
    public = [
        node.name
        for tree in trees.values()
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_")
    ]
    levels = [
        len(list(folder.glob("*.py")))
        for folder in {path.parent for path in trees}
        if str(folder.relative_to(SOURCE)) not in FLAT
    ]
    return {
        "subpackages": sum(map(len, drawing["contracts"]()["chop"])),
        "imports between subpackages": len(arrows(trees)),
        "files": len(trees),
        "files at one level": max(levels),
        "lines that are not blank": sum(bool(line.strip()) for t in texts.values() for line in t),
        "functions per 1,000 lines of logic": round(1000 * functions / logic),
        "public functions and classes": len(public),
        "lines of the longest file": max(map(len, texts.values())),
    }


def lines_of_logic(tree, text):
    """Counts lines that are no docstring, import, comment or blank."""
    others = (ast.Import, ast.ImportFrom)
    left = set(range(1, len(text) + 1))
    for node in ast.walk(tree):
        is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if is_text or isinstance(node, others):
            left -= set(range(node.lineno, node.end_lineno + 1))
    return sum(
        not text[line - 1].strip().startswith("#") and bool(text[line - 1].strip()) for line in left
    )


def arrows(trees):
    """The pairs of subpackages of which a file of the first imports one of the second."""
    paths = {get_module(path): path for path in trees}
    pairs = {
        (name.split(".")[1], target.split(".")[1])
        for name, path in paths.items()
        for target in imported(path, paths)
        if "." in name and "." in target
    }
    return {pair for pair in pairs if pair[0] != pair[1]}


if __name__ == "__main__":
    for name, measured in figures().items():
        sys.stdout.write(f"{measured:8,}  {name} (bound {BOUNDS[name]:,})\n")
