"""Private API of other libraries in Python sources, found in their text.

Three kinds of places count:

1. an import, or a chain of attributes that begins with an import, with a part such as `_C` below
   another package than `chop`, or of `torch.fx.experimental`;
2. an attribute `x._name`, also by `getattr`, that no source of `chop` defines. Attributes that
   torch's own classes have count even if a class of `chop` has the name too, but for `self`;
3. a string that is a private attribute of `nn.Module`, `fx.Node` or `Tensor`, such as "_buffers".

A subclass may read what its bases protect: `self._name` is checked on the class.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from functools import cache

import torch
from torch import fx, nn

DOCUMENTED = frozenset({"_replace", "_asdict", "_fields", "_make", "_getframe", "_exit"})
"""Public, in spite of their names: of named tuples, `sys` and `os`."""
ACCESSORS = frozenset({"getattr", "setattr", "hasattr", "delattr"})


def is_private(name: str) -> bool:
    """Whether a name is one that other packages should not use."""
    return (
        name.startswith("_") and not name.startswith("__") and name.isidentifier() and name != "_"
    )


@cache
def library_fields() -> frozenset[str]:
    """Private attributes of the classes of torch that are everywhere."""
    holders = (nn.Module(), fx.Graph(), fx.Node, fx.GraphModule, torch.Tensor)
    names = {name for holder in (*holders, torch.ops.aten.add.Tensor) for name in dir(holder)}
    return frozenset(filter(is_private, names))


def defined_names(trees: Iterable[ast.AST]) -> set[str]:
    """Classes, methods, attributes of `self` and variables of modules and classes."""
    found: set[str] = set()
    for node in (node for tree in trees for node in ast.walk(tree)):
        if isinstance(node, ast.ClassDef):
            methods = (
                x for x in node.body if isinstance(x, ast.FunctionDef | ast.AsyncFunctionDef)
            )
            found |= {node.name, *(method.name for method in methods)}
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and _of_self(node):
            found.add(node.attr)
        if isinstance(node, ast.ClassDef | ast.Module):
            for line in node.body:
                targets = line.targets if isinstance(line, ast.Assign) else []
                targets = [line.target] if isinstance(line, ast.AnnAssign) else targets
                found |= {target.id for target in targets if isinstance(target, ast.Name)}
        if isinstance(node, ast.Call) and dotted(node.func) == "object.__setattr__":
            found |= {x.value for x in node.args[1:2] if isinstance(x, ast.Constant)}
    return found


def private_api(tree: ast.AST, defined: set[str]) -> Iterator[tuple[int, str]]:
    """Line and name of each place."""
    roots = dict(_imports(tree))
    inside = {
        id(x) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for x in node.values
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from ((node.lineno, full) for _, full in _imports(node) if _is_fenced(full))
        elif isinstance(node, ast.Attribute):
            full = _full_name(node, roots)
            unknown = node.attr not in defined or node.attr in library_fields()
            foreign = is_private(node.attr) and unknown and not _of_self(node)
            if (foreign and node.attr not in DOCUMENTED) or _is_fenced(full):
                yield node.lineno, ast.unparse(node)
        elif isinstance(node, ast.Call) and dotted(node.func) in ACCESSORS:
            names = [x.value for x in node.args[1:2] if isinstance(x, ast.Constant)]
            yield from ((node.lineno, x) for x in names if is_private(x) and x not in defined)
        elif isinstance(node, ast.Constant) and id(node) not in inside:
            if isinstance(node.value, str) and node.value in library_fields():
                yield node.lineno, node.value
        elif isinstance(node, ast.keyword) and node.arg in library_fields():
            yield node.value.lineno, str(node.arg)


def protected(tree: ast.AST, defined: set[str]) -> Iterator[tuple[str, str]]:
    """Classes, and what they read of themselves that no source of `chop` defines."""
    for scope in (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)):
        for node in ast.walk(scope):
            if not isinstance(node, ast.Attribute) or not _of_self(node):
                continue
            if is_private(node.attr) and node.attr not in {*defined, *DOCUMENTED}:
                yield scope.name, node.attr


def private_names_of(tree: ast.AST) -> set[str]:
    """Private names that a source reads as attributes or writes as strings."""
    nodes = list(ast.walk(tree))
    names = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    texts = {node.value for node in nodes if isinstance(node, ast.Constant)}
    names |= {text for text in texts if isinstance(text, str)}
    return {name for name in names if is_private(name)}


def _of_self(node: ast.Attribute) -> bool:
    owner = node.value.func if isinstance(node.value, ast.Call) else node.value
    names = ("super",) if isinstance(node.value, ast.Call) else ("self", "cls")
    return isinstance(owner, ast.Name) and owner.id in names


def dotted(node: ast.expr) -> str:
    """The text of a chain of attributes such as `torch._C._nn`; "" for other expressions."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (owner := dotted(node.value)):
        return f"{owner}.{node.attr}"
    return ""


def _imports(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Names that imports give, each with the full name of what it stands for."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for each in node.names:
                short = each.name.partition(".")[0]
                yield (each.asname, each.name) if each.asname else (short, short)
                yield each.name, each.name
        if isinstance(node, ast.ImportFrom) and node.module:
            for each in node.names:
                yield each.asname or each.name, f"{node.module}.{each.name}"


def _full_name(node: ast.Attribute, roots: dict[str, str]) -> str:
    root, dot, rest = dotted(node).partition(".")
    return f"{roots[root]}{dot}{rest}" if root in roots else ""


def _is_fenced(full: str) -> bool:
    package, *parts = full.split(".")
    private = any(is_private(part) and part not in DOCUMENTED for part in parts)
    return package != "chop" and (private or full.startswith("torch.fx.experimental"))
