"""Docstrings name parameters and fields in the order of the code, where there is more to say.

That `Args` names all parameters, ruff checks (D417, DOC102); it looks neither at their order nor
at `Attributes`. Public functions with several parameters have `Args`. Those of other functions
say more than names, types and the first lines do: a unit, shape, range, default or condition.
"""

import ast
import importlib
import inspect
import re
from functools import cache
from pathlib import Path

import pytest

from chop.base.docstrings import entries
from tests.sources import parse_file

SOURCES = Path(__file__).resolve().parents[1] / "src"
PUBLIC = Path(__file__).with_name("public_names.txt")
PLAIN = frozenset(
    re.findall(
        r"\w+",
        """a an and another any are as at be been both by call caller each every few first for from
        function given gives has have here how i if in into is it its made message more name named
        no of on one only other others out own passed read second see settings some such taken text
        that the their them there these they this those to used was were what when where which who
        whose will with work written result argument""",
    )
)
"""Words that say nothing of a parameter."""
SIGNS = re.compile(
    r"[`(\[\d\"]|None|;|\b(or|must|default|without|least|most|by|changed|not|order)\b",
    re.IGNORECASE,
)
"""Signs of a range, shape, default, source or condition."""
USUAL = {"mg": "graph model circuit", "workload": "model rows data", "path": "file", "x": "tensor"}
"""Further words that names of parameters stand for."""


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


def disorder(tree):
    """Docstrings of a file that name things in another order than its code, or others."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            heading, names = "Args", parameters(node)
        elif isinstance(node, ast.ClassDef) and (names := fields(node)) is not None:
            heading = "Attributes"
        else:
            continue
        documented = list(entries(ast.get_docstring(node) or "", heading))
        if documented != [name for name in names if name in documented]:
            yield f"{node.name} (line {node.lineno}): {documented}, expected the order {names}"


def words(text):
    """Stems of the words of a text or name that say something."""
    parts = re.findall(r"[a-z]+", re.sub(r"([a-z])([A-Z])", r"\1 \2", text).lower())
    return {re.sub(r"(ies|es|s|ed|ing)$", "", part)[:5] for part in parts if part not in PLAIN}


def says_more(entry, name, known):
    """True where an entry has a sign, or two words that are not known from elsewhere."""
    usual = " ".join(USUAL.get(part, "") for part in name.split("_"))
    return bool(SIGNS.search(entry)) or len(words(entry) - known - words(f"{name} {usual}")) > 1


def repetitions(tree):
    """Functions of a file by qualified name, whose `Args` repeat names and types."""
    for owner, node in functions(tree):
        docstring = ast.get_docstring(node) or ""
        found = entries(docstring, "Args")
        known = words(docstring.partition("\n\n")[0]) | words(node.name)
        known |= words(ast.unparse(node.args))
        if found and not any(says_more(text, name, known) for name, text in found.items()):
            yield f"{owner}{node.name}"


def functions(node, owner=""):
    """Functions below a node, each with the path of what it is in."""
    for item in ast.iter_child_nodes(node):
        if isinstance(item, ast.FunctionDef):
            yield owner, item
        is_named = isinstance(item, ast.FunctionDef | ast.ClassDef)
        yield from functions(item, f"{owner}{item.name}." if is_named else owner)


@cache
def public():
    """Public functions and classes by module and qualified name."""
    found = {}
    for line in PUBLIC.read_text().split():
        module, _, name = line.partition(":")
        value = getattr(importlib.import_module(module), name)
        value = inspect.unwrap(value) if callable(value) else value
        if getattr(value, "__qualname__", None) and value.__module__.startswith("chop."):
            found[value.__module__, value.__qualname__] = value
    return found


def get_module(path):
    """The module of a source file."""
    return ".".join(path.relative_to(SOURCES).with_suffix("").parts).removesuffix(".__init__")


@pytest.mark.parametrize(
    ("line", "is_repetition"),
    [
        ("mg: the graph.", True),
        ("mg: graph to check.", True),
        ("mg: a graph of integers without padding.", False),
        ("mg: the graph, which is changed.", False),
        ("mg: see `check`.", False),
        ("mg: (B, T).", False),
    ],
)
def test_entries_that_repeat_name_and_type_are_found(line, is_repetition):
    source = f'def check(mg: MaseGraph):\n    """Checks it.\n\n    Args:\n        {line}\n    """'
    assert list(repetitions(ast.parse(source))) == ["check"] * is_repetition


def test_args_say_more_than_names_and_types():
    owners = {(module, name.partition(".")[0]) for module, name in public()}
    found = [
        f"{module}.{name}"
        for path in sorted(SOURCES.rglob("*.py"))
        for module in [get_module(path)]
        for name in repetitions(parse_file(path))
        if (module, name.partition(".")[0]) not in owners
    ]
    assert not found, "leave Args out, or say what a name and a type do not"


def test_public_functions_with_several_parameters_have_args():
    lacking = [
        ".".join(place)
        for place, value in public().items()
        if inspect.isfunction(value) and "<locals>" not in place[1]
        if not place[0].startswith("chop.passes.")  # their help is made of their settings
        if len(inspect.signature(value).parameters) > 1 and not entries(value, "Args")
    ]
    assert not lacking


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
    assert not list(disorder(ast.parse(source)))


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
    assert list(disorder(ast.parse(source))) == [told]


def test_docstrings_follow_the_order_of_parameters_and_fields():
    found = {
        str(path.relative_to(SOURCES)): wrong
        for path in sorted(SOURCES.rglob("*.py"))
        if (wrong := list(disorder(parse_file(path))))
    }
    assert not found
