"""Renaming of graph members to names that torch's exporter can write in Python.

torch's exporter generates code that reads members as attributes. A layer called `class` is a syntax
error there, and one called `graph` collides with `torch.fx.GraphModule`.
"""

from __future__ import annotations

import functools
import keyword
import unicodedata
from collections.abc import Collection, Iterable, Iterator

from torch import fx, nn

from chop.ir.graph import MaseGraph
from chop.private.modules import MEMBERS, own_children


def give_plain_names(mg: MaseGraph) -> None:
    """Renames members that code cannot refer to: `class` becomes `class_`.

    Members of modules that nodes call keep their names, which the modules' own code reads.

    Args:
        mg: graph, which is changed.
    """
    model = mg.model
    called = {str(node.target) for node in mg.nodes if node.op == "call_module"}
    scopes = [*_not_called(model, called)]
    renamed = {id(scope): _new_names(scope) for scope in scopes}
    if not any(renamed.values()):
        return
    for node in mg.nodes:
        if node.op in ("call_module", "get_attr"):
            node.target = ".".join(_new_steps(model, str(node.target).split("."), renamed))
    for scope in scopes:
        _rename(scope, renamed[id(scope)])


def _not_called(module: nn.Module, called: Collection[str], path: str = "") -> Iterator[nn.Module]:
    """Yields a module and its submodules, without those that nodes call and their submodules."""
    yield module
    for name, child in own_children(module).items():
        inner = f"{path}.{name}" if path else name
        if child is not None and inner not in called:
            yield from _not_called(child, called, inner)


def _new_names(scope: nn.Module) -> dict[str, str]:
    """Returns the new names of members by the old ones."""
    taken = {name for place in MEMBERS for name in getattr(scope, place)}
    new_names = {}
    for name in [*taken]:
        plain = _in_plain_letters(name)
        while plain != name and plain in taken:
            plain += "_"
        if plain != name:
            new_names[name] = plain
            taken.add(plain)
    return new_names


def _in_plain_letters(name: str) -> str:
    text = unicodedata.normalize("NFKC", name)
    text = "".join(x if x.isalnum() or x in "_- " else "_" for x in text)
    taken = keyword.iskeyword(text) or hasattr(_empty(), text)
    return f"{text}_" if taken else text


@functools.cache
def _empty() -> fx.GraphModule:
    return fx.GraphModule(nn.Module(), fx.Graph())


def _new_steps(
    model: nn.Module, steps: Iterable[str], renamed: dict[int, dict[str, str]]
) -> list[str]:
    new_steps, module = [], model
    for step in steps:
        new_steps.append(renamed.get(id(module), {}).get(step, step))
        module = own_children(module).get(step) or module
    return new_steps


def _rename(scope: nn.Module, names: dict[str, str]) -> None:
    for place in MEMBERS:
        members = getattr(scope, place)
        moved = {names.get(name, name): member for name, member in members.items()}
        members.clear()
        members.update(moved)
