"""Docstrings name parameters and fields in the order of the code.

That `Args` names all of them, ruff checks (D417, DOC102); it looks neither at their order nor at
`Attributes`.
"""

import ast
from pathlib import Path

import pytest

from chop.base.docstrings import entries

SOURCES = Path(__file__).resolve().parents[1] / "src"


def parameters(function):
    """The parameters of a function in their order."""
    of = function.args
    found = [*of.posonlyargs, *of.args, of.vararg, *of.kwonlyargs, of.kwarg]
    return [parameter.arg for parameter in found if parameter]


def fields(node):
    """The annotated fields of a class in their order; None where `__init__` is written out."""
    if any(isinstance(item, ast.FunctionDef) and item.name == "__init__" for item in node.body):
        return None
    return [item.target.id for item in node.body if isinstance(item, ast.AnnAssign)]


def disorder(source):
    """Docstrings of a file that name things in another order than its code, or others."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef):
            heading, names = "Args", parameters(node)
        elif isinstance(node, ast.ClassDef) and (names := fields(node)) is not None:
            heading = "Attributes"
        else:
            continue
        documented = list(entries(ast.get_docstring(node) or "", heading))
        if documented != [name for name in names if name in documented]:
            yield f"{node.name} (line {node.lineno}): {documented}, expected the order {names}"


@pytest.mark.parametrize(
    "source",
    [
        'def f(a, *b, c=0, **d):\n    """F.\n\n    Args:\n        a: 1.\n        d: 4.\n    """',
        'class C:\n    """C.\n\n    Attributes:\n        a: one.\n    """\n    a: int\n    b: int',
        'def f(a):\n    """F."""',
    ],
    ids=["starred", "some-fields", "no-section"],
)
def test_sections_in_the_order_of_the_code_are_right(source):
    assert not list(disorder(source))


@pytest.mark.parametrize(
    ("source", "told"),
    [
        (
            'def f(a, b):\n    """F.\n\n    Args:\n        b: 2.\n        a: 1.\n    """',
            "f (line 1): ['b', 'a'], expected the order ['a', 'b']",
        ),
        (
            'class C:\n    """C.\n\n    Attributes:\n        b: two.\n    """\n    a: int',
            "C (line 1): ['b'], expected the order ['a']",
        ),
    ],
    ids=["parameters", "fields"],
)
def test_other_orders_and_names_are_told(source, told):
    assert list(disorder(source)) == [told]


def test_docstrings_follow_the_order_of_parameters_and_fields():
    found = {
        str(path.relative_to(SOURCES)): wrong
        for path in sorted(SOURCES.rglob("*.py"))
        if (wrong := list(disorder(path.read_text(encoding="utf-8"))))
    }
    assert not found
