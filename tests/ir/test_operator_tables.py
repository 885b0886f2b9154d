"""The operator table is the only one: no other file lists operators by name, function or class."""

import ast
import importlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

import chop
from chop.ir.ops import OPS
from chop.nn import quantized as q
from tests.sources import parse_file

HOME = Path(chop.__file__).parent
CALLS = {
    call: row.name
    for row in OPS.values()
    for call in (*row.modules, *row.functions, row.quantized, row.twin)
    if call not in (None, getattr)
}
EXEMPT = {
    "ir/ops/": "the operator table",
    "hardware/settings.py": "reserved words of SystemVerilog",
    "integer/suggestions.py": "sentences on operators that have no circuit",
    "cli/bench.py": "names of studies, of which two are operators too",
    "export/qonnx/operators.py": "layers of ONNX operators, by their number of dimensions",
    "captured/": "what a graph holds of every function and method of Python and torch",
    "capture/": "runs before there is a graph, on every function and method of Python and torch",
    "ir/huggingface/attention.py": "what transformers' attention calls",
    "ir/storage/allowed.py": "what a file may name, operator or not: a list that no row may widen",
    "ir/storage/shapes.py": "arithmetic of sizes, which are Python's numbers",
    "nn/fused/linear_activation.py": "what the kernel can apply, by the names that files keep",
    "kernels/cpu/steps.py": "operators of aten that the recorded steps compute",
    "mase/quantized_classes.py": "the module paths of MASE, which group operators",
    "formats/": "rounds on a log or a linear scale",
    "models/": "models are made of layers",
    "train/task.py": "functions of logits, which a metric of classes must not call",
}


def texts_alone(tree: ast.AST) -> set[ast.AST]:
    """Docstrings, of modules, classes, functions and constants."""
    return {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}


def alternatives(node: ast.expr) -> Iterator[ast.expr]:
    """What is compared in `name == "add" or name == "sub"`, and united in `Add | Sub`."""
    if isinstance(node, ast.BoolOp):
        for value in node.values:
            yield from alternatives(value)
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        yield from alternatives(node.left)
        yield from alternatives(node.right)
    elif isinstance(node, ast.Compare):
        yield from node.comparators
    else:
        yield node


def collections(tree: ast.AST) -> Iterator[tuple[int, list[ast.expr]]]:
    """The line of each tuple, list, set, union or chain of `or` with its items, dicts twice."""
    for node in ast.walk(tree):
        is_or = isinstance(node, ast.BoolOp) and isinstance(node.op, ast.Or)
        if is_or or (isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr)):
            yield node.lineno, list(alternatives(node))
        if isinstance(node, ast.Tuple | ast.List | ast.Set):
            yield node.lineno, [x.value if isinstance(x, ast.Starred) else x for x in node.elts]
        elif isinstance(node, ast.Dict):
            yield node.lineno, [x for x in node.keys if x is not None]
            yield node.lineno, node.values


def named(tree: ast.AST) -> Iterator[tuple[int, set[str]]]:
    """Operators that are named in one collection, or in one text of nothing but names."""
    for line, items in collections(tree):
        constants = [x.value for x in items if isinstance(x, ast.Constant)]
        yield line, OPS.keys() & {x for x in constants if isinstance(x, str)}
    skipped = texts_alone(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in skipped:
            words = node.value.split()
            if all(word.isidentifier() for word in words):
                yield node.lineno, OPS.keys() & set(words)


def called(tree: ast.AST, list_names: Callable[[], dict]) -> Iterator[tuple[int, set[str]]]:
    """Operators whose functions or classes stand in one collection."""
    for line, items in collections(tree):
        names = [x for x in items if isinstance(x, ast.Attribute | ast.Name)]
        if len(names) > 1:
            yield line, {row for x in names if (row := operator_of(x, list_names()))}


def get_value(item: ast.expr, namespace: dict) -> object:
    """What an expression is where the file's globals are `namespace`; names without `eval`."""
    if isinstance(item, ast.Attribute):
        return getattr(get_value(item.value, namespace), item.attr)
    if isinstance(item, ast.Name) and item.id in namespace:
        return namespace[item.id]
    return eval(ast.unparse(item), dict(namespace))


def operator_of(item: ast.expr, namespace: dict) -> str | None:
    try:
        return CALLS.get(get_value(item, namespace))
    except (AttributeError, NameError):  # of a function's own variables
        return None
    except TypeError:  # a list or a dict is no operator
        return None


def tables(tree: ast.AST, list_names: Callable[[], dict]) -> list[str]:
    """What lists two operators or more, with its line; `list_names()` are the file's globals."""
    found = [*named(tree), *called(tree, list_names)]
    return [f"line {line}: {', '.join(sorted(names))}" for line, names in found if len(names) > 1]


def tables_of(path: Path) -> list[str]:
    parts = ("chop", *path.relative_to(HOME).with_suffix("").parts)
    module = ".".join(parts).removesuffix(".__init__")
    return tables(parse_file(path), lambda: vars(importlib.import_module(module)))


def test_no_other_file_lists_operators():
    found = {}
    for path in HOME.rglob("*.py"):
        name = path.relative_to(HOME).as_posix()
        if not name.startswith(tuple(EXEMPT)) and (lines := tables_of(path)):
            found[name] = lines
    assert found == {}, "give the rows of chop.ir.ops a field that says what these share"


@pytest.mark.sampled(7)
@pytest.mark.parametrize("name", EXEMPT)
def test_what_is_exempt_exists_and_needs_to_be(name):
    paths = sorted((HOME / name).rglob("*.py")) or [HOME / name]
    assert any(tables_of(path) for path in paths)


@pytest.mark.parametrize(
    "source",
    [
        "NORMS = ('layer_norm', 'rms_norm')",
        "NORMS = frozenset({'layer_norm'} | {'rms_norm', 'other', 'group_norm'})",
        "def f(name):\n    return name in ['add', 'sub']",
        "WORDS = 'relu gelu silu'.split()",
        "RULES = {'linear': 1, 'conv2d': 2}",
        "RULES = {nn.Linear: 1, nn.Conv2d: 2}",
        "RULES = {1: torch.relu, 2: torch.add}",
        "LAYERS = (nn.Linear, *(nn.Conv2d, nn.Conv1d))",
        "def f(layer):\n    return isinstance(layer, (q.QuantLinear, q.QuantConv2d))",
        "def f(layer):\n    return isinstance(layer, q.QuantLinear | q.QuantConv2d)",
        "Layer = q.QuantLinear | nn.Conv1d",
        "def f(name):\n    return name == 'add' or name == 'sub'",
        "def f(g):\n    return g is torch.relu or g is torch.add or (g is None and f(g))",
    ],
)
def test_tables_are_found(source):
    assert len(tables(ast.parse(source), lambda: {"nn": nn, "q": q, "torch": torch})) == 1


@pytest.mark.parametrize(
    "source",
    [
        "'''add sub'''\nX = 1\n'''relu gelu'''",
        "def f(name):\n    return name == 'add' or name is None",
        "def f(call):\n    return call in (torch.relu, nn.ReLU)",
        "Layer = q.QuantLinear | None",
        "NAMES = ('linear', 'another')",
        "CLASSES = (nn.Linear, nn.Module)",
        "TEXT = 'expected a relu or a gelu, no silu'",
    ],
)
def test_what_is_no_table_is_not(source):
    assert tables(ast.parse(source), lambda: {"nn": nn, "q": q, "torch": torch}) == []
