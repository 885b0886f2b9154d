"""Backends read layouts: none of them names a number format, its module, its name or its fields."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import chop
from chop.formats import REGISTRY, LearnableFormat, NumberFormat, formats
from chop.formats.float_format import FloatFormat
from chop.formats.scaled import BlockFormat, ElementFormat, ScaledFormat
from tests.sources import parse_file
from tests.subcases import subcases

HOME = Path(chop.__file__).parent
BACKENDS = [HOME / name for name in ("kernels", "export/onnx", "hardware", "distributed")]
PATHS = [path for folder in BACKENDS for path in sorted(folder.rglob("*.py"))]
BASES = (ElementFormat, FloatFormat, ScaledFormat, BlockFormat, LearnableFormat)
CLASSES = {cls.__name__ for cls in (*formats(), *BASES)} - {"Float"}
"""`Float` may stand for no format at all; `NumberFormat` is what all have in common."""
MODULES = {cls.__module__ for cls in (*formats(), *BASES) if cls.__name__ in CLASSES}
VARIABLES = {"number_format", "x_format", "fmt"}
"""What formats are called."""


def imported(node: ast.AST) -> Iterator[str]:
    """Classes, and modules of classes, that a statement imports."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names if alias.name in MODULES)
    elif isinstance(node, ast.ImportFrom):
        for alias in node.names:
            whole = f"{node.module}.{alias.name}"
            if alias.name in CLASSES or whole in MODULES:
                yield whole


def named(node: ast.AST) -> Iterator[str]:
    """Classes that an expression names, as attributes too, and fields that it reads of a format."""
    if isinstance(node, ast.Name) and node.id in CLASSES:
        yield node.id
    elif isinstance(node, ast.Attribute):
        is_format = isinstance(node.value, ast.Name) and node.value.id in VARIABLES
        if node.attr in CLASSES or (is_format and not hasattr(NumberFormat, node.attr)):
            yield ast.unparse(node)


def compared(node: ast.AST) -> Iterator[str]:
    """Registered names that a name is compared with, or that are keys."""
    asked: list[ast.AST | None] = []
    if isinstance(node, ast.Compare) and is_a_name(sides := [node.left, *node.comparators]):
        asked = [*sides]
    elif isinstance(node, ast.Match) and is_a_name([node.subject]):
        asked = [case.pattern for case in node.cases]
    elif isinstance(node, ast.Dict):
        asked = [*node.keys]
    for expression in asked:
        for part in ast.walk(expression) if expression else ():
            if isinstance(part, ast.Constant) and part.value in REGISTRY.keys() - {"float"}:
                yield repr(part.value)


def is_a_name(expressions: list[ast.expr]) -> bool:
    """Whether a format's name, label or key may be among them."""
    words = ("name", "label", "key")
    return any(ast.unparse(expression).endswith(words) for expression in expressions)


def formats_known(tree: ast.AST) -> list[str]:
    """What a file knows of single formats, with its line."""
    return [
        f"line {node.lineno}: {what}"
        for node in ast.walk(tree)
        for find in (imported, named, compared)
        for what in find(node)
    ]


def test_no_backend_knows_a_format():
    found = {str(path.relative_to(HOME)): formats_known(parse_file(path)) for path in PATHS}
    assert len(found) > 30
    known = {name: lines for name, lines in found.items() if lines}
    assert known == {}, "read the element, groups and scaling of the format's layout()"


def test_every_subclass_is_looked_for():
    def subclasses(cls):
        return {cls}.union(*map(subclasses, cls.__subclasses__()))

    shipped = {cls for cls in subclasses(NumberFormat) if cls.__module__.startswith("chop.")}
    assert {cls.__name__ for cls in shipped} == CLASSES | {"Float", "NumberFormat"}


@subcases(
    "source",
    [
        "from chop.formats import MXInt",
        "from chop.formats.mxint import BLOCK_SIZE, MXInt",
        "from chop.formats import integer",
        "import chop.formats.nvfp4",
        "isinstance(x, Integer)",
        "isinstance(x, Integer | str)",
        "issubclass(kind, formats.scaled.BlockFormat)",
        "match x:\n    case MXFP(width=8):\n        pass",
        "type(x) is Ternary",
        "x == Integer(8, 4)",
        "number_format.name == 'mxint'",
        "f(number_format.name in ('mxint', 'mxfp'))",
        "match name:\n    case 'log':\n        pass",
        "RULES = {'binary': 1}",
        "number_format.block_size",
    ],
)
def test_what_knows_a_format_is_found(source):
    assert formats_known(ast.parse(source))


@pytest.mark.parametrize(
    "source",
    [
        '"""Decodes MXInt."""',
        "from chop.formats import Float, NumberFormat, from_key",
        "from chop.formats.elements import Fixed, Log2",
        "isinstance(x, NumberFormat) and isinstance(layout.element, Fixed)",
        "number_format.layout().element.width",
        "logging.log('binary')",
        "number_format.fitted(x).round(x)",
    ],
)
def test_what_knows_none_is_not(source):
    assert formats_known(ast.parse(source)) == []
